"""The optimum of a small graph with a proof: best-first search over what is done and what is held.

A state is (operations computed at least once, values in memory). From it any operation whose operands are
held may run, after dropping as little as makes room: holding more is never worse, so only maximal choices of
what stays are looked at. What no unfinished operation needs, however it is computed again, goes at once. A
state is left out where one with the same operations done, at most its cost and more values held was expanded
before (A*, Hart, Nilsson and Raphael 1968; the estimate is the cost of what is not done yet, which never
overestimates). The first finished state is the optimum; an empty queue proves that nothing fits; and where it
gives up, the smallest estimate in the queue is a lower bound of every schedule.

Measured against a time-indexed integer program of the same problem (HiGHS; docs/planners.md): 10 operations
in milliseconds instead of seconds.
Limits: exponential in what can be held at once; some 20 operations in seconds. No offload.
"""

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass

from recoup._graph import Graph

LARGEST = 32  # operations up to which it is worth trying
MOST = 200_000  # states looked at, about a second
LOOK = 64  # expansions between two looks at the clock


@dataclass(frozen=True)
class Exact:
    """`order` is the optimum, or None; `lower_bound` holds for every schedule; `finished`: it is decided."""

    order: list[int] | None
    lower_bound: float
    finished: bool


State = tuple[int, int]


def exact(
    graph: Graph, budget: int, *, given: bool, deadline: float = float("inf"), most: int = MOST
) -> Exact:
    """The cheapest schedule within `budget`, the proof that there is none, or a bound where it gives up.

    Args:
        graph: a few operations.
        budget: bytes.
        given: first computations keep the graph's order.
        deadline: in `time.monotonic()`.
        most: states to look at before giving up.
    """
    count = len(graph)
    full = (1 << count) - 1
    needs = [sum(1 << u for u in operands) for operands in graph.operand_lists()]

    costs, sizes = graph.costs.tolist(), graph.sizes.tolist()
    useful_of: dict[int, int] = {}
    start = (0, 0)
    best: dict[State, float] = {start: 0.0}
    came: dict[State, tuple[State, int]] = {}
    expanded: dict[int, list[int]] = {}
    queue: list[tuple[float, int, float, State]] = [(graph.total_cost, count, 0.0, start)]
    looks = work = 0
    while queue:
        estimate, _, cost, state = heapq.heappop(queue)
        done, held = state
        if cost > best[state]:
            continue
        if done == full:
            return Exact(_path(came, state), cost, True)
        before = expanded.setdefault(done, [])
        if any(held & ~other == 0 for other in before):
            continue
        work += len(before) // 8
        before.append(held)
        looks += 1
        if work > most or (looks % LOOK == 0 and time.monotonic() > deadline):
            return Exact(None, estimate, False)
        if done not in useful_of:
            useful_of[done] = _useful(done, full, needs)
        useful = useful_of[done]
        following = (done + 1).bit_length() - 1 if given else -1
        for op in range(count):
            bit = 1 << op
            if held & bit or needs[op] & ~held:
                continue
            first = not done & bit
            if first and given and op != following:
                continue
            if not first and not useful & bit:
                continue
            after = done | bit
            if after not in useful_of:
                useful_of[after] = _useful(after, full, needs)
            room = budget - sizes[op] - _bytes(needs[op], sizes)
            if room < 0:
                continue
            paid = cost + costs[op]
            price = estimate if first else estimate + costs[op]
            left = count - after.bit_count()
            for kept in _maximal(held & ~needs[op] & useful_of[after], sizes, room):
                work += 1
                if work > most:
                    return Exact(None, estimate, False)
                now = (kept | needs[op] | bit) & useful_of[after]
                state_after = (after, now)
                if paid < best.get(state_after, float("inf")):
                    best[state_after] = paid
                    came[state_after] = (state, op)
                    heapq.heappush(queue, (price, left, paid, state_after))
    return Exact(None, float("inf"), True)


def _useful(done: int, full: int, needs: list[int]) -> int:
    """Values that may still be read: operands of what is not done, and of what these may need again."""
    wanted = 0
    for op in range(len(needs) - 1, -1, -1):
        # users come later: whether they may run again is known when their operands are looked at
        if (~done & full | wanted) >> op & 1:
            wanted |= needs[op]
    return wanted


def _bytes(mask: int, sizes: list[int]) -> int:
    total = 0
    while mask:
        low = mask & -mask
        total += sizes[low.bit_length() - 1]
        mask ^= low
    return total


def _maximal(mask: int, sizes: list[int], room: int) -> Iterator[int]:
    """The subsets of `mask` within `room` bytes to which none of the rest can be added."""
    if _bytes(mask, sizes) <= room:
        yield mask
        return
    items = []
    while mask:
        low = mask & -mask
        items.append((sizes[low.bit_length() - 1], low))
        mask ^= low
    items.sort(reverse=True)  # largest first: the smallest left out decides whether a subset is maximal
    rest = [0] * (len(items) + 1)
    for i in range(len(items) - 1, -1, -1):
        rest[i] = rest[i + 1] + items[i][0]

    def choose(i: int, kept: int, room: int, smallest: int) -> Iterator[int]:
        if rest[i] <= room:  # all the rest fits
            if room - rest[i] < smallest:
                yield kept | sum(bit for _, bit in items[i:])
            return
        size, bit = items[i]
        if size <= room:
            yield from choose(i + 1, kept | bit, room - size, smallest)
        yield from choose(i + 1, kept, room, min(smallest, size))

    yield from choose(0, 0, room, 1 << 62)


def _path(came: dict[State, tuple[State, int]], state: State) -> list[int]:
    order = []
    while state in came:
        state, op = came[state]
        order.append(op)
    return order[::-1]
