"""Errors: each has a stable `code` and says what happened, where, the numbers, and what to change.

Every class subclasses the built-in exception it resembles, so that existing handlers keep working.
"""


class RecoupError(Exception):
    """Base of all of recoup's errors. `code` is stable across releases."""

    code = "E-RECOUP-000"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class BudgetError(RecoupError, ValueError):
    """A budget that cannot be met."""

    code = "E-BUDGET-001"


class BudgetSyntaxError(RecoupError, ValueError):
    """A budget that is not bytes, a size such as "4GiB", a percentage, or "device"."""

    code = "E-BUDGET-002"


class SignatureError(RecoupError, TypeError):
    """Arguments that do not match the signature a step was fitted for."""

    code = "E-CALL-001"


class TargetError(RecoupError, ValueError):
    """A command-line target that does not load or does not return `(step, args)`."""

    code = "E-CLI-001"


class PlanError(RecoupError, ValueError):
    """A plan or schedule that is not legal for its program."""

    code = "E-PLAN-001"


class EmptyRegionError(RecoupError, ValueError):
    """A backward pass was asked of a region that records no tensor operation."""

    code = "E-GRAD-005"


class RegionFlowError(RecoupError, RuntimeError):
    """In strict mode: a region evaluated outside any traced computation."""

    code = "E-FLOW-003"


class EffectError(RecoupError, NotImplementedError):
    """An effect or a mutable state that recomputation would repeat."""

    code = "E-EFFECT-001"
