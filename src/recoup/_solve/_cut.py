"""The minimum cut at one moment: which values to hold across one operation, and what the rest must cost.

When operation `t` runs for the first time within the budget, every value read both sides of it is held (h) or
computed again afterwards (x), and whatever is computed again reads operands that are held or computed again
in turn:

    minimise sum c_v x_v  subject to  h_v + x_v >= 1         for v across t
                                      x_v <= h_u + x_u       for u an operand of v, both before t
                                      sum s_v h_v + s_t <= budget,   h = 1 for operands of t

This is the partitioner of reverse-mode differentiation (values to save against values to recompute) with the
memory at `t` as its one constraint. Its linear relaxation is nearly integral and quick for 10^5 operations.
Where values may move over a link that takes time, a third choice is to store one before `t` and fetch it
after (y): h_v + x_v + y_v >= 1 and x_v <= h_u + x_u + y_u. With A the time before `t` and B the time after
it, `before` and `after` what the operations cost that come there in every order, the least cost is

    minimise A + c_t + B + sum of prices of y_v  subject to  A + c_t + B >= one full pass + sum c_v x_v,
        A >= before,   B >= after + sum c_v x_v,   A, B >= sum s_v y_v / bytes_per_cost

It gives two things: a lower bound of the extra cost, stronger than the cover bound where recomputations build
on one another, and the start of a search: hold what it holds, compute the rest again when it is first needed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from recoup._graph import Graph, Ints, Offload
from recoup._solve._bounds import across_free, across_given, given_profile, reach
from recoup._solve._check import check


@dataclass(frozen=True, eq=False)
class Cut:
    """`extra_cost` that no schedule avoids; of the relaxation, rounded, the values `held` across `step` and
    those `moved` away before it and back after it (None: there is no link)."""

    extra_cost: float
    held: NDArray[np.bool_]
    step: int
    moved: NDArray[np.bool_] | None = None


def cut(
    graph: Graph,
    step: int,
    across: NDArray[np.bool_],
    before: NDArray[np.bool_],
    budget: int,
    time_limit: float,
    offload: Offload | None = None,
    apart: tuple[float, float] = (0.0, 0.0),
) -> Cut | None:
    """Solve the relaxation at one operation.

    Args:
        graph: the problem.
        step: the operation `t`.
        across: values that are computed before `t` in every schedule and read by a first computation after
        it. before: all values computed before `t` in every schedule; closed under operands.
        budget: bytes.
        time_limit: seconds.
        offload: what moving values costs, with a rate, or None.
        apart: cost of the operations that come before and after `step` in every schedule, with `offload`.

    Returns:
        None if the solver did not finish.
    """
    operands = np.zeros(len(graph), dtype=bool)
    operands[graph.operands(step)] = True
    wanted = _closure(graph, across | operands) & before
    values = np.nonzero(wanted)[0]
    position = np.full(len(graph), -1)
    position[values] = np.arange(len(values))
    count = len(values)
    needed = position[np.nonzero(across & wanted)[0]]
    sources, readers = position[graph.edges[:, 0]], position[graph.edges[:, 1]]
    inside = (sources >= 0) & (readers >= 0)
    sources, readers = sources[inside], readers[inside]
    rows, links = len(needed), len(sources)
    covers = np.arange(rows)
    link_rows = rows + np.arange(links)
    row_ids = np.concatenate([covers, covers, link_rows, link_rows, link_rows, np.full(count, rows + links)])
    columns = np.concatenate(
        [needed, count + needed, count + readers, sources, count + sources, np.arange(count)]
    )
    scale = float(max(1, budget))
    data = np.concatenate(
        [np.ones(2 * rows), -np.ones(links), np.ones(2 * links), -graph.sizes[values] / scale]
    )
    matrix = sparse.csr_array((data, (row_ids, columns)), shape=(rows + links + 1, 2 * count))
    room = (budget - int(graph.sizes[step])) / scale * (1 + 1e-7) + 1e-9
    lower = np.concatenate([np.ones(rows), np.zeros(links), [-room]])
    least, most = np.zeros(2 * count), np.ones(2 * count)
    least[:count][operands[values]] = 1.0
    total = graph.total_cost or 1.0
    costs = graph.costs[values] / total
    objective = np.concatenate([np.zeros(count), costs])
    if offload is not None:
        # columns y, A, B beside h and x; A and B as what they exceed their least by
        movable = offload.movable[values]
        prices = np.where(movable, offload.stores[values] + offload.fetches[values], 0.0) / total
        takes = graph.sizes[values] / offload.bytes_per_cost / total
        before_least, after_least = (part / total for part in apart)
        rest = (graph.total_cost - float(graph.costs[step])) / total - before_least - after_least
        zero = np.zeros(count)
        instead = sparse.csr_array(matrix[:, :count])
        # a value moved stands where a value held does, but takes no room
        instead[rows + links, :] = 0
        times = np.array(
            [
                [*zero, *-costs, *zero, 1, 1],
                [*zero, *-costs, *zero, 0, 1],
                [*zero, *zero, *-takes, 1, 0],
                [*zero, *zero, *-takes, 0, 1],
            ]
        )
        blank = sparse.csr_array((rows + links + 1, 2))
        matrix = sparse.vstack([sparse.hstack([matrix, instead, blank]), sparse.csr_array(times)]).tocsr()
        lower = np.concatenate([lower, np.array([rest, 0.0, -before_least, -after_least]) - 1e-9])
        least = np.concatenate([least, zero, [0, 0]])
        most = np.concatenate([most, movable, [np.inf, np.inf]])
        objective = np.concatenate([zero, zero, prices, [1, 1]])
    result = optimize.milp(
        objective,
        constraints=optimize.LinearConstraint(matrix, lb=lower),
        bounds=optimize.Bounds(least, most),
        options={"time_limit": max(0.1, time_limit)},
    )
    if not result.success:
        return None
    held, moved = np.zeros(len(graph), dtype=bool), None
    held[values] = result.x[:count] > 0.5
    extra = float(result.fun)
    if offload is not None:
        extra -= rest
        again, away = result.x[count : 2 * count], result.x[2 * count : 3 * count]
        moved = np.zeros(len(graph), dtype=bool)
        moved[values] = away > np.maximum(again, 1e-6)
    return Cut(max(0.0, extra - 1e-7) * total, held, step, moved)


def peak_cut(
    graph: Graph, budget: int, *, free: bool, time_limit: float, offload: Offload | None = None
) -> Cut | None:
    """The relaxation at the operation with the highest memory in one pass of the given order.

    With the order `free` only what holds in every legal order is asked for: values whose users must come
    after.
    """
    step = int(np.argmax(given_profile(graph)))
    steps = np.array([step])
    if free:
        across = across_free(graph, steps)[0]
        before = reach(step, graph.operand_lists(), len(graph))
        after = reach(step, graph.user_lists(), len(graph))
    else:
        across = across_given(graph, steps)[0]
        before = np.arange(len(graph)) < step
        after = np.arange(len(graph)) > step
    apart = float(graph.costs[before].sum()), float(graph.costs[after].sum())
    return cut(graph, step, across, before, budget, time_limit, offload, apart)


def _closure(graph: Graph, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    seen = values.copy()
    # operands come before their readers, so that one pass from the end suffices
    starts, ids = graph.operand_starts.tolist(), graph.operand_ids
    for v in range(len(graph) - 1, -1, -1):
        if seen[v]:
            seen[ids[starts[v] : starts[v + 1]]] = True
    return seen


def realise(graph: Graph, order: Sequence[int] | Ints, found: Cut) -> list[int]:
    """The schedule that runs `order` (every operation once), drops what `found` does not hold when its
    operation runs, and fetches it, if it is moved, or computes it again right before it is needed."""
    operands = graph.operand_lists()
    present = bytearray(len(graph))
    result: list[int] = []
    late = False
    for op in np.asarray(order).tolist():
        if late:
            stack = [op]
            while stack:
                v = stack[-1]
                if found.moved is not None and found.moved[v] and v != op and not present[v]:
                    stack.pop()
                    result.append(len(graph) + v)
                    present[v] = 1
                    continue
                missing = [u for u in operands[v] if not present[u]]
                if missing:
                    stack.extend(missing)
                    continue
                stack.pop()
                if v == op or not present[v]:
                    result.append(v)
                    present[v] = 1
        else:
            result.append(op)
            present[op] = 1
            if op == found.step:
                late = True
                keep = found.held
                present = bytearray(1 if keep[v] and present[v] else 0 for v in range(len(graph)))
                present[op] = 1
    return result


def planned(
    graph: Graph, budget: int, offload: Offload, time_limit: float, tries: int = 4
) -> tuple[float, list[int] | None]:
    """The bound at the budget in the given order, and a schedule that follows the relaxation within it.

    What the relaxation does not see (other moments, the memory of recomputing) is taken off the budget, a few
    times; the last schedule may still be over. Its moves take no time: see `_place`.
    """
    deadline = time.monotonic() + time_limit
    target, bound, order = budget, 0.0, None
    instant = Offload(offload.stores, offload.fetches)
    for _ in range(tries):
        left = deadline - time.monotonic()
        found = peak_cut(graph, target, free=False, time_limit=left, offload=offload) if left > 0 else None
        if found is None:
            break
        if order is None:
            bound = found.extra_cost
        order = realise(graph, range(len(graph)), found)
        over = check(graph, order, offload=instant).peak_bytes - budget
        if over <= 0:
            break
        target -= over
    return bound, order
