"""Chains with a way back: the cheapest nested schedule by a dynamic program, as the start of a search.

Networks are chains of stages: a stage reads one value of the stage before it, and on the way back its part
reads what the part of the next stage leaves, its own stage and that stage's input. For the stages s to t,
with the input of s held, the cheapest way to run them and their way back within m bytes is one of

- run stage s and hold all that its way back reads, then s+1 to t, then the way back of s;
- run s to k-1 and hold only the input of k, then k to t, then s to k-1 all over again

(Rotor, Beaumont et al. 2019; without the first choice and with equal stages it is Griewank and Walther's
Revolve). O(L^3 M) for L stages and M steps of memory, in NumPy: a third of a second for 100 stages.

Exact for schedules that hold what they hold until it is read, at the resolution of M; the machine measures
what comes of it. Limits: two choices for each stage; neighbours are merged where there are more stages than
asked for; graphs that are no such chain have no such plan.
"""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recoup._graph import Floats, Graph, Ints
from recoup._solve._bounds import given_profile

FEWEST = 4
SLOTS = 256

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """Operations of one stage: forward with its output last (none in the last stage), and its way back."""

    forward: tuple[int, ...]
    back: tuple[int, ...]


def stages(graph: Graph, most: int) -> list[Stage] | None:
    """At most `most` stages of a chain with its way back, in the graph's order, or None if it is none."""
    if not len(graph):
        return None
    # it turns about where most bytes are held, or most values
    counted = Graph(graph.costs, np.minimum(graph.sizes, 1), graph.edges)
    turns = [int(np.argmax(given_profile(g))) for g in (counted, graph)]
    found = [chain for turn in dict.fromkeys(turns) if (chain := _stages(graph, turn))]
    return _merged(max(found, key=len), most) if found else None


def _merged(chain: list[Stage], most: int) -> list[Stage]:
    """Neighbours as one, all but the last, where there are too many."""
    if len(chain) <= most:
        return chain
    bounds = np.linspace(0, len(chain) - 1, most).astype(int).tolist()
    groups = [chain[a:b] for a, b in itertools.pairwise(bounds)]
    merged = [
        Stage(
            tuple(op for stage in group for op in stage.forward),
            tuple(op for stage in reversed(group) for op in stage.back),
        )
        for group in groups
    ]
    return [*merged, chain[-1]]


def _stages(graph: Graph, turn: int) -> list[Stage] | None:
    count = len(graph)
    # values before the turn that are read after each operation and until the turn
    last = np.arange(count)
    early = graph.edges[graph.edges[:, 1] <= turn]
    np.maximum.at(last, early[:, 0], early[:, 1])
    change = np.zeros(count + 1, dtype=np.int64)
    change[:count] += 1
    np.subtract.at(change, last, 1)
    across = np.cumsum(change)[:count]
    ends = [p for p in range(turn) if across[p] == 1 and last[p] > p]
    if len(ends) < FEWEST:
        return None
    stage = np.searchsorted(ends, np.arange(count)).tolist()  # of the operations up to the last end
    boundary = set(ends)
    back: list[list[int]] = [[] for _ in range(len(ends) + 1)]
    now = len(ends)
    for op in range(ends[-1] + 1, count):
        lowest, highest = 0, now
        for u in graph.operands(op).tolist():
            if u <= ends[-1]:
                lowest = max(lowest, stage[u])
                highest = min(highest, stage[u] + (u in boundary))
        if lowest > highest:
            return None
        now = highest
        stage[op] = now
        back[now].append(op)
    starts = [0, *(p + 1 for p in ends)]
    forward = [tuple(range(a, b + 1)) for a, b in zip(starts, ends, strict=False)]
    # what has no way back belongs to the stage before it
    chain: list[Stage] = []
    place = []
    for ops, parts in zip([*forward, ()], back, strict=True):
        if chain and not parts:
            chain[-1] = Stage(chain[-1].forward + ops, chain[-1].back)
        else:
            chain.append(Stage(ops, tuple(parts)))
        place.append(len(chain) - 1)
    # what a part of the way back leaves is read by the next part at the latest
    for u, v in graph.edges.tolist():
        if u > ends[-1] and place[stage[u]] - place[stage[v]] > 1 and graph.sizes[u]:
            return None
    return chain if len(chain) >= FEWEST and not chain[-1].forward else None


