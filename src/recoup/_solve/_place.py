"""Where stores end and fetches begin: a schedule whose moves took no time, fitted to a link that takes it.

The computations stay where they are. Memory that they leave within the budget is given to the moves: stores,
in the order of computation, stay in memory until the link has carried them or the room is needed; fetches,
from the last back, begin early enough to arrive in time or as early as there is room. So nothing is over the
budget that was not before; what does not fit in time is waited for, and the machine says how long.

Source: the idle-time criterion of vDNN (Rhu et al., MICRO 2016), as in the planner of steps.
Limits: greedy, and with the times of a computation that never waits.
"""

from collections.abc import Sequence

import numpy as np

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
        while at < min(done, right) and room[at] >= sizes[v]:
            room[at] -= sizes[v]
            at += 1
        ended[v] = min(done, at)
        stores[ended[v]].append(2 * count + v)
    back = float(starts[-1])
    for left, right, v in sorted(gaps, key=lambda gap: gap[1], reverse=True):
        back = min(back, float(starts[right])) - takes[v]
        at = right
        while at > max(left + 1, ended[v]) and starts[at] > back and room[at - 1] >= sizes[v]:
            at -= 1
            room[at] -= sizes[v]
        fetches[at].append(count + v)  # the last one first
    result: list[int] = []
    for at in range(len(runs) + 1):
        result += [*stores[at], *reversed(fetches[at]), *runs[at : at + 1]]
    return result


def _held(graph: Graph, runs: list[int], gaps: list[tuple[int, int, int]]) -> Ints:
    """Bytes while each computation runs, every value away throughout its gaps."""
    profile = check(graph, runs).profile.copy()
    change = np.zeros(len(runs) + 1, dtype=np.int64)
    for left, right, v in gaps:
        change[left + 1] += graph.sizes[v]
        change[right] -= graph.sizes[v]
    return profile - np.cumsum(change)[:-1]
