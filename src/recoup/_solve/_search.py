"""Rounds of annealing on two islands: which temperatures, from where, for how long.

Each island is one `Annealer` with its own random numbers. A round heats and cools it over a number of moves
that depends on the round alone; then the islands compare, and each starts its next round from its own best,
from the best of both or, now and then, from the start again. Temperatures are drawn anew for every round: no
one end temperature finds both dear and cheap operations. While nothing fits, the budget is lowered in steps
from the smallest peak reached so far: reaching a tight budget often takes longer than optimising within it.

Everything is a function of the seed and the number of moves; the clock only decides when to stop. The islands
run in two threads where the compiled modules let them, and one after the other otherwise, with the same
result.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recoup._graph import Graph, Offload
from recoup._solve._annealer import COMPILED, Annealer

ISLANDS = 2
SPACING = 3  # holes before each computation
REFRESH = 25_600  # moves between two loads, which spread the holes anew
SLICE = 5_120 if COMPILED else 256  # moves between two looks at the clock; no influence on the result
UNIT = 1 << 40  # one full pass in integer cost
COPIES = 8


class Island:
    """One annealer, its draws, and where its next round starts."""

    def __init__(
        self, graph: Graph, order: list[int], budget: int, free: bool, seed: int, offload: Offload | None
    ) -> None:
        total = graph.total_cost or 1.0
        costs = [round(c / total * UNIT) for c in graph.costs.tolist()]
        starts, ids = graph.operand_starts.tolist(), graph.operand_ids.tolist()
        if offload is None:
            stores, fetches = [0] * len(graph), [-1] * len(graph)
        else:
            movable = np.isfinite(offload.stores) & np.isfinite(offload.fetches)
            stores, fetches = (
                [round(c / total * UNIT) if ok else -1 for c, ok in zip(moves.tolist(), movable, strict=True)]
                for moves in (offload.stores, offload.fetches)
            )
        sizes = graph.sizes.tolist()
        self.annealer = Annealer(starts, ids, sizes, costs, budget, COPIES, free, seed, stores, fetches)
        self.draws = random.Random(seed)
        self.mean_cost = UNIT / max(1, len(graph))
        self.annealer.weight = self.mean_cost / max(1.0, float(graph.sizes.mean())) / 10
        self.since = 0
        self.load(order)

    def load(self, order: list[int]) -> None:
        """Continue from `order`."""
        self.annealer.start(order, SPACING)
        self.since = 0

    def heat(self, moves: int) -> None:
        """Draw the temperatures of a round of so many moves."""
        hot = self.mean_cost * 10 ** self.draws.uniform(-1.5, 0.5)
        cold = self.mean_cost * 10 ** self.draws.uniform(-4.0, -2.5)
        self.annealer.heat(hot, cold, moves)

    def advance(self, moves: int) -> None:
        """Make `moves` moves, a multiple of 256."""
        while moves > 0:
            step = min(moves, REFRESH - self.since)
            done = self.annealer.run(step)
            moves -= done
            self.since += done
            if self.since >= REFRESH or done < step:
                self.load(self.annealer.order())


class Search:
    """The islands and the best they have found.

    Args:
        graph: the problem.
        budget: bytes.
        order: any legal order to start from; with `free` False its first computations keep their order.
        free: first computations may change their order.
        seed: of all random draws.
        offload: what moving values to another store costs, or None.

    Attributes:
        order: the cheapest order within the budget, or None.
        cost: its integer cost.
        lowest, lowest_bytes: the order of the smallest peak seen between rounds, and that peak.
        moves: moves made so far, over all islands.
    """

    def __init__(
        self,
        graph: Graph,
        budget: int,
        order: list[int],
        free: bool,
        seed: int,
        offload: Offload | None = None,
    ) -> None:
        self.budget = budget
        self.first = order
        self.islands = [
            Island(graph, order, budget, free, seed * ISLANDS + i + 1, offload) for i in range(ISLANDS)
        ]
        self.order: list[int] | None = None
        self.cost = -1
        self.lowest = order
        self.lowest_bytes = self.islands[0].annealer.peak()
        self.moves = 0
        self.left = 0
        self.length = min(204_800, max(20_480, 25_600 * (1 + len(graph) // 64)))
        self.soft = budget  # the budget of the present round, above the real one while nothing fits
        if self.lowest_bytes <= budget:
            self.order, self.cost = order, self.islands[0].annealer.cost

    def run(self, moves: int, deadline: float, enough: int = 0) -> None:
        """Search until `moves` moves in total, the deadline, or a cost of at most `enough`."""
        with ThreadPoolExecutor(ISLANDS if COMPILED else 1) as pool:
            while self.moves < moves and time.monotonic() < deadline:
                if self.order is not None and self.cost <= enough:
                    return
                if self.left == 0:
                    self._begin()
                step = min(SLICE, self.left, -(-(moves - self.moves) // (256 * ISLANDS)) * 256)
                list(pool.map(Island.advance, self.islands, [step] * ISLANDS))
                self.moves += step * ISLANDS
                self.left -= step
                self._collect()
                if self.left == 0:
                    self._end()

    def _begin(self) -> None:
        self.left = self.length
        for island in self.islands:
            island.heat(self.length)

    def _collect(self) -> None:
        if self.soft > self.budget:
            return
        for island in self.islands:
            best = island.annealer.best_cost
            if best >= 0 and (self.order is None or best < self.cost):
                self.order, self.cost = island.annealer.best_order(), best

    def _end(self) -> None:
        self.length = min(2_560_000, int(self.length * 1.2) // 256 * 256)
        if self.order is None:
            self._lower()
            return
        for island in self.islands:
            own = island.annealer.best_order()
            draw = island.draws.random()
            if not own or draw < 0.35:
                island.load(self.order)
            elif draw < 0.45:
                island.load(self.first)
            else:
                island.load(own)

    def _lower(self) -> None:
        """Nothing fits yet: choose the next round's budget and where it starts."""
        for island in self.islands:
            order = island.annealer.best_order() or island.annealer.order()
            island.load(order)
            peak = island.annealer.peak()
            if peak < self.lowest_bytes:
                self.lowest, self.lowest_bytes = order, peak
        # half of the way from the smallest peak so far to the budget
        self.soft = self.budget + (self.lowest_bytes - self.budget) // 2
        if self.lowest_bytes - self.budget < self.budget // 256:
            self.soft = self.budget
        for island in self.islands:
            island.annealer.forget_best()
            island.annealer.set_budget(self.soft)
            island.load(self.lowest)
