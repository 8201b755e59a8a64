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


class Network:
    """The flow network of one program and set of needed values; only prices differ between its cuts."""

    def __init__(
        self,
        program: Program,
        needed: Collection[int],
        *,
        recomputable: Sequence[bool],
        free: Collection[int] = (),
    ):
        """Builds the network.

        Args:
          program: what the values and operations belong to.
          needed: values that late readers need.
          recomputable: for each operation, whether it may be repeated.
          free: values that are there anyway (arguments, constants, results).
        """
        ops, values = program.ops, program.values
        free = set(free)
        # Nodes: 0 is the source, 1 the sink, then the values that may be needed, then their operations.
        node: dict[int, int] = {}
        stack = [v for v in needed if v not in free and values[v].producer >= 0]
        while stack:
            v = stack.pop()
            if v in node:
                continue
            node[v] = 2 + len(node)
            producer = values[v].producer
            if recomputable[producer]:
                stack += [
                    u
                    for u in ops[producer].reads
                    if u not in free and values[u].producer >= 0 and u not in node
                ]
        self._reach = list(node)
        producers = sorted({values[v].producer for v in self._reach})
        op_node = {o: 2 + len(node) + i for i, o in enumerate(producers)}
        self._producer_node = np.array([op_node[values[v].producer] for v in self._reach], dtype=np.int32)
        sizes = np.array([values[v].bytes for v in self._reach], dtype=np.float64)
        self._unit = (_SCALE - len(node)) / (sizes.sum() or 1)
        self._costs = np.array([ops[o].cost for o in producers])
        self._fixed = np.array([not recomputable[o] for o in producers], dtype=bool)
        must = [node[v] for v in dict.fromkeys(needed) if v in node]
        reads = [
            (op_node[o], node[u])
            for o in producers
            if recomputable[o]
            for u in dict.fromkeys(ops[o].reads)
            if u in node
        ]
        read_by, read = np.array(reads, dtype=np.int32).reshape(-1, 2).T
        first = np.arange(2, 2 + len(node), dtype=np.int32)
        self._rows = np.concatenate([np.zeros(len(must), np.int32), first, read_by, list(op_node.values())])
        self._columns = np.concatenate([must, self._producer_node, read, np.ones(len(producers), np.int32)])
        # What may not be cut has a capacity above that of all values together.
        self._weights = np.concatenate(
            [np.full(len(must), _SCALE), self._capacities(sizes), np.full(len(read), _SCALE)]
        )

    def _capacities(self, amounts: np.ndarray) -> np.ndarray:
        return np.clip(np.round(amounts * self._unit), 1, _SCALE - 1)

    def kept(self, price: float) -> set[int]:
        """The values to keep at `price` bytes per unit of cost, those apart that are free."""
        if not self._reach:
            return set()
        size = 2 + len(self._reach) + len(self._costs)
        again = np.where(self._fixed, _SCALE, self._capacities(price * self._costs))
        weights = np.concatenate([self._weights, again])
        graph = csr_array((weights.astype(np.int32), (self._rows, self._columns)), shape=(size, size))
        residual = graph - maximum_flow(graph, 0, 1).flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        source_side = np.zeros(size, dtype=bool)
        source_side[breadth_first_order(residual, 0, return_predecessors=False)] = True
        cut = source_side[2 : 2 + len(self._reach)] & ~source_side[self._producer_node]
        return {self._reach[i] for i in np.flatnonzero(cut)}


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
    network = Network(program, needed, recomputable=recomputable, free=free)

    def cut(price: float) -> Cut:
        kept = frozenset(network.kept(price))
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
