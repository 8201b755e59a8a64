"""The oracle for tiny graphs: the cheapest schedule of all, by Dijkstra over what is done and what is held.

A state is (operations computed at least once, values in memory). Computing `v` needs its operands held and
fits when what is held plus `v`'s output is within the budget; dropping values is free, so a state may be
left through any subset of what it holds. 3^n states: for n <= 10, in tests and for the smallest windows.
Exact, any order.
"""

import heapq

from recoup._graph import Graph
from recoup.errors import PlanError

LARGEST = 10


def brute_force(graph: Graph, budget: int, *, given: bool = False) -> list[int] | None:
    """The cheapest order within `budget`, or None if there is none.

    Args:
        graph: at most `LARGEST` operations.
        budget: bytes.
        given: first computations keep the graph's order.
    """
    count = len(graph)
    if count > LARGEST:
        raise PlanError(f"brute force takes at most {LARGEST} operations, not {count}")
    full = (1 << count) - 1
    needs = [sum(1 << int(u) for u in graph.operands(v)) for v in range(count)]
    costs = graph.costs.tolist()
    held_bytes = [sum(int(graph.sizes[v]) for v in range(count) if held >> v & 1) for held in range(full + 1)]
    best: dict[tuple[int, int], float] = {(0, 0): 0.0}
    came: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    queue = [(0.0, 0, 0)]
    while queue:
        cost, done, held = heapq.heappop(queue)
        if cost > best[done, held]:
            continue
        if done == full:
            return _path(came, (done, held))
        kept = held
        while True:  # every subset of what is held, itself first
            for op in range(count):
                now = kept | 1 << op
                if kept >> op & 1 or needs[op] & ~kept or held_bytes[now] > budget:
                    continue
                if given and not done >> op & 1 and done != (1 << op) - 1:
                    continue
                state = (done | 1 << op, now)
                if cost + costs[op] < best.get(state, float("inf")):
                    best[state] = cost + costs[op]
                    came[state] = ((done, held), op)
                    heapq.heappush(queue, (cost + costs[op], *state))
            if not kept:
                break
            kept = (kept - 1) & held
    return None


def _path(came: dict[tuple[int, int], tuple[tuple[int, int], int]], state: tuple[int, int]) -> list[int]:
    order = []
    while state in came:
        state, op = came[state]
        order.append(op)
    return order[::-1]
