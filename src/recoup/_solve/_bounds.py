"""Bounds that hold for every schedule: on the peak, and on the cost at a budget.

Peak: no schedule is below the largest working set (operands plus output of one operation).

Cost, first computations in the given order ("cover"): when operation `t` runs for the first time, every value
computed before and read by a first computation after it is either held or computed again later. What exceeds
the budget at `t` must be among the latter, so the values that are ever computed again form a cover of all
these excesses:

    minimise sum c_v x_v, x_v in {0, 1}, so that for every t:
        sum of s_v x_v over the v live across t  >=  live_t - budget

Its linear relaxation, and its integer optimum where that is quick, bound the extra cost from below. It
ignores what recomputing `v` itself needs in memory and that a value may be needed a third time; `_exact` has
better ones for small graphs. With the order free only the cost of one pass is certain.
"""

import numpy as np
from scipy import optimize, sparse

from recoup._graph import Graph, Ints


def peak_bound(graph: Graph) -> tuple[int, int]:
    """`(bytes, operation)`: no schedule's peak is below these bytes, set by this operation's working set."""
    if not len(graph):
        return 0, -1
    sets = graph.working_sets_bytes()
    return int(sets.max()), int(np.argmax(sets))


def last_reads(graph: Graph) -> Ints:
    """Index of the last operation that reads each value (itself if none does)."""
    last = np.arange(len(graph), dtype=np.int64)
    np.maximum.at(last, graph.edges[:, 0], graph.edges[:, 1])
    return last


def given_profile(graph: Graph) -> Ints:
    """Bytes held while each operation runs when every one runs once, in the given order."""
    count = len(graph)
    change = np.zeros(count + 1, dtype=np.int64)
    change[:count] += graph.sizes
    np.subtract.at(change, last_reads(graph) + 1, graph.sizes)
    return np.cumsum(change)[:count]


def cover_bound(graph: Graph, budget: int, time_limit: float = 2.0) -> float:
    """Extra cost that every schedule within `budget` pays when first computations keep the given order."""
    excess = given_profile(graph) - budget
    rows = np.nonzero(excess > 0)[0]
    if not len(rows):
        return 0.0
    # many neighbouring rows imply one another; a bound from some of them is still a bound
    if len(rows) > 400:
        rows = np.sort(rows[np.argsort(-excess[rows], kind="stable")[:400]])
    last = last_reads(graph)
    own = np.arange(len(graph))
    entries = []
    for row, step in enumerate(rows):
        across = (own < step) & (last > step)
        across[graph.operands(int(step))] = False
        values = np.nonzero(across)[0]
        entries.append((np.full(len(values), row), values))
    scale = float(max(1, budget))
    row_ids = np.concatenate([e[0] for e in entries])
    ids = np.concatenate([e[1] for e in entries])
    matrix = sparse.csr_array((graph.sizes[ids] / scale, (row_ids, ids)), shape=(len(rows), len(graph)))
    # constraints are loosened by more than the solver's tolerance, so that rounding cannot break the bound
    constraint = optimize.LinearConstraint(matrix, lb=excess[rows] / scale * (1 - 1e-6) - 1e-9)
    total = graph.total_cost or 1.0
    result = optimize.milp(
        graph.costs / total,
        constraints=constraint,
        integrality=np.ones(len(graph)),
        bounds=optimize.Bounds(0, 1),
        options={"time_limit": time_limit, "mip_rel_gap": 1e-6},
    )
    bound = getattr(result, "mip_dual_bound", None)
    if bound is None or not np.isfinite(bound):
        return 0.0
    return max(0.0, float(bound) - 1e-9) * total
