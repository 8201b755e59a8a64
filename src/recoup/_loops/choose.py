"""Which mechanism runs a loop: the candidates with their bytes and evaluations, and the choice. No JAX.

Predicted bytes are of the compiled temporaries; the formulas were fitted to none of the measurements that
`docs/loops.md` compares them with, they follow from what each mechanism holds:

    all         n R + 2 S
    levels      k1 S + ... + k(d-1) S + kd R + 3 S + d G      (tape; without: kd S + R for the last level)
    binomial    (s + 3) S + R + G                              (online likewise)

S: bytes of the carry; R: bytes that one step keeps for its own differentiation; G: bytes of the gradients of
captured tensors; n: steps; k: trip counts of the levels, s: slots. Evaluations count every execution of the
step, the differentiated one included, so that a plain scan has n.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from recoup._loops.schedules import (
    default_slots,
    held_online,
    level_lengths,
    online_advances,
    optimal_advances,
)
from recoup._report.text import format_bytes, table
from recoup.errors import BudgetError

UNKNOWN_SLOTS = 64
MAX_LEVELS = 4
METHODS = ("auto", "all", "levels", "binomial")


@dataclass(frozen=True)
class Sizes:
    """Bytes of a loop's pieces: carry, residuals of one step, gradients of captured tensors, `xs`."""

    state_bytes: int
    residual_bytes: int
    gradient_bytes: int
    xs_bytes: int = 0


@dataclass(frozen=True)
class Candidate:
    """One mechanism for one loop. `evaluations` counts executions of the step for a result and its
    gradient."""

    method: str
    predicted_bytes: int
    evaluations: int | None
    slots: int | None = None
    levels: tuple[int, ...] = ()
    tape: bool = True

    @property
    def label(self) -> str:
        if self.method == "levels":
            return f"levels {' x '.join(map(str, self.levels))}{', tape' if self.tape else ''}"
        return self.method if self.slots is None else f"{self.method}, {self.slots} slots"


@dataclass(frozen=True)
class LoopPlan:
    """How a loop's reverse pass will run: print it.

    Attributes:
        length: steps, or None where the loop itself finds out.
        chosen: the mechanism. reason: why, in words.
        sizes: bytes of the loop's pieces. alternatives: what else was considered.
        budget_bytes: the budget, where one was given.
    """

    length: int | None
    chosen: Candidate
    reason: str
    sizes: Sizes
    alternatives: tuple[Candidate, ...] = field(default=())
    budget_bytes: int | None = None

    @property
    def method(self) -> str:
        """ "all", "levels", "binomial" or "online"."""
        return self.chosen.method

    @property
    def slots(self) -> int | None:
        """States held, where the mechanism has slots; the initial state is one of them."""
        return self.chosen.slots

    @property
    def states_held(self) -> int | None:
        """Carries held at once, the initial one included (the residuals of a tape are not carries)."""
        if self.chosen.method == "all":
            return self.length
        if self.chosen.method == "levels":
            counts = self.chosen.levels if not self.chosen.tape else self.chosen.levels[:-1]
            return sum(counts)
        return self.chosen.slots if self.length is None else min(self.chosen.slots or 0, self.length)

    @property
    def evaluations(self) -> int | None:
        """Executions of the step, the n differentiated ones included; None where the length is not known."""
        return self.chosen.evaluations

    @property
    def recomputed(self) -> int | None:
        """Executions beyond the n that a plain scan with its gradient makes."""
        return None if self.length is None or self.evaluations is None else self.evaluations - self.length

    @property
    def predicted_bytes(self) -> int:
        """Predicted compiled temporaries of the loop and its reverse pass (a prediction; nothing was
        compiled)."""
        return self.chosen.predicted_bytes

    def __str__(self) -> str:
        known = "unknown length" if self.length is None else f"{self.length} steps"
        lines = [
            f"loop of {known}: {self.chosen.label}",
            f"  because {self.reason}",
            f"  one state {format_bytes(self.sizes.state_bytes)}, residuals of one step "
            f"{format_bytes(self.sizes.residual_bytes)}, gradients of captured tensors "
            f"{format_bytes(self.sizes.gradient_bytes)}",
            f"  states held {self.states_held}, steps recomputed "
            f"{'depends on the length' if self.recomputed is None else self.recomputed}, "
            f"predicted temporaries {format_bytes(self.predicted_bytes)}"
            + ("" if self.budget_bytes is None else f" of a budget of {format_bytes(self.budget_bytes)}"),
        ]
        rows: list[list[object]] = []
        if self.length is None:
            slots = self.slots or 1
            for n in (100, 1000, 10_000, 100_000):
                total = online_advances(n, slots) + n
                rows.append([n, total, f"{total / n:.2f}", f"{total / (optimal_advances(n, slots) + n):.3f}"])
            lines.append(
                table(["steps", "evaluations", "per step", "of the optimum"], rows, right=(0, 1, 2, 3))
            )
        elif self.alternatives:
            for c in self.alternatives:
                per = "" if c.evaluations is None or not self.length else f"{c.evaluations / self.length:.2f}"
                rows.append([c.label, format_bytes(c.predicted_bytes), per])
            lines.append(table(["also possible", "predicted", "evaluations a step"], rows, right=(1, 2)))
        return "\n".join(lines)


