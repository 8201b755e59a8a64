"""`solve`: the portfolio, chosen by measurement (docs/planners.md).

1. A budget that one pass already meets: nothing is computed twice, proved.
2. A budget below the largest working set: refused with the operation that sets it.
3. Small graphs: a search over states (`_exact`), proved where it finishes; with offload, brute force.
4. Moves over a link that takes time: annealing with a clock (`_linked`), and a bound.
5. Everything else: annealing (`_search`) for a moment, bounds that are often a proof (`_bounds`, `_cut`), and
   annealing for the rest of the time if they are not. Large graphs start from the plan of the relaxation.
   Of a chain with its way back the dynamic program (`_chain`) is looked at in between, and annealing goes on
   from it where it is cheaper.
"""

import time
from collections.abc import Sequence

import numpy as np

from recoup._graph import Graph, Ints, Offload
from recoup._solve._annealer import COMPILED
from recoup._solve._bounds import cover_bound, given_profile, peak_bound
from recoup._solve._brute import brute_force
from recoup._solve._brute_link import brute_force_link
from recoup._solve._chain import chain_order
from recoup._solve._check import check
from recoup._solve._cut import peak_cut, planned, realise
from recoup._solve._exact import LARGEST as SMALL
from recoup._solve._exact import Exact, exact
from recoup._solve._linked import Linked, computations
from recoup._solve._schedule import PROOF, Schedule
from recoup._solve._search import COPIES, UNIT, Search
from recoup.errors import InfeasibleError, PlanError

DEFAULT_SECONDS = 10.0
BRUTE = 8  # operations up to which brute force answers at once, with offload
# operations from which the search starts from the relaxation's plan; below, it finds better alone
LARGE = 2000
STAGES = 200  # of a chain; half as many where there is little time
NO_LIMIT = 1 << 60