class Program:
    """The tables: `cost[l][s, m]` is the least cost of the stages s to s+l within m steps of memory."""

    def __init__(self, graph: Graph, chain: list[Stage], budget: int, slots: int = SLOTS) -> None:
        self.chain = chain
        self.unit = max(1.0, budget / slots)
        self.room = int(budget / self.unit)
        length = len(chain)
        costs = graph.costs
        self.output = np.zeros(length, dtype=np.int64)
        # what the way back of the next stage leaves for this one
        self.left = np.zeros(length, dtype=np.int64)
        # all that the way back of this stage reads, and its output
        self.held = np.zeros(length, dtype=np.int64)
        self.plain: list[tuple[int, ...]] = []  # operations that the output needs
        self.again: list[tuple[int, ...]] = []  # operations that the way back needs
        peaks = np.zeros((4, length), dtype=np.int64)
        price = np.zeros((3, length))
        for s, stage in enumerate(chain):
            inputs = {chain[s - 1].forward[-1]} if s else set()
            own, parts = set(stage.forward), set(stage.back)
            read = {u for op in stage.back for u in graph.operands(op).tolist()}
            arrives = read - own - parts - inputs
            leaves = {u for u in parts if any(v not in parts for v in graph.users(u).tolist())}
            output = set(stage.forward[-1:])
            kept = (read & own) | output
            self.plain.append(_needed(graph, stage.forward, output))
            self.again.append(_needed(graph, stage.forward, read & own))
            self.output[s] = self._steps(graph, output)
            self.left[s] = self._steps(graph, arrives)
            self.held[s] = self._steps(graph, kept)
            peaks[:, s] = [
                self._peak(graph, self.plain[s], inputs, output, ()),
                self._peak(graph, stage.forward, inputs, kept, ()),
                self._peak(graph, stage.back, inputs, leaves, kept | arrives),
                self._peak(graph, (*self.again[s], *stage.back), inputs, leaves, arrives),
            ]
            price[:, s] = [
                costs[list(self.plain[s])].sum(),
                costs[list(stage.forward)].sum() + costs[list(stage.back)].sum(),
                costs[list(self.again[s])].sum() + costs[list(stage.back)].sum(),
            ]
        self.peaks, self.price = peaks, price
        self.sums = np.concatenate([[0.0], np.cumsum(price[0])])
        self.cost: list[Table] = []
        self._below_output: list[Table] = []
        self._below_held: list[Table] = []
        for span in range(length):
            self.cost.append(self._span(span))
            rows = self.cost[span]
            before = np.arange(length - span) - 1
            self._below_output.append(_shifted(rows, self.output[before]))
            self._below_held.append(_shifted(rows, self.held[before]))

    def _steps(self, graph: Graph, values: Iterable[int]) -> int:
        return int(np.ceil(graph.sizes[list(values)].sum() / self.unit))

    def _peak(
        self,
        graph: Graph,
        ops: tuple[int, ...],
        outside: Collection[int],
        kept: Collection[int],
        there: Collection[int],
    ) -> int:
        """Most memory while `ops` run: `there` from the start, `kept` to the end, `outside` not counted."""
        last = {u: i for i, op in enumerate(ops) for u in (op, *graph.operands(op).tolist())}
        first = {op: i for i, op in enumerate(ops)}
        change = np.zeros(len(ops) + 2, dtype=np.int64)
        for v in {*last, *there}:
            if v not in outside:
                change[0 if v in there else first.get(v, 0)] += graph.sizes[v]
                change[len(ops) if v in kept else last.get(v, 0) + 1] -= graph.sizes[v]
        return int(np.ceil(np.cumsum(change).max() / self.unit))

    def _span(self, span: int) -> Table:
        rows = len(self.chain) - span
        if span == 0:
            steps = np.arange(self.room + 1)
            return np.where(steps >= self.peaks[3][:, None], self.price[2][:, None], np.inf)
        first = np.arange(rows)
        best = self._hold(span, first)
        need = np.zeros(rows, dtype=np.int64)
        for cut in range(1, span + 1):
            need = self._longer(need, cut, first)
            np.minimum(best, self._restart(span, cut, need, first), out=best)
        return best

    def _hold(self, span: int, first: Ints) -> Table:
        """The first choice, from each of the stages `first`."""
        need = np.maximum(self.peaks[1][first] + self._last(first + span), self.peaks[2][first])
        found = self._below_held[span - 1][first + 1] + self.price[1][first][:, None]
        return self._within(found, need)

    def _longer(self, need: Ints, cut: int, first: Ints) -> Ints:
        """Memory that running one stage more takes, the `cut`-th from each of the stages `first`."""
        at = first + cut - 1
        before = self.output[at - 1] if cut > 1 else np.zeros_like(at)
        longer: Ints = np.maximum(need, self.peaks[0][at] + before)
        return longer

    def _restart(self, span: int, cut: int, need: Ints, first: Ints) -> Table:
        """The second choice, with the input of the stage `cut` after each of the stages `first` held."""
        found = self._below_output[span - cut][first[0] + cut : first[-1] + cut + 1].copy()
        found += self.cost[cut - 1][first[0] : first[-1] + 1]
        found += (self.sums[first + cut] - self.sums[first])[:, None]
        return self._within(found, need + self._last(first + span))

    def _within(self, found: Table, need: Ints) -> Table:
        # below its need nothing runs; mostly the tables say so already
        for row in np.nonzero(need > 0)[0].tolist():
            found[row, : need[row]] = np.inf
        return found

    def _last(self, stage: Ints) -> Ints:
        # what is there before the way back of the stages begins: nothing at the end of the chain
        return np.where(stage < len(self.chain) - 1, self.left[stage], 0)

    def order(self) -> list[int] | None:
        """The schedule, or None if there is none within the budget."""
        if not np.isfinite(self.cost[-1][0, self.room]):
            return None
        result: list[int] = []
        ran: set[int] = set()

        def forward(s: int, ops: tuple[int, ...]) -> None:
            # all of it for the first time: first computations keep the graph's order
            result.extend(ops if s in ran else self.chain[s].forward)
            ran.add(s)

        def run(s: int, span: int, room: int) -> None:
            stage = self.chain[s]
            if span == 0:
                forward(s, self.again[s])
                result.extend(stage.back)
                return
            row = np.array([s])
            choices = [self._hold(span, row)[0, room]]
            need = np.zeros(1, dtype=np.int64)
            for cut in range(1, span + 1):
                need = self._longer(need, cut, row)
                choices.append(self._restart(span, cut, need, row)[0, room])
            cut = int(np.argmin(choices))
            if cut == 0:
                forward(s, stage.forward)
                run(s + 1, span - 1, room - int(self.held[s]))
                result.extend(stage.back)
                return
            for j in range(s, s + cut):
                forward(j, self.plain[j])
            run(s + cut, span - cut, room - int(self.output[s + cut - 1]))
            run(s, cut - 1, room)

        run(0, len(self.chain) - 1, self.room)
        return result


def chain_order(graph: Graph, budget: int, most: int) -> list[int] | None:
    """A schedule of a chain with its way back, in at most `most` stages; None where the graph is no chain or
    nothing is within the budget."""
    chain = stages(graph, most)
    return None if chain is None else Program(graph, chain, budget).order()


def _needed(graph: Graph, ops: tuple[int, ...], wanted: Collection[int]) -> tuple[int, ...]:
    need = set(wanted)
    for op in reversed(ops):
        if op in need:
            need.update(graph.operands(op).tolist())
    return tuple(op for op in ops if op in need)


def _shifted(rows: Floats, by: Ints) -> Table:
    """Each row moved to the right by so many steps: the cost within what is left of the memory."""
    width = rows.shape[1]
    source = np.arange(width)[None, :] - by[:, None]
    found = np.take_along_axis(rows, np.maximum(source, 0), axis=1)
    return np.where(source >= 0, found, np.inf)