def binomial_bytes(sizes: Sizes, slots: int) -> int:
    return (slots + 3) * sizes.state_bytes + sizes.residual_bytes + sizes.gradient_bytes


def with_slots(n: int | None, slots: int, sizes: Sizes) -> Candidate:
    """The engine with a number of slots: binomial, or online where the length is unknown."""
    if n is None:
        return Candidate("online", binomial_bytes(sizes, slots), None, slots)
    return Candidate("binomial", binomial_bytes(sizes, slots), optimal_advances(n, slots) + n, slots)


def with_levels(n: int, levels: int, tape: bool, sizes: Sizes) -> Candidate:
    """Nested scans."""
    counts = level_lengths(n, levels)
    last = (
        counts[-1] * sizes.residual_bytes if tape else counts[-1] * sizes.state_bytes + sizes.residual_bytes
    )
    held = sum(counts[:-1]) * sizes.state_bytes + last + 3 * sizes.state_bytes
    per_step = len(counts) if tape else len(counts) + 1
    left = n - prod(counts)
    extra = left * (sizes.residual_bytes if tape else sizes.state_bytes)
    return Candidate(
        "levels", max(held, extra) + len(counts) * sizes.gradient_bytes, per_step * n, None, counts, tape
    )


def candidates(n: int, sizes: Sizes) -> Iterator[Candidate]:
    """Everything that does not depend on a budget."""
    yield Candidate("all", n * sizes.residual_bytes + 2 * sizes.state_bytes + sizes.gradient_bytes, n)
    for levels in range(2, MAX_LEVELS + 1):
        if n >= 2**levels:
            yield with_levels(n, levels, True, sizes)
            yield with_levels(n, levels, False, sizes)


def slots_within(budget_bytes: int, sizes: Sizes) -> int:
    """The most slots whose predicted bytes are within the budget; may be less than one."""
    left = budget_bytes - binomial_bytes(sizes, 0)
    return left // sizes.state_bytes if sizes.state_bytes else (1 if left >= 0 else 0)


