"""The whole curve of memory against recomputation, in about the time of one solve.

Budgets from large to small, each search starting from the schedule of the one before; then every budget takes
the cheapest schedule found for it or for any smaller one, and what is dominated goes. So a smaller budget
never has a cheaper schedule or a higher peak, by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recoup._graph import Graph
from recoup._solve._bounds import given_profile, peak_bound
from recoup._solve._portfolio import solve
from recoup._solve._schedule import Schedule
from recoup.errors import InfeasibleError


@dataclass(frozen=True)
class Curve:
    """Schedules from the largest budget to the smallest that was met; peaks fall, costs rise.

    Attributes:
        points: one schedule for each budget that was met, largest budget first.
        knee: index of the point farthest below the straight line between the ends (peak and cost each as a
            share of their range): past it, bytes get dear.
        infeasible_bytes: budgets for which nothing was found.
    """

    points: tuple[Schedule, ...]
    knee: int
    infeasible_bytes: tuple[int, ...]


def curve(
    graph: Graph,
    budgets: Sequence[int] | None = None,
    *,
    points: int = 12,
    time_limit: float = 12.0,
    order: str = "free",
    seed: int = 0,
    moves: int | None = None,
) -> Curve:
    """Schedules for many budgets.

    Args:
        graph: costs, bytes and edges.
        budgets: bytes; without them, `points` budgets spread evenly from the peak of one pass to the largest
            working set.
        points: how many budgets.
        time_limit: seconds for all of them together (without `moves`).
        order, seed: as in `solve`.
        moves: search moves for each budget, instead of a time.
    """
    if budgets is None:
        top, floor = int(given_profile(graph).max()), peak_bound(graph)[0]
        budgets = [int(b) for b in np.linspace(top, floor, points)]
    falling = sorted({int(b) for b in budgets}, reverse=True)
    found: list[Schedule] = []
    missed: list[int] = []
    for budget in falling:
        start = found[-1].order if found else None
        limit = None if moves is not None else time_limit / len(falling)
        try:
            found.append(
                solve(graph, budget, time_limit=limit, order=order, seed=seed, moves=moves, start=start)
            )
        except InfeasibleError:
            missed.append(budget)
    for i in range(len(found) - 2, -1, -1):
        here, smaller = found[i], found[i + 1]
        if smaller.cost <= here.cost or (smaller.cost == here.cost and smaller.peak_bytes < here.peak_bytes):
            found[i] = replace(
                smaller, budget_bytes=here.budget_bytes, lower_bound=min(here.lower_bound, smaller.cost)
            )
    at = knee([p.peak_bytes for p in found], [p.cost for p in found])
    return Curve(tuple(found), at, tuple(missed))


def knee(peaks_bytes: Sequence[float], costs: Sequence[float]) -> int:
    """Index of the point farthest below the straight line between the ends; peaks fall, costs rise."""
    if len(peaks_bytes) < 3:
        return 0
    peaks, prices = np.array(peaks_bytes, dtype=float), np.array(costs, dtype=float)
    width, height = peaks[0] - peaks[-1], prices[-1] - prices[0]
    if width <= 0 or height <= 0:
        return len(peaks) - 1
    below = (peaks[0] - peaks) / width - (prices - prices[0]) / height
    return int(np.argmax(below))
