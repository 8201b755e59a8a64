"""The oracle for tiny graphs: the cheapest schedule of all, by Dijkstra over what is done, held and stored.

A state is (operations computed at least once, values in memory, values in the other store). Computing `v`
needs its operands held and fits when what is held plus `v`'s output is within the budget; dropping values is
free, so a state may be left through any subset of what it holds. 3^n states (6^n with offload): in tests and
for tiny graphs. Exact.
"""

import heapq

from recoup._graph import Graph, Offload
from recoup.errors import PlanError

LARGEST = 10

State = tuple[int, int, int]


def brute_force(
    graph: Graph, budget: int, *, given: bool = False, offload: Offload | None = None
) -> list[int] | None:
    """The cheapest order within `budget`, or None if there is none.

    Args:
        graph: at most `LARGEST` operations.
        budget: bytes.
        given: first computations keep the graph's order.
        offload: what moving values costs; see `check` for how fetches are coded.
    """
    count = len(graph)
    if count > LARGEST:
        raise PlanError(f"brute force takes at most {LARGEST} operations, not {count}")
    full = (1 << count) - 1
    needs = [sum(1 << int(u) for u in graph.operands(v)) for v in range(count)]
    costs = graph.costs.tolist()
    held_bytes = [sum(int(graph.sizes[v]) for v in range(count) if held >> v & 1) for held in range(full + 1)]
    stores = offload.stores.tolist() if offload else []
    fetches = offload.fetches.tolist() if offload else []
    start = (0, 0, 0)
    best: dict[State, float] = {start: 0.0}
    came: dict[State, tuple[State, int]] = {}
    queue = [(0.0, start)]

    def offer(cost: float, state: State, before: State, code: int) -> None:
        if cost < best.get(state, float("inf")):
            best[state] = cost
            came[state] = (before, code)
            heapq.heappush(queue, (cost, state))

    while queue:
        cost, state = heapq.heappop(queue)
        done, held, stored = state
        if cost > best[state]:
            continue
        if done == full:
            return _path(came, state)
        kept = held
        while True:  # every subset of what is held, itself first
            for op in range(count):
                now = kept | 1 << op
                if kept >> op & 1 or held_bytes[now] > budget:
                    continue
                # storing is paid at the first fetch, as the machine counts it: any value computed before can
                # be
                if offload and done >> op & 1:
                    price = fetches[op] + (0.0 if stored >> op & 1 else stores[op])
                    offer(cost + price, (done, now, stored | 1 << op), state, count + op)
                if needs[op] & ~kept:
                    continue
                if given and not done >> op & 1 and done != (1 << op) - 1:
                    continue
                offer(cost + costs[op], (done | 1 << op, now, stored), state, op)
            if not kept:
                break
            kept = (kept - 1) & held
    return None


def _path(came: dict[State, tuple[State, int]], state: State) -> list[int]:
    order = []
    while state in came:
        state, code = came[state]
        order.append(code)
    return order[::-1]
