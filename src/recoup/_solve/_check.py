"""The model machine: executes any schedule, asserts that it is legal, and says what it costs and holds.

Semantics (those of the published problems, Checkmate and MOCCASIN): a use reads the most recent computation
of its operand. While an operation runs, memory holds its output, its operands, and every computed value with
a later use of that same computation; a value nobody uses lives only while it is computed. No planner's
number is reported unless this machine computed it. Linear in the schedule's length plus its operand reads.

Moves over a link with a rate (`Offload`) add a clock. Both directions are queues: a store is served when its
value is there and the stores that end before it are done, a fetch when the one begun before it is done.
Computation stops where a store should have ended, and where it reads what is still on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recoup._graph import Graph, Ints, Offload
from recoup.errors import PlanError


@dataclass(frozen=True, eq=False)
class Checked:
    """What the machine measured: `profile[i]` bytes are held while step `i` runs, `peak_bytes` at most.

    `cost` includes `stalls`, the time that computation waits for moves.
    """

    peak_bytes: int
    cost: float
    profile: Ints
    stalls: float = 0.0


class Clock:
    """Time of the computation and of both directions of the link."""

    def __init__(self, graph: Graph, bytes_per_cost: float) -> None:
        self.takes = (graph.sizes / bytes_per_cost).tolist()  # time of each value on the link, one way
        self.ready = [0.0] * len(graph)  # when the latest computation or fetch of each value is done
        self.now = self.stalls = self.out = self.back = 0.0

    def wait(self, until: float) -> None:
        """Computation stops until then."""
        if until > self.now:
            self.stalls += until - self.now
            self.now = until

    def compute(self, op: int, cost: float, operands: Sequence[int]) -> None:
        """The next computation, when all that it reads is there."""
        for operand in operands:
            self.wait(self.ready[operand])
        self.now += cost
        self.ready[op] = self.now

    def end_store(self, value: int) -> None:
        """What follows runs when the store of this value has ended."""
        self.out = max(self.out, self.ready[value]) + self.takes[value]
        self.wait(self.out)

    def fetch(self, value: int) -> None:
        """A fetch begins, behind those that are under way."""
        self.back = max(self.back, self.now) + self.takes[value]
        self.ready[value] = self.back


def check(
    graph: Graph,
    order: Sequence[int] | NDArray[np.int64],
    budget: int | None = None,
    *,
    given: bool = False,
    offload: Offload | None = None,
) -> Checked:
    """Execute `order` (operation indices, repeats allowed) on the model machine.

    Args:
        graph: the problem.
        order: the computations in the order they run; each operation at least once.
        budget: bytes that no step may exceed, or None.
        offload: what moving values costs; index `len(graph) + v` is then a fetch of the value of `v`. Where
            moves take time, index `2 * len(graph) + v` says that its store has ended, and comes before.
        given: also assert that first computations come in the graph's order.

    Raises:
        PlanError: an index out of range, an operand that was never computed, an operation that never runs, a
            first computation out of order, a fetch of what is not stored, a second store, or a step over the
            budget. The message names the step.
    """
    count = len(graph)
    steps = np.asarray(order, dtype=np.int64).reshape(-1).tolist()
    operands = graph.operand_lists()
    sizes = graph.sizes.tolist()
    computed_at = [-1] * count
    last_read = [-1] * count
    change = [0] * (len(steps) + 1)
    started = 0
    stored: set[int] = set()
    moved = 0.0
    clock = Clock(graph, offload.bytes_per_cost) if offload is not None and offload.timed else None
    costs = graph.costs.tolist()
    known = count * (1 if offload is None else 2 if clock is None else 3)
    for step, op in enumerate(steps):
        if offload is not None and count <= op < known:
            value = op % count
            if computed_at[value] < 0:
                verb = "fetches" if op < 2 * count else "stores"
                raise PlanError(f"step {step} {verb} the value of {value} before it was computed")
            if clock is not None and op >= 2 * count:
                if value in stored:
                    raise PlanError(f"step {step} stores the value of {value} again")
                stored.add(value)
                moved += float(offload.stores[value])
                clock.end_store(value)
                last_read[value] = step
                continue
            if value not in stored:
                if clock is not None:
                    raise PlanError(f"step {step} fetches the value of {value} before its store has ended")
                stored.add(value)
                moved += float(offload.stores[value])
            if clock is not None:
                clock.fetch(value)
            moved += float(offload.fetches[value])
            _live(change, computed_at[value], last_read[value], sizes[value])
            computed_at[value] = last_read[value] = step
            continue
        if not 0 <= op < count:
            raise PlanError(
                f"step {step} computes operation {op}, and the graph has operations 0 to {count - 1}"
            )
        for operand in operands[op]:
            if computed_at[operand] < 0:
                raise PlanError(
                    f"step {step} computes operation {op} before its operand {operand} was computed"
                )
            last_read[operand] = step
        if clock is not None:
            clock.compute(op, costs[op], operands[op])
        if computed_at[op] >= 0:
            _live(change, computed_at[op], last_read[op], sizes[op])
        else:
            if given and op != started:
                raise PlanError(
                    f"step {step} is the first to compute operation {op}, and {started} comes first"
                )
            started += 1
        computed_at[op] = last_read[op] = step
    if started < count:
        missing = computed_at.index(-1)
        raise PlanError(f"operation {missing} never runs: the schedule ends after step {len(steps) - 1}")
    for op in range(count):
        _live(change, computed_at[op], last_read[op], sizes[op])
    profile = np.cumsum(np.array(change[:-1], dtype=np.int64))
    if budget is not None and np.any(profile > budget):
        step = int(np.argmax(profile > budget))
        raise PlanError(
            f"step {step} (operation {steps[step]}) holds {int(profile[step])} bytes, "
            f"over the budget of {budget}"
        )
    peak = int(profile.max()) if len(profile) else 0
    computed = [op for op in steps if op < count]
    stalls = clock.stalls if clock is not None else 0.0
    cost = float(np.add.reduce(graph.costs[computed])) + stalls + moved if steps else 0.0
    return Checked(peak, cost, profile, stalls)


def _live(change: list[int], first: int, last: int, size: int) -> None:
    change[first] += size
    change[last + 1] -= size