def solve(
    graph: Graph,
    budget: int,
    *,
    time_limit: float | None = None,
    order: str = "free",
    seed: int = 0,
    moves: int | None = None,
    start: Sequence[int] | Ints | None = None,
    offload: Offload | None = None,
) -> Schedule:
    """The cheapest schedule found whose peak is within the budget.

    Args:
        graph: costs, bytes and edges.
        budget: bytes that no step may exceed.
        time_limit: seconds; 10 unless `moves` is given. A good schedule is there within the first second on
            graphs of up to 1000 operations; it gets better until the limit, and stops earlier when proved
            optimal.
        order: "free" if first computations may run in any legal order, "given" if they keep the graph's.
        seed: of the search. The same seed, start and number of moves give the same schedule.
        moves: search moves to make, instead of a time: for results that do not depend on the machine's speed.
        offload: what moving values to another store costs, or None. Index `len(graph) + v` in the schedule's
            order is then a fetch of the value of `v`; its store is implied and paid once. Where moves take
            time on a link, `2 * len(graph) + v` is where the store has ended, and the cost includes waits.
        start: a legal schedule to begin from, within the budget or not; the graph's order without one.

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
    given = np.arange(len(graph))
    first = given if start is None else np.asarray(start, dtype=np.int64)
    if start is not None:
        check(graph, first, given=not free, offload=offload)

    def result(found: Sequence[int] | Ints, extra: float, method: str, made: int = 0) -> Schedule:
        # `extra` is a lower bound of the extra cost; infinite when the schedule is optimal by construction
        checked = check(graph, found, budget, given=not free, offload=offload)
        return Schedule(
            order=np.asarray(found, dtype=np.int64),
            cost=checked.cost,
            peak_bytes=checked.peak_bytes,
            budget_bytes=budget,
            base_cost=graph.total_cost,
            lower_bound=min(checked.cost, graph.total_cost + extra),
            peak_bound_bytes=peak_bound(graph)[0],
            method=method,
            moves=made,
            seconds=time.monotonic() - began,
        )

    unplanned = int(given_profile(graph).max()) if len(graph) else 0
    if unplanned <= budget:
        return result(given, np.inf, "one pass fits")
    floor, operation = peak_bound(graph)
    if budget < floor:
        raise InfeasibleError(budget, unplanned, floor, operation, proved=True)
    deadline = began + time_limit
    states = 0.0  # lower bound of the cost by the search over states
    timed = offload is not None and offload.timed
    if offload is not None and not timed and len(graph) <= BRUTE:
        cheapest = brute_force(graph, budget, given=not free, offload=offload)
        if cheapest is None:
            raise InfeasibleError(budget, unplanned, floor, operation, proved=True)
        return result(cheapest, np.inf, "brute force")
    if (offload is None and len(graph) <= SMALL) or (timed and len(graph) <= BRUTE):
        until = min(deadline, began + 0.3 * time_limit)
        decided = _by_states(graph, budget, offload, given=not free, deadline=until)
        if decided.order is not None:
            return result(decided.order, np.inf, "best-first search over states")
        if decided.finished:
            raise InfeasibleError(budget, unplanned, floor, operation, proved=True)
        states = decided.lower_bound
    relaxed = None if offload else peak_cut(graph, budget, free=free, time_limit=0.3 * time_limit)
    starts = [computations(graph, first) if timed else first.tolist()]
    aside: list[list[int]] = []  # schedules that the search has no room for
    if not _fits_search(graph, starts[0]):
        aside, starts = [] if timed else starts, [given.tolist()]
    if relaxed is not None and len(graph) > LARGE:
        held = peak_cut(graph, budget, free=False, time_limit=0.3 * time_limit) if free else relaxed
        if held is not None:
            follows = realise(graph, given, held)
            starts = [follows] if start is None else [follows, *starts]
    method = "annealing" if COMPILED else "annealing, interpreted (no compiler at installation: slower)"
    if offload is not None and offload.timed:
        extra, plan = planned(graph, budget, offload, 0.3 * time_limit)
        if free:
            limit = peak_cut(graph, budget, free=True, time_limit=0.1 * time_limit, offload=offload)
            extra = limit.extra_cost if limit else 0.0
        extra = max(extra, states - graph.total_cost)
        begin = None if start is None else first.tolist()
        linked = Linked(graph, budget, starts[0], plan, begin, free, seed, offload)
        most = NO_LIMIT if moves is None else moves
        linked.run(most, deadline, graph.total_cost * (1 + 0.9 * PROOF) + extra)
        if linked.order is None:
            raise InfeasibleError(budget, linked.lowest_bytes, floor, operation, proved=False)
        return result(linked.order, extra, method, linked.moves)
    search = Search(graph, budget, starts, free, seed, offload)
    enough = UNIT + len(graph)  # nothing computed twice; costs are rounded to integers
    if moves is None:
        search.run(NO_LIMIT, min(deadline, began + 0.05 * time_limit), enough)
    else:
        search.run(moves, deadline, enough)
    seconds = min(5.0, 0.3 * time_limit)
    extra = cover_bound(graph, budget, free=free, time_limit=seconds, offload=offload)
    extra = max(extra, states - graph.total_cost)
    if relaxed is not None:
        extra = max(extra, relaxed.extra_cost)
    chained = None
    if search.order is None or search.cost > enough + (extra / (graph.total_cost or 1.0) + PROOF) * UNIT:
        stages = STAGES if time_limit >= DEFAULT_SECONDS / 2 else STAGES // 2
        chained = _chain(graph, budget, search.order, offload, stages)
        if chained is not None and _fits_search(graph, chained):
            made, search = search.moves, Search(graph, budget, [chained], free, seed, offload)
            search.moves = made
            method = f"dynamic program of a chain, {method}"
        elif chained is not None:
            aside.append(chained)
    if moves is None:
        enough += int((extra / (graph.total_cost or 1.0) + 0.9 * PROOF) * UNIT)
        search.run(NO_LIMIT, deadline, enough)
    best = search.order
    for other in aside:
        checked = check(graph, other, offload=offload)
        cheaper = best is None or checked.cost < check(graph, best, offload=offload).cost
        if checked.peak_bytes <= budget and cheaper:
            best, method = other, "dynamic program of a chain" if other is chained else "the given start"
    if best is None:
        raise InfeasibleError(budget, search.lowest_bytes, floor, operation, proved=False)
    return result(best, extra, method, search.moves)


def _by_states(graph: Graph, budget: int, offload: Offload | None, *, given: bool, deadline: float) -> Exact:
    if offload is None:
        return exact(graph, budget, given=given, deadline=deadline)
    return brute_force_link(graph, budget, offload, given=given, deadline=deadline)


def _chain(
    graph: Graph, budget: int, found: list[int] | None, offload: Offload | None, most: int
) -> list[int] | None:
    """The dynamic program's schedule, if it is within the budget and cheaper than what was found."""
    order = chain_order(graph, budget, most)
    if order is None:
        return None
    checked = check(graph, order, given=True)
    if checked.peak_bytes > budget:
        return None
    if found is not None and check(graph, found, offload=offload).cost <= checked.cost:
        return None
    return order


def _fits_search(graph: Graph, order: Sequence[int]) -> bool:
    """Whether no operation runs more often than the search has room for."""
    return int(np.bincount(np.asarray(order) % len(graph)).max()) <= COPIES
