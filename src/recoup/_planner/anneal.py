"""Rungs from the solver of general graphs: the ladder's own schedules, annealed between its rungs. No JAX.

Idea: zones and minimum cuts decide for many values at once; the annealer of `_solve` moves single ones. An
operation that has no buffer (it is computed inside its readers) is folded into them; what is left is a Graph
whose first computations keep the traced order and whose repeats may run where a window opens, for only
there a barrier can hold them. Each search starts from the cheapest rung within its target and takes a number
of moves, not seconds: the same plan everywhere.
Limits: the graph knows nothing of memory that is shared in place or lent by results, so targets are peaks of
its own, and the machine has the word on what comes out.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recoup._graph import Graph
from recoup._planner import _core
from recoup._planner.layout import Layout
from recoup._program import Program
from recoup._solve import check
from recoup._solve._search import Search

_MOVES = 128  # for each operation of the graph
_IN_ALL = 600_000  # moves of all searches for one program
_ROOM = 12  # holes where a window opens
_BELOW = 0.92  # of the lowest rung's peak: the last target


class Priced(Protocol):
    """A schedule and what its repeats cost."""

    @property
    def schedule(self) -> tuple[int, ...]: ...
    @property
    def cost(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Condensed:
    """A program as a graph of the operations whose results have buffers."""

    graph: Graph
    ops: tuple[int, ...]  # of each node, its operation
    inside: tuple[tuple[int, ...], ...]  # of each node, its operation and those computed inside it, in order
    places: tuple[int, ...]  # holes before each node's first computation
    once: tuple[int, ...]  # nodes that may not run again: no use in recomputing what comes last
    node: tuple[int, ...]  # of each operation, its node; -1 for those that are folded

    def folded(self, schedule: Iterable[int]) -> list[int]:
        """A schedule of the program as an order of the graph."""
        return [self.node[o] for o in schedule if self.node[o] >= 0]

    def unfolded(self, order: Iterable[int], plan: Layout) -> tuple[int, ...]:
        """An order of the graph as a schedule of the program: repeats where the next window opens."""
        schedule: list[int] = []
        group: set[int] = set()
        following = 0  # the next operation to run first
        for node in order:
            op = self.ops[node]
            if op < following:
                group.update(self.inside[node])
                continue
            # what is folded into later operations keeps its place, and a group opens its operation's window
            opens = op
            while opens > following and plan.window[opens - 1] == plan.window[op]:
                opens -= 1
            schedule.extend(range(following, opens))
            schedule.extend(sorted(group))
            schedule.extend(range(opens, op + 1))
            following, group = op + 1, set()
        schedule.extend(range(following, len(plan.window)))
        return tuple(schedule)


def condense(program: Program, plan: Layout) -> Condensed:
    """Folds operations without a buffer into their readers, but for those better kept than their readers."""
    ops, count = program.ops, len(program.ops)
    order = array("i", range(count))
    size, end, live = array("q", bytes(8 * count)), array("i", bytes(4 * count)), array("q", bytes(8 * count))
    _core.follow(program.tables, order, plan.windows, size, end, live)
    own = program.own_bytes
    node = [-1] * count
    reads: list[set[int]] = []  # of each operation, the nodes' operations that it needs
    within: list[set[int]] = []  # and what is computed inside it
    kept: list[int] = []
    edges: list[tuple[int, int]] = []
    for i, op in enumerate(ops):
        needs: set[int] = set()
        inner: set[int] = set()
        for s in program.sources[i]:
            if node[s] < 0:
                needs |= reads[s]
                inner |= within[s] | {s}
            else:
                needs.add(s)
        reads.append(needs)
        within.append(inner)
        readers = {r for v in op.writes for r in program.readers[v]}
        smallest = min((own[r] for r in readers if own[r]), default=0)  # of what is made of it
        if size[i] or own[i] < smallest or not op.fusible or not op.pure or plan.free.issuperset(op.writes):
            node[i] = len(kept)
            kept.append(i)
            edges += [(node[s], node[i]) for s in needs]
    inside = tuple((*sorted(within[i]), i) for i in kept)
    costs = [sum(ops[o].cost for o in row) for row in inside]
    opened: set[int] = {0}
    places = []
    for i in kept:
        places.append(0 if plan.window[i] in opened else _ROOM)
        opened.add(plan.window[i])
    graph = Graph(costs, [own[i] for i in kept], np.array(edges, dtype=np.int64).reshape(-1, 2))
    last = max(plan.epoch, default=0)
    once = tuple(k for k, i in enumerate(kept) if not ops[i].pure or plan.epoch[i] == last)
    return Condensed(graph, tuple(kept), inside, tuple(places), once, tuple(node))


def anneal(program: Program, plan: Layout, rungs: Sequence[Priced], targets: int) -> list[tuple[int, ...]]:
    """Schedules between given ones, and below them.

    Args:
      program, plan: what is scheduled.
      rungs: the schedules to start from.
      targets: how many peaks to aim at; a large program gets fewer, or none.
    """
    small = condense(program, plan)
    moves = max(512, _MOVES * len(small.graph) // 512 * 512)
    targets = min(targets, _IN_ALL // moves)
    if targets < 2 or not any(small.places):
        return []
    starts = []
    for rung in rungs:
        order = small.folded(rung.schedule)
        starts.append((check(small.graph, order, given=True).peak_bytes, rung.cost, order))
    high, low = max(peak for peak, _, _ in starts), min(peak for peak, _, _ in starts)
    found = []
    for peak in dict.fromkeys([*np.geomspace(max(1, high), max(1, low), targets - 1).tolist(), _BELOW * low]):
        within = [start for start in starts if start[0] <= peak] or [min(starts, key=lambda s: s[0])]
        start = min(within, key=lambda s: s[1])[2]
        search = Search(small.graph, int(peak), [start], False, 0, places=small.places, once=small.once)
        search.run(moves, math.inf)
        found.append(small.unfolded(search.order or search.lowest, plan))
    return found
