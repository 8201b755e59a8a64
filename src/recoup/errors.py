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


class AgreementError(RecoupError, ArithmeticError):
    """A fitted step that does not compute what the step computes as it is."""

    code = "E-CHECK-001"


class VersionError(RecoupError, ImportError):
    """A version of JAX in which a name that recoup needs is not where it was."""

    code = "E-JAX-001"


class VersionWarning(UserWarning):
    """A version of JAX that recoup is not tested with."""


class EmptyRegionError(RecoupError, ValueError):
    """A backward pass was asked of a region that records no tensor operation."""

    code = "E-GRAD-005"


class RegionFlowError(RecoupError, RuntimeError):
    """In strict mode: a region evaluated outside any traced computation."""

    code = "E-FLOW-003"


class EffectError(RecoupError, NotImplementedError):
    """An effect or a mutable state that recomputation would repeat."""

    code = "E-EFFECT-001"


class DiagnosticError(RecoupError, NotImplementedError):
    """A diagnostic in a place that cannot return it."""

    code = "E-DIAG-001"


class RegionWarning(UserWarning):
    """A region, name or policy that does less than it seems to."""


class InfeasibleError(BudgetError):
    """No schedule of a graph within a budget: none was found, or (`proved`) there is none.

    Attributes:
        budget_bytes: what was asked for.
        smallest_peak_bytes: the smallest peak of any schedule found.
        bound_bytes: no schedule is below this: the working set (operands plus output) of `operation`.
        operation: index of that operation.
        proved: no schedule within the budget exists.
    """

    code = "E-BUDGET-001"

    def __init__(
        self, budget_bytes: int, smallest_peak_bytes: int, bound_bytes: int, operation: int, *, proved: bool
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.bound_bytes = bound_bytes
        self.operation = operation
        self.proved = proved
        verdict = "no schedule fits" if proved else "no schedule was found that fits"
        super().__init__(
            f"{verdict} into {budget_bytes} bytes: the smallest peak found is {smallest_peak_bytes} bytes; "
            f"operation {operation} alone needs {bound_bytes} bytes (its operands and its output). Raise the "
            f"budget to at least {smallest_peak_bytes} bytes, or give the search more time."
        )


class InstrumentError(RecoupError, ValueError):
    """An instrument that cannot read what it was given, or cannot measure this step here."""

    code = "E-INSTR-001"
