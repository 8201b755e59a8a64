"""`solve`: the portfolio, chosen by measurement (docs/planners.md).

1. A budget that one pass already meets: nothing is computed twice, proved.
2. A budget below the largest working set: refused with the operation that sets it.
3. Tiny graphs: brute force, proved.
4. Everything else: annealing (`_search`), then a bound or a proof with the time that is left (`_bounds`,
`_exact`).
"""

import time

import numpy as np

from recoup._graph import Graph
from recoup._solve._annealer import COMPILED
from recoup._solve._bounds import cover_bound, given_profile, peak_bound
from recoup._solve._brute import brute_force
from recoup._solve._check import check
from recoup._solve._schedule import Schedule
from recoup._solve._search import UNIT, Search
from recoup.errors import InfeasibleError, PlanError

DEFAULT_SECONDS = 10.0
BRUTE = 7  # operations up to which brute force answers at once


def solve(
    graph: Graph,
    budget: int,
    *,
    time_limit: float | None = None,
    order: str = "free",
    seed: int = 0,
    moves: int | None = None,
) -> Schedule:
    """The cheapest schedule found whose peak is within the budget.

    Args:
        graph: costs, bytes and edges.
        budget: bytes that no step may exceed.
        time_limit: seconds; 10 unless `moves` is given. A good schedule is there within the first second on
            graphs of up to 1000 operations; it gets better until the limit, and stops earlier when proved
            optimal.
        order: "free" if first computations may run in any legal order, "given" if they keep the graph's.
        seed: of the search. The same seed and the same number of moves give the same schedule.
        moves: search moves to make, instead of a time: for results that do not depend on the machine's speed.

    Raises:
        InfeasibleError: no schedule within the budget was found; it says whether there can be one at all.
        PlanError: an argument out of its range.
    """
    began = time.monotonic()
    if order not in ("free", "given"):
        raise PlanError(f'order is "free" or "given", not {order!r}')
    if isinstance(budget, bool) or int(budget) != budget:
        raise PlanError(f"a budget is an integer number of bytes, not {budget!r}")
    if time_limit is None:
        time_limit = DEFAULT_SECONDS if moves is None else float("inf")
    free = order == "free"
    budget = int(budget)
    floor, operation = peak_bound(graph)
    given = np.arange(len(graph))

    def result(
        found: list[int] | np.ndarray, bound: float, optimal: bool, method: str, made: int = 0
    ) -> Schedule:
        checked = check(graph, found, budget, given=not free)
        return Schedule(
            order=np.asarray(found, dtype=np.int64),
            cost=checked.cost,
            peak_bytes=checked.peak_bytes,
            budget_bytes=budget,
            base_cost=graph.total_cost,
            lower_bound=min(checked.cost, checked.cost if optimal else bound),
            peak_bound_bytes=floor,
            optimal=optimal,
            method=method,
            moves=made,
            seconds=time.monotonic() - began,
        )

    if not len(graph) or given_profile(graph).max() <= budget:
        return result(given, graph.total_cost, True, "one pass fits")
    if budget < floor:
        raise InfeasibleError(budget, int(given_profile(graph).max()), floor, operation, proved=True)
    if len(graph) <= BRUTE:
        exact = brute_force(graph, budget, given=not free)
        if exact is None:
            raise InfeasibleError(budget, int(given_profile(graph).max()), floor, operation, proved=True)
        return result(exact, 0.0, True, "brute force")

    search = Search(graph, budget, given.tolist(), free, seed)
    bound = 0.0 if free else cover_bound(graph, budget, min(2.0, 0.1 * time_limit))
    enough = int((1 + bound / (graph.total_cost or 1.0)) * UNIT) + len(graph)
    search.run(moves if moves is not None else 1 << 60, began + time_limit, enough)
    if search.order is None:
        raise InfeasibleError(budget, search.lowest_bytes, floor, operation, proved=False)
    method = "annealing" if COMPILED else "annealing, interpreted (no compiler at installation: slower)"
    return result(search.order, graph.total_cost + bound, search.cost <= enough, method, search.moves)
