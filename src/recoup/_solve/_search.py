"""Rounds of annealing on two islands: which temperatures, from where, for how long.

Each island is one `Annealer` with its own random numbers.

Descent, while nothing fits: short rounds, each at a budget one step below the smallest peak so far; the step
grows when a round succeeds and is halved when it fails. Starting at the budget itself instead, the weight of
bytes runs away and the schedule fills up with computations: reaching a tight budget takes longer than
optimising within it.

Then rounds at the budget, longer and longer: the islands compare, and each starts from its own best, from the
best of both or, now and then, from where the descent ended. Temperatures are drawn anew for every round: no
one end temperature finds both dear and cheap operations.

Everything is a function of the starts, the seed and the number of moves; the clock only decides when to stop.
The islands run in two threads where the compiled modules let them, and one after the other otherwise, with
the same result.
"""

import itertools
import random
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recoup._graph import Graph, Offload
from recoup._solve._annealer import COMPILED, Annealer

ISLANDS = 2
SPACING = 3  # holes before each computation
REFRESH = 25_600  # moves between two loads, which spread the holes anew
PAUSE = 5_120
SLICE = PAUSE if COMPILED else 256  # moves between two looks at the clock; no influence on the result
UNIT = 1 << 40  # one full pass in integer cost
NEVER = 1 << 50  # the cost of what may not run again
COPIES = 8
DESCENT = 10_240  # most moves of an island in one round of the descent
SMALL = 300  # operations up to which the descent tries the budget itself first
DESCENT_HOT, DESCENT_COLD = 0.3, 0.03  # its temperatures, in mean costs of an operation


