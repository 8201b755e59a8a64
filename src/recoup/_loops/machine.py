"""A model machine that executes a schedule without numerics and refuses whatever is not legal. No JAX.

It holds step numbers instead of states. A schedule passes if every load finds the state it names, every step
is reversed exactly once and in order, nothing is read after it was given up, and the memory holds at most
`slots` states besides the one that is being worked on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from recoup._loops.schedules import Action, Advance, ForwardEnd, Free, Load, Reverse, Store
from recoup.errors import PlanError


@dataclass(frozen=True)
class Run:
    """What a schedule did: executions of the step, and the most states held at once in each store."""

    advances: int
    reverses: int
    peak_slots: int
    peak_second: int
    second_writes: int
    second_reads: int
    peak_tape: int  # most steps differentiated at once


def execute(actions: Iterable[Action], n: int, slots: int, tape: int = 1) -> Run:
    """Execute `actions` for a loop of `n` steps, at most `tape` of which are differentiated together.

    Raises:
        PlanError: at the first action that is not legal, or if something is missing at the end.
    """
    held: dict[str, dict[int, int]] = {"memory": {}, "second": {}}
    working: int | None = 0
    expected = n - 1
    advances = reverses = peak = peak_second = peak_tape = writes = reads = 0
    ended = False

    def refuse(action: Action, why: str) -> None:
        raise PlanError(f"schedule of {n} steps with {slots} slots: {action} is not legal: {why}")

    for action in actions:
        match action:
            case Store(slot, step, store):
                if working != step:
                    refuse(action, f"the working state is {working}")
                held[store][slot] = step
                writes += store == "second"
                if store == "memory" and not 0 <= slot <= slots:
                    refuse(action, f"there are {slots} slots and one working row")
            case Advance(begin, end):
                if working != begin or not begin < end <= n:
                    refuse(action, f"the working state is {working}")
                advances += end - begin
                working = end
            case Load(slot, step, store):
                if held[store].get(slot) != step:
                    refuse(action, f"the slot holds {held[store].get(slot)}")
                working = step
                reads += store == "second"
            case Free(slot, store):
                if slot not in held[store]:
                    refuse(action, "the slot is empty")
                del held[store][slot]
            case Reverse(step, steps):
                if not ended:
                    refuse(action, "the forward pass has not ended")
                if not 0 < steps <= tape:
                    refuse(action, f"the tape holds {tape} steps")
                if working != step or step + steps - 1 != expected:
                    refuse(action, f"the working state is {working}, the next step to reverse {expected}")
                working, expected = None, step - 1
                reverses += steps
                peak_tape = max(peak_tape, steps)
            case ForwardEnd():
                if working != n or ended:
                    refuse(action, f"the working state is {working}")
                working, ended = None, True
        # A row that holds the working state itself (the state before the piece that is reversed next, whether
        # or not the forward pass has ended) is the working state, not a slot.
        begin = expected // tape * tape
        rows = {slot for slot, step in held["memory"].items() if step != begin}
        peak = max(peak, len(rows))
        peak_second = max(peak_second, len(held["second"]))
        if len(rows) > slots:
            refuse(action, f"{len(rows)} states are held")
    if not ended or expected != -1:
        raise PlanError(
            f"schedule of {n} steps with {slots} slots: steps {expected} and below were not reversed"
        )
    return Run(advances, reverses, peak, peak_second, writes, reads, peak_tape)
