"""Which values to keep so that everything a later reader needs can be had: a minimum cut. No JAX.

Idea: a needed value is either kept (it costs its bytes) or recomputed (it costs price x its operation's cost,
and its operands are needed in turn). With x = "needed" and y = "recomputed" the total is a sum of submodular
terms, so one minimum cut is the optimum for a price, and a sweep over prices walks the lower hull of (bytes
kept, cost of recomputation).
Source: the min-cut partitioner of PyTorch's AOTAutograd, with costs as well as bytes in the objective.
Limits: peaks and the order of recomputation are not in the objective; the caller evaluates the result.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from recoup._program import Program


@dataclass(frozen=True)
class Cut:
    """One trade: what is kept, its bytes, which operations run again, and their cost."""

    kept: frozenset[int]
    bytes: int
    recomputed: frozenset[int]
    cost: float
    segment: int = (
        0  # of a loop cut into segments: their length in iterations (then nothing is kept but the carry)
    )


_SCALE = 2**30  # scipy's maximum flow takes 32-bit capacities


def cheapest_kept(
    program: Program,
    needed: Collection[int],
    price: float,
    *,
    recomputable: Sequence[bool],
    free: Collection[int] = (),
) -> set[int]:
    """The values to keep at `price` bytes per unit of cost.

    Args:
      needed: values that late readers need.
      recomputable: for each operation, whether it may be repeated.
      free: values that are there anyway (arguments, constants, results).

    Returns:
      The kept values, `free` ones apart.
    """
    ops, values = program.ops, program.values
    free = set(free)
    reach: list[int] = []
    seen: set[int] = set()
    stack = [v for v in needed if v not in free and values[v].producer >= 0]
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        reach.append(v)
        producer = values[v].producer
        if recomputable[producer]:
            stack += [
                u for u in ops[producer].reads if u not in free and values[u].producer >= 0 and u not in seen
            ]
    if not reach:
        return set()
    producers = sorted({values[v].producer for v in reach})
    value_node = {v: 2 + i for i, v in enumerate(reach)}
    op_node = {o: 2 + len(reach) + i for i, o in enumerate(producers)}
    total = sum(values[v].bytes for v in reach) or 1
    unit = (_SCALE - len(reach)) / total

    def capacity(amount: float) -> int:
        return int(min(_SCALE - 1, max(1, round(amount * unit))))

    infinite = _SCALE
    edges: dict[tuple[int, int], int] = {}
    for v in needed:
        if v in value_node:
            edges[0, value_node[v]] = infinite
    for v, node in value_node.items():
        edges[node, op_node[values[v].producer]] = capacity(values[v].bytes)
    for o, node in op_node.items():
        if recomputable[o]:
            edges[node, 1] = capacity(price * ops[o].cost)
            for u in ops[o].reads:
                if u in value_node:
                    edges[node, value_node[u]] = infinite
        else:
            edges[node, 1] = infinite
    size = 2 + len(reach) + len(producers)
    index = np.array(list(edges), dtype=np.int32)
    weight = np.array(list(edges.values()), dtype=np.int32)
    graph = csr_array((weight, (index[:, 0], index[:, 1])), shape=(size, size))
    flow = maximum_flow(graph, 0, 1).flow
    residual = graph - flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    side = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
    return {v for v in reach if value_node[v] in side and op_node[values[v].producer] not in side}


def sweep(
    program: Program,
    needed: Collection[int],
    *,
    recomputable: Sequence[bool],
    free: Collection[int] = (),
    limit: int = 16,
) -> list[Cut]:
    """The lower hull of (bytes kept, cost), from the most bytes down: each cut is the best at some price."""
    free = frozenset(free)

    def cut(price: float) -> Cut:
        kept = frozenset(cheapest_kept(program, needed, price, recomputable=recomputable, free=free))
        again = recomputed(program, needed, kept, recomputable=recomputable, free=free)
        size = sum(program.values[v].bytes for v in kept)
        return Cut(kept, size, again, sum(program.ops[o].cost for o in again))

    least, most = cut(0.0), cut(1e12)
    found = {least.kept: least, most.kept: most}
    work = [(most, least)]
    while work and len(found) < limit:
        # The widest gap first, so that a limit on the number of cuts leaves no large hole.
        work.sort(key=lambda pair: pair[0].bytes - pair[1].bytes)
        high, low = work.pop()
        if low.cost <= high.cost or high.bytes <= low.bytes:
            continue
        middle = cut((high.bytes - low.bytes) / (low.cost - high.cost))
        if middle.kept not in found:
            found[middle.kept] = middle
            work += [(high, middle), (middle, low)]
    return sorted(found.values(), key=lambda c: -c.bytes)


def front(
    program: Program,
    needed: Collection[int],
    *,
    recomputable: Sequence[bool],
    free: Collection[int] = (),
    most_heavy: int = 6,
) -> list[Cut]:
    """Cuts between those of the hull too: the Pareto front over which heavy operations may run again.

    The hull skips every trade inside a dent. With few heavy operations (`most_heavy`, the dearest) each
    subset of them is tried.
    """
    hull = sweep(program, needed, recomputable=recomputable, free=free)
    again = sorted(
        {o for cut in hull for o in cut.recomputed if program.ops[o].heavy},
        key=lambda o: -program.ops[o].cost,
    )
    found = {cut.kept: cut for cut in hull}
    chosen = again[:most_heavy]
    for mask in range(2 ** len(chosen) - 1):
        allowed = list(recomputable)
        for i, o in enumerate(chosen):
            allowed[o] = bool(mask >> i & 1)
        for cut in sweep(program, needed, recomputable=allowed, free=free, limit=4):
            found.setdefault(cut.kept, cut)
    best: list[Cut] = []
    for cut in sorted(found.values(), key=lambda c: (c.cost, c.bytes)):
        if not best or cut.bytes < best[-1].bytes:
            best.append(cut)
    return best


def recomputed(
    program: Program,
    needed: Collection[int],
    kept: Collection[int],
    *,
    recomputable: Sequence[bool],
    free: Collection[int] = (),
) -> frozenset[int]:
    """The operations that must run again for the needed values when only `kept` and `free` ones are there."""
    ops: set[int] = set()
    stack = list(needed)
    while stack:
        v = stack.pop()
        p = program.values[v].producer
        if p < 0 or v in kept or v in free or p in ops or not recomputable[p]:
            continue
        ops.add(p)
        stack += program.ops[p].reads
    return frozenset(ops)
