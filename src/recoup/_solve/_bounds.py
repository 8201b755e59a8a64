"""Bounds that hold for every schedule: on the peak, and on the cost at a budget.

Peak: no schedule is below the largest working set (operands plus output of one operation).

Cost ("cover"): when operation `t` runs for the first time, every value that must have been computed before
and must be read by a first computation after it is either held or computed again later. What exceeds the
budget at `t` must be among the latter, so the values that are ever computed again form a cover of all these
excesses:

    minimise sum c_v x_v, x_v in {0, 1}, so that for every t:
        sum of s_v x_v over the v across t  >=  (bytes of all v across t, operands and output of t) - budget

With the order given, `v` is across `t` when it comes before `t` and one of its users after. With the order
free it must hold in every order: `v` is an ancestor of `t` and one of its users a descendant (in a training
step: the activations across the loss). The integer optimum is taken where it is quick, the linear relaxation
of sampled rows otherwise. On networks at moderate budgets it is the optimum itself and proves it
(docs/planners.md). It ignores the memory that recomputing takes, so it is weak at tight budgets and on random
graphs.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from recoup._graph import Graph, Ints, Offload

Bools = NDArray[np.bool_]

DENSE = 1500  # operations up to which every row is looked at
MOST_ROWS = 400
SAMPLED_ROWS = 24


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


def cover_bound(
    graph: Graph,
    budget: int,
    *,
    free: bool = False,
    time_limit: float = 2.0,
    offload: Offload | None = None,
) -> float:
    """Extra cost, beyond one full pass, that every schedule within `budget` pays.

    Args:
        graph: the problem.
        budget: bytes.
        free: first computations may run in any legal order; else they keep the graph's.
        time_limit: seconds for the integer program; a bound is returned whatever it reaches.
        offload: what moving values costs; a value not held may then be fetched back instead.
    """
    if offload is not None:
        again = np.minimum(graph.costs, offload.stores + offload.fetches)
        cheaper = Graph(again, graph.sizes, graph.edges)
        return cover_bound(cheaper, budget, free=free, time_limit=time_limit)
    over = np.nonzero(given_profile(graph) > budget)[0]
    if not len(over):
        return 0.0
    dense = len(graph) <= DENSE
    if not dense:
        # neighbouring rows say nearly the same: the fullest, and some spread over the order
        fullest = int(np.argmax(given_profile(graph)))
        over = np.unique([*over[np.linspace(0, len(over) - 1, SAMPLED_ROWS - 1).astype(int)], fullest])
    across = across_free(graph, over) if free else across_given(graph, over)
    held = across.copy()
    for row, step in enumerate(over.tolist()):
        across[row, graph.operands(step)] = False
        held[row, graph.operands(step)] = True
        held[row, step] = True
    excess = held @ graph.sizes - budget
    keep = np.nonzero(excess > 0)[0]
    if not len(keep):
        return 0.0
    if len(keep) > MOST_ROWS:
        keep = np.sort(keep[np.argsort(-excess[keep], kind="stable")[:MOST_ROWS]])
    across, excess = across[keep], excess[keep]
    single = max(_knapsack(graph, row, int(e)) for row, e in zip(across, excess, strict=True))
    return max(single, _program(graph, across, excess, budget, integer=dense, time_limit=time_limit))


def across_given(graph: Graph, steps: Ints) -> Bools:
    """Values before each step (a row each) that are read after it, in the given order."""
    last = last_reads(graph)
    own = np.arange(len(graph))
    return (own[None, :] < steps[:, None]) & (last[None, :] > steps[:, None])


def across_free(graph: Graph, steps: Ints) -> Bools:
    """Ancestors of each step one of whose users is a descendant of it."""
    count = len(graph)
    operands, users = graph.operand_lists(), graph.user_lists()
    result = np.zeros((len(steps), count), dtype=bool)
    sources, readers = graph.edges[:, 0], graph.edges[:, 1]
    for row, step in enumerate(steps.tolist()):
        before = reach(step, operands, count)
        after = reach(step, users, count)
        result[row, sources[before[sources] & after[readers]]] = True
    return result


def reach(start: int, neighbours: list[list[int]], count: int) -> Bools:
    """Everything that `start` leads to, itself left out."""
    seen = bytearray(count)
    stack = [start]
    while stack:
        for other in neighbours[stack.pop()]:
            if not seen[other]:
                seen[other] = 1
                stack.append(other)
    return np.frombuffer(seen, dtype=np.uint8).astype(bool)


def _knapsack(graph: Graph, across: Bools, excess: int) -> float:
    """The bound of one row alone, fractional: cheapest bytes first."""
    values = np.nonzero(across & (graph.sizes > 0))[0]
    if int(graph.sizes[values].sum()) < excess:
        return float(graph.costs[values].sum())  # no schedule exists at all
    order = values[np.argsort(graph.costs[values] / graph.sizes[values], kind="stable")]
    freed = np.cumsum(graph.sizes[order])
    last = int(np.searchsorted(freed, excess))
    before = int(freed[last - 1]) if last else 0
    part = (excess - before) / int(graph.sizes[order[last]])
    return float(graph.costs[order[:last]].sum() + part * graph.costs[order[last]])


def _program(
    graph: Graph, across: Bools, excess: Ints, budget: int, *, integer: bool, time_limit: float
) -> float:
    columns = np.nonzero(across.any(axis=0) & (graph.sizes > 0))[0]
    if not len(columns):
        return 0.0
    scale = float(max(1, budget))
    matrix = sparse.csr_array(across[:, columns] * (graph.sizes[columns] / scale))
    # loosened by more than the solver's tolerance, so that rounding cannot break the bound
    constraint = optimize.LinearConstraint(matrix, lb=excess / scale * (1 - 1e-6) - 1e-9)
    total = graph.total_cost or 1.0
    result = optimize.milp(
        graph.costs[columns] / total,
        constraints=constraint,
        integrality=np.full(len(columns), int(integer)),
        bounds=optimize.Bounds(0, 1),
        options={"time_limit": max(0.1, time_limit), "mip_rel_gap": 0.0},
    )
    bound = result.mip_dual_bound if integer else (result.fun if result.success else None)
    if bound is None or not np.isfinite(bound):
        return 0.0
    return max(0.0, float(bound) - 1e-9) * total