class Island:
    """One annealer, its draws, and where its next round starts."""

    def __init__(
        self,
        graph: Graph,
        order: list[int],
        budget: int,
        free: bool,
        seed: int,
        offload: Offload | None,
        places: Sequence[int],
        once: Collection[int],
    ) -> None:
        total = graph.total_cost or 1.0
        costs = [round(c / total * UNIT) for c in graph.costs.tolist()]
        for v in once:
            costs[v] = NEVER
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
        self.places = places
        self.load(order)
        self.target = budget
        self.fits = order  # the schedule of the smallest peak so far
        self.fits_bytes = self.annealer.peak()
        self.step = max(1, (self.fits_bytes - budget) // (1 if len(graph) <= SMALL else 12))

    def load(self, order: list[int]) -> None:
        """Continue from `order`."""
        self.annealer.start(order, SPACING, self.places)
        self.since = 0

    def heat(self, moves: int) -> None:
        """Draw the temperatures of a round of so many moves."""
        hot = self.mean_cost * 10 ** self.draws.uniform(-1.5, 0.5)
        cold = self.mean_cost * 10 ** self.draws.uniform(-4.0, -2.5)
        self.annealer.heat(hot, cold, moves)

    def descend(self, moves: int) -> None:
        """Prepare a round that looks for a peak one step below the smallest so far."""
        self.annealer.set_budget(max(self.target, self.fits_bytes - self.step))
        self.annealer.forget_best()
        if self.fits_bytes - self.step <= self.target:
            self.heat(moves)  # at the budget itself: as hot as any other round
        else:
            self.annealer.heat(self.mean_cost * DESCENT_HOT, self.mean_cost * DESCENT_COLD, moves)

    def settle(self) -> None:
        """After such a round: a longer step if it succeeded, otherwise a shorter one."""
        best = self.annealer.best_order()
        if best:
            self.load(best)
            self.fits, self.fits_bytes = best, self.annealer.peak()
            self.step = max(1, self.step * 4 // 3)
        else:
            if self.draws.random() < 0.5:
                self.load(self.fits)
            away = self.fits_bytes - self.target
            self.step = self.step // 2
            if self.step <= away // 64:
                self.step = max(1, away)  # stuck: all the way at once, as a way out

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
        starts: legal orders to start from, one for each island; with `free` False their first computations
            keep the graph's order.
        free: first computations may change their order.
        seed: of all random draws.
        offload: what moving values to another store costs, or None.
        places: for each operation the holes before its first computation, where repeats may run only at some
            places of a given order; empty where they may run anywhere.
        once: operations that may not run again.

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
        starts: Sequence[list[int]],
        free: bool,
        seed: int,
        offload: Offload | None = None,
        places: Sequence[int] = (),
        once: Collection[int] = (),
    ) -> None:
        self.budget = budget
        self.islands = [
            Island(graph, start, budget, free, seed * ISLANDS + i + 1, offload, places, once)
            for i, start in zip(range(ISLANDS), itertools.cycle(starts), strict=False)
        ]
        self.order: list[int] | None = None
        self.cost = -1
        self.lowest, self.lowest_bytes = self.islands[0].fits, self.islands[0].fits_bytes
        self.descending = True
        self.descent = min(DESCENT, max(2_560, 25 * len(graph) // 256 * 256))
        self.moves = 0
        self.left = 0
        self.length = min(204_800, max(20_480, 25_600 * (1 + len(graph) // 64)))
        for island in self.islands:
            if island.fits_bytes <= budget and (self.order is None or island.annealer.cost < self.cost):
                self.order, self.cost = island.fits, island.annealer.cost
        self.settled, self.settled_cost = self.order, self.cost
        self._settle()

    def run(self, moves: int, deadline: float, enough: int = 0) -> None:
        """Search until `moves` moves in total, the deadline, or a cost of at most `enough`."""
        with ThreadPoolExecutor(ISLANDS if COMPILED else 1) as pool:
            while self.moves < moves and time.monotonic() < deadline:
                # looked at where compiled and interpreted runs both stop for a moment
                if self.order is not None and self.cost <= enough and self.moves % (PAUSE * ISLANDS) == 0:
                    return
                if self.left == 0:
                    self._begin()
                pause = PAUSE - self.moves // ISLANDS % PAUSE
                step = min(SLICE, pause, self.left, -(-(moves - self.moves) // (256 * ISLANDS)) * 256)
                list(pool.map(Island.advance, self.islands, [step] * ISLANDS))
                self.moves += step * ISLANDS
                self.left -= step
                self._collect()
                if self.left == 0:
                    self._end()

    def _begin(self) -> None:
        if self.order is None:
            self.left = self.descent
            for island in self.islands:
                island.descend(self.descent)
            return
        self.left = self.length
        for island in self.islands:
            island.heat(self.length)

    def _collect(self) -> None:
        """The best of all, as of now: of equal ones the earlier round's, then the earlier island's."""
        self.order, self.cost = self.settled, self.settled_cost
        for island in self.islands:
            best = island.annealer.best_cost
            if island.annealer.budget == self.budget and best >= 0 and (self.cost < 0 or best < self.cost):
                self.order, self.cost = island.annealer.best_order(), best

    def _end(self) -> None:
        self.settled, self.settled_cost = self.order, self.cost
        if self.descending:
            for island in self.islands:
                island.settle()
            self._settle()
            return
        self.length = min(2_560_000, int(self.length * 1.2) // 256 * 256)
        for island in self.islands:
            own = island.annealer.best_order()
            draw = island.draws.random()
            if not own or draw < 0.35:
                island.load(self.order or island.fits)
            elif draw < 0.45:
                island.load(island.fits)
            else:
                island.load(own)

    def _settle(self) -> None:
        """The end of a round of the descent; the last one hands over to annealing at the budget itself."""
        lowest = min(self.islands, key=lambda island: island.fits_bytes)
        if lowest.fits_bytes < self.lowest_bytes:
            self.lowest, self.lowest_bytes = lowest.fits, lowest.fits_bytes
        if self.order is None:
            return
        self.descending = False
        for island in self.islands:
            if island.fits_bytes > self.budget:
                island.fits, island.fits_bytes = lowest.fits, lowest.fits_bytes
                island.load(lowest.fits)
            island.annealer.set_budget(self.budget)
            island.annealer.forget_best()
