"""Schedules with moves, made without a search: what to move when memory is short, and when to move it.

`evict` makes room by moving away whatever is read last, and fetches it back where it is read (Belady 1966):
within any budget that the operations fit in, if all values may move.

`place` says where stores end and fetches begin: a schedule whose moves took no time, fitted to a link.

The computations stay where they are. Memory that they leave within the budget is given to the moves: stores,
in the order of computation, stay in memory until the link has carried them or the room is needed; fetches,
from the last back, begin early enough to arrive in time or as early as there is room. So nothing is over the
budget that was not before; what does not fit in time is waited for, and the machine says how long.

Source: the idle-time criterion of vDNN (Rhu et al., MICRO 2016), as in the planner of steps.
Limits: greedy, and with the times of a computation that never waits.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recoup._graph import Graph, Ints, Offload
from recoup._solve._check import check


def place(graph: Graph, order: Sequence[int] | Ints, budget: int, offload: Offload) -> list[int]:
    """The schedule with its stores and fetches placed.

    Args:
        graph: the problem.
        order: computations and fetches (`len(graph) + v`), legal within the budget where moves take no time.
        budget: bytes.
        offload: with a rate.

    Returns:
        An order as `check` reads it with this offload.
    """
    count = len(graph)
    steps = np.asarray(order).tolist()
    operands, sizes = graph.operand_lists(), graph.sizes.tolist()
    takes = (graph.sizes / offload.bytes_per_cost).tolist()
    runs: list[int] = []  # the computations; places are before one of them, or at the end
    made = [-1] * count  # where each value was computed first
    last = [-1] * count  # its latest computation or read
    fetched = [False] * count  # since then
    gaps: list[tuple[int, int, int]] = []  # a value is away between its last event and the read of its fetch
    for code in steps:
        if code >= count:
            fetched[code - count] = True
            continue
        at = len(runs)
        for u in operands[code]:
            if fetched[u]:
                gaps.append((last[u], at, u))
                fetched[u] = False
            last[u] = at
        fetched[code] = False
        last[code] = at
        if made[code] < 0:
            made[code] = at
        runs.append(code)
    room = budget - _held(graph, runs, gaps)
    starts = np.concatenate([[0.0], np.cumsum(graph.costs[runs])])
    out = 0.0
    ended: dict[int, int] = {}
    stores: list[list[int]] = [[] for _ in range(len(runs) + 1)]
    fetches: list[list[int]] = [[] for _ in range(len(runs) + 1)]
    first = {v: (left, right) for left, right, v in reversed(gaps)}
    for v in sorted(first, key=lambda v: made[v]):
        left, right = first[v]
        out = max(out, float(starts[made[v] + 1])) + takes[v]
        done = max(made[v] + 1, int(np.searchsorted(starts, out - 1e-9 * starts[-1])))
        at = left + 1
        if min(done, right) > at:
            at += _first(room[at : min(done, right)] < sizes[v])
            room[left + 1 : at] -= sizes[v]
        ended[v] = min(done, at)
        stores[ended[v]].append(2 * count + v)
    back = float(starts[-1])
    for left, right, v in sorted(gaps, key=lambda gap: gap[1], reverse=True):
        back = min(back, float(starts[right])) - takes[v]
        at = max(left + 1, ended[v], int(np.searchsorted(starts, back, side="right")) - 1)
        if at < right:
            at = right - _first(room[at:right][::-1] < sizes[v])
            room[at:right] -= sizes[v]
        fetches[at].append(count + v)  # the last one first
    result: list[int] = []
    for at in range(len(runs) + 1):
        result += [*stores[at], *reversed(fetches[at]), *runs[at : at + 1]]
    return result


def _first(found: NDArray[np.bool_]) -> int:
    """Index of the first that is true, or how many there are."""
    return int(np.argmax(found)) if found.any() else len(found)


def _held(graph: Graph, runs: list[int], gaps: list[tuple[int, int, int]]) -> Ints:
    """Bytes while each computation runs, every value away throughout its gaps."""
    profile = check(graph, runs).profile.copy()
    change = np.zeros(len(runs) + 1, dtype=np.int64)
    for left, right, v in gaps:
        change[left + 1] += graph.sizes[v]
        change[right] -= graph.sizes[v]
    return profile - np.cumsum(change)[:-1]


def evict(
    graph: Graph, order: Sequence[int] | Ints, budget: int, movable: Sequence[bool]
) -> list[int] | None:
    """The order with a fetch (`len(graph) + v`) of whatever had to leave memory; None if that is not enough.

    Args:
        graph: the problem.
        order: every operation once, in a legal order.
        budget: bytes.
        movable: which values may leave.
    """
    count = len(graph)
    steps = np.asarray(order).tolist()
    operands, sizes = graph.operand_lists(), graph.sizes.tolist()
    reads: list[list[int]] = [[] for _ in range(count)]  # from the last to the next
    for at in range(len(steps) - 1, -1, -1):
        for u in operands[steps[at]]:
            reads[u].append(at)
    inside: set[int] = set()
    held = 0
    queue: list[tuple[int, int]] = []  # values by their next read, the latest first; some out of date
    result: list[int] = []
    for at, op in enumerate(steps):
        needed = {op, *operands[op]}
        held += sum(sizes[v] for v in needed - inside)
        result += [count + v for v in operands[op] if v not in inside]
        inside |= needed
        while held > budget:
            if not queue:
                return None
            read, v = heapq.heappop(queue)
            if v in inside and v not in needed and reads[v][-1] == -read:
                inside.remove(v)
                held -= sizes[v]
        result.append(op)
        for v in needed:
            while reads[v] and reads[v][-1] <= at:
                reads[v].pop()
            if not reads[v]:
                inside.remove(v)
                held -= sizes[v]
            elif movable[v]:
                heapq.heappush(queue, (-reads[v][-1], v))
    return result