def choose(
    n: int | None,
    sizes: Sizes,
    checkpoints: int | None = None,
    budget_bytes: int | None = None,
    method: str = "auto",
) -> LoopPlan:
    """Choose the mechanism.

    Args:
        n: steps, None where unknown. sizes: of the loop's pieces.
        checkpoints: states to hold. budget_bytes: what the loop may take; at most one of the two.
        method: "auto", or one of "all", "levels", "binomial" to insist.

    Raises:
        ValueError: for arguments that contradict one another.
        BudgetError: where nothing fits; names the smallest.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if checkpoints is not None and budget_bytes is not None:
        raise ValueError("give checkpoints= (states held) or budget= (bytes), not both")
    if checkpoints is not None and checkpoints < 1:
        raise ValueError(f"checkpoints must be at least 1 (the initial state takes one), got {checkpoints}")
    if checkpoints is not None and method in ("all", "levels"):
        raise ValueError(f"checkpoints= sets the slots of the binomial engine; method={method!r} has none")
    if n is None:
        return _choose_unknown(sizes, checkpoints, budget_bytes)
    options = list(candidates(n, sizes))
    if checkpoints is not None:
        return LoopPlan(
            n, with_slots(n, checkpoints, sizes), "a number of states was given", sizes, tuple(options)
        )
    if budget_bytes is not None:
        return _choose_within(n, sizes, budget_bytes, method, options)
    return _choose_freely(n, sizes, method, options)


def _choose_unknown(sizes: Sizes, checkpoints: int | None, budget_bytes: int | None) -> LoopPlan:
    if checkpoints is not None:
        return LoopPlan(None, with_slots(None, checkpoints, sizes), "a number of states was given", sizes)
    if budget_bytes is None:
        reason = f"the length is unknown and nothing was asked for: {UNKNOWN_SLOTS} states"
        return LoopPlan(None, with_slots(None, UNKNOWN_SLOTS, sizes), reason, sizes)
    slots = slots_within(budget_bytes, sizes)
    if slots < 1:
        raise _too_small(budget_bytes, with_slots(None, 1, sizes))
    reason = "the length is unknown: as many states as the budget holds"
    return LoopPlan(None, with_slots(None, slots, sizes), reason, sizes, (), budget_bytes)


def _choose_within(
    n: int, sizes: Sizes, budget_bytes: int, method: str, options: list[Candidate]
) -> LoopPlan:
    slots = min(slots_within(budget_bytes, sizes), max(n, 1))
    if slots >= 1:
        options.append(with_slots(n, slots, sizes))
    smallest = min([*options, with_slots(n, 1, sizes)], key=lambda c: c.predicted_bytes)
    if method != "auto":
        options = [c for c in options if c.method == method]
    fitting = [c for c in options if c.predicted_bytes <= budget_bytes]
    if not fitting:
        raise _too_small(budget_bytes, smallest)
    best = min(fitting, key=lambda c: (c.evaluations or 0, c.predicted_bytes))
    others = tuple(c for c in options if c is not best)
    return LoopPlan(
        n, best, "it evaluates the step least often within the budget", sizes, others, budget_bytes
    )


def _choose_freely(n: int, sizes: Sizes, method: str, options: list[Candidate]) -> LoopPlan:
    engine = with_slots(n, default_slots(n), sizes)
    everything = options[0]
    options.append(engine)

    def plan(best: Candidate, reason: str) -> LoopPlan:
        return LoopPlan(n, best, reason, sizes, tuple(c for c in options if c is not best))

    if method == "all" or (method == "auto" and n < 4):
        return plan(everything, "it was asked for" if method == "all" else "the loop is too short to cut")
    if method == "binomial":
        return plan(engine, "it was asked for; twice the square root of the length in slots")
    two = [with_levels(n, 2, tape, sizes) for tape in (True, False)]
    best = two[0] if two[0].predicted_bytes <= 2 * two[1].predicted_bytes else two[1]
    options[:] = [c for c in options if c.levels != best.levels or c.tape != best.tape] + [best]
    if method == "levels":
        return plan(best, "it was asked for")
    if prod(best.levels) != n:
        return plan(engine, f"{n} steps do not divide into segments near the square root")
    if sizes.gradient_bytes > sizes.state_bytes:
        return plan(
            engine, "gradients of captured tensors would need an accumulator per level of nested scans"
        )
    if sizes.xs_bytes > best.predicted_bytes:
        return plan(engine, "nested scans would copy slices of the large xs")
    return plan(best, "segments near the square root of the length, differentiated by JAX itself")


def _too_small(budget_bytes: int, smallest: Candidate) -> BudgetError:
    return BudgetError(
        f"the loop cannot run within {format_bytes(budget_bytes)}: the smallest is {smallest.label} with "
        f"{format_bytes(smallest.predicted_bytes)} predicted. Give at least that, make the state or the "
        "residuals of one step smaller (recoup.checkpoint in the body), or use fewer captured tensors that "
        "need a gradient"
    )


__all__ = ["Candidate", "LoopPlan", "Sizes", "choose", "held_online"]
