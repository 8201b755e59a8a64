"""A loop's plan: the mechanism, the bytes of its pieces, and what else was possible, as `loop_plan` prints
it. No JAX."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recoup._loops.schedules import online_advances, optimal_advances
from recoup._report.text import format_bytes, table

if TYPE_CHECKING:
    from recoup._plan import Plan

DECISIONS = 10  # lines about what is kept in a step


@dataclass(frozen=True)
class Sizes:
    """Bytes of a loop's pieces: carry, residuals of one step, gradients of captured tensors, `xs`."""

    state_bytes: int
    residual_bytes: int
    gradient_bytes: int
    xs_bytes: int = 0


@dataclass(frozen=True)
class Trade:
    """One plan for differentiating `steps` steps together.

    `bytes` are the temporaries it takes inside the engine, beside its states (an upper end); `extra` is what
    runs again for it, in evaluations of the step per step. `explain` makes the plan that a person reads; None
    for the piece as it is.
    """

    steps: int
    bytes: int
    extra: float
    explain: "Callable[[], Plan] | None" = field(compare=False, repr=False)


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
    tape_steps: int = 1
    trade: Trade | None = None

    @property
    def planned(self) -> bool:
        """Whether the planner changes how a piece is differentiated."""
        return self.trade is not None and self.trade.explain is not None

    @property
    def label(self) -> str:
        if self.method == "levels":
            return f"levels {' x '.join(map(str, self.levels))}{', tape' if self.tape else ''}"
        slots = "" if self.slots is None else f", {self.slots} slots"
        steps = "planned steps" if self.planned else "steps"
        if self.tape_steps > 1:
            return f"{self.method}{slots}, tapes of {self.tape_steps} {steps}"
        return f"{self.method}{slots}, {steps}" if self.planned else self.method + slots


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
        if self.length is None:
            return self.chosen.slots
        return min(self.chosen.slots or 0, -(-self.length // self.chosen.tape_steps))

    @property
    def evaluations(self) -> int | None:
        """Executions of the step, the n differentiated ones included; None where the length is not known."""
        return self.chosen.evaluations

    @property
    def recomputed(self) -> int | None:
        """Executions beyond the n that a plain scan with its gradient makes."""
        return None if self.length is None or self.evaluations is None else self.evaluations - self.length

    @property
    def step_plan(self) -> "Plan | None":
        """What is kept and what runs again inside a step (or the steps of a tape) while it is differentiated;
        None where all that JAX keeps is kept."""
        trade = self.chosen.trade
        return None if trade is None or trade.explain is None else trade.explain()

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
        lines += self._about_the_step()
        return "\n".join(lines)

    def _about_the_step(self) -> list[str]:
        plan, trade = self.step_plan, self.chosen.trade
        if plan is None or trade is None:
            return []
        what = f"{trade.steps} steps together" if trade.steps > 1 else "a step"
        groups: dict[tuple[str, ...], list[int]] = {}
        for d in plan.decisions:
            groups.setdefault((d.action, d.value, d.op, d.source.split("/")[-1]), []).append(d.bytes)
        largest = sorted(groups.items(), key=lambda group: -sum(group[1]))[:DECISIONS]
        rows: list[list[object]] = [
            [action, len(sizes), value, format_bytes(sum(sizes)), op, at]
            for (action, value, op, at), sizes in largest
        ]
        return [
            f"differentiating {what} is planned to take {format_bytes(trade.bytes)}, for "
            f"{trade.extra:.2f} more evaluations a step:",
            table(["", "values", "", "bytes", "made by", "at"], rows, right=(1, 3)),
        ]
