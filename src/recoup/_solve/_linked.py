"""The search where moves take time on a link: schedules to start from, then annealing on the real thing.

Starts: schedules of the search without time (`_search`), once without moves and with a few prices for a byte
moved, shares of its time on the link; their moves are placed (`_place`). No price is right: it knows neither
when the link is idle nor where the memory is short. The cheapest, and the one without moves, go to two
islands of annealing in which the clock runs (`_link`), in rounds as in `_search`.

Measured (docs/planners.md): that annealing is where the gain is, from any of these starts; on large graphs
it is slow, and a good start decides.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recoup._graph import Graph, Ints, Offload
from recoup._solve._annealer import COMPILED
from recoup._solve._check import check
from recoup._solve._link import Link
from recoup._solve._place import place
from recoup._solve._search import ISLANDS, PAUSE, UNIT, Search

PRICES = (None, 0.3, 0.1, 0.03)  # of the time on the link, each way; None: no moves
START = 0.05  # share of the moves or the time for each
LENGTH = 25_600  # moves of an island in the first round
GROWN = 1.2
ROOM = 3  # how many times its operations a schedule may grow to


class Linked:
    """The search and the best it has found.

    Args:
        graph: the problem.
        budget: bytes.
        given: legal orders of the computations alone, to start from.
        start: an order as `check` reads it with this offload, or None.
        free: first computations may change their order.
        seed: of all random draws.
        offload: with a rate.

    Attributes:
        order: the cheapest order within the budget, or None.
        cost: its cost.
        lowest_bytes: the smallest peak seen.
        moves: moves made so far.
    """

    def __init__(
        self,
        graph: Graph,
        budget: int,
        given: Sequence[list[int]],
        start: list[int] | None,
        free: bool,
        seed: int,
        offload: Offload,
    ) -> None:
        self.graph, self.budget, self.offload, self.free, self.seed = graph, budget, offload, free, seed
        self.searches = [Search(graph, budget, given, free, seed, self._priced(p)) for p in PRICES]
        self.order: list[int] | None = None
        self.cost = float("inf")
        self.lowest_bytes = min(s.lowest_bytes for s in self.searches)
        self.moves = 0
        self.starts: list[tuple[float, list[int]]] = []
        if start is not None:
            self._offer(start)

    def _priced(self, share: float | None) -> Offload | None:
        if share is None:
            return None
        price = share * self.graph.sizes / self.offload.bytes_per_cost
        return Offload(self.offload.stores + price, self.offload.fetches + price)

    def _offer(self, order: list[int]) -> None:
        checked = check(self.graph, order, offload=self.offload)
        self.lowest_bytes = min(self.lowest_bytes, checked.peak_bytes)
        if checked.peak_bytes > self.budget:
            return
        self.starts.append((checked.cost, order))
        if checked.cost < self.cost:
            self.order, self.cost = order, checked.cost

    def run(self, moves: int, deadline: float, enough: float) -> None:
        """Search until `moves` moves in total, the deadline, or a cost of at most `enough`."""
        now = time.monotonic()
        share = max(512, int(START * moves) // 512 * 512)
        for search in self.searches:
            self._begin(search, share, min(deadline, time.monotonic() + START * (deadline - now)), UNIT)
        if not self.starts:
            # memory is scarce: first of all a schedule that fits
            search = self.searches[2]
            self._begin(search, search.moves + max(0, moves - self.moves), deadline, 1 << 60)
        if self.order is not None and self.cost > enough:
            self._anneal(moves, deadline, enough)

    def _begin(self, search: Search, moves: int, deadline: float, enough: int) -> None:
        before = search.moves
        search.run(moves, deadline, enough)
        self.moves += search.moves - before
        self.lowest_bytes = min(self.lowest_bytes, search.lowest_bytes)
        if search.order is not None:
            self._offer(place(self.graph, search.order, self.budget, self.offload))

    def _anneal(self, moves: int, deadline: float, enough: float) -> None:
        graph, offload = self.graph, self.offload
        total = graph.total_cost or 1.0
        mean = total / max(1, len(graph))
        movable = offload.movable
        room = max(ROOM * len(graph) + 64, *(len(order) for _, order in self.starts))
        best = [min(self.starts, key=lambda s: s[0])[1], self.starts[0][1]]
        islands = []
        for i in range(ISLANDS):
            link = Link(
                graph.operand_starts.tolist(), graph.operand_ids.tolist(), graph.sizes.tolist(),
                graph.costs.tolist(), (graph.sizes / offload.bytes_per_cost).tolist(),
                np.where(movable, offload.stores, -1.0).tolist(),
                np.where(movable, offload.fetches, -1.0).tolist(),
                self.budget, self.free, self.seed * ISLANDS + i + 1, room,
            )  # fmt: skip
            link.load(best[i])
            link.weight = mean / max(1.0, float(graph.sizes.mean())) / 10
            islands.append(link)
        draws = random.Random(self.seed)
        length = LENGTH
        look = PAUSE if COMPILED and len(graph) <= 1000 else 256  # no influence on the result
        with ThreadPoolExecutor(ISLANDS if COMPILED else 1) as pool:
            while True:
                for link in islands:
                    hot = mean * 10 ** draws.uniform(-1.5, 0.5)
                    link.heat(hot, mean * 10 ** draws.uniform(-4.0, -2.5), length)
                left = length
                while left > 0:
                    if self.moves >= moves or time.monotonic() >= deadline:
                        return
                    if left % PAUSE == 0 and self.cost <= enough:
                        return
                    step = min(look, left, -(-(moves - self.moves) // (256 * ISLANDS)) * 256)
                    list(pool.map(Link.run, islands, [step] * ISLANDS))
                    self.moves += step * ISLANDS
                    left -= step
                    for link in islands:
                        if link.best_cost < self.cost:
                            self.order, self.cost = link.best_order(), link.best_cost
                length = min(2_560_000, int(length * GROWN) // PAUSE * PAUSE)
                for link in islands:
                    link.load((self.order or []) if draws.random() < 0.35 else link.best_order())


def computations(graph: Graph, start: Sequence[int] | Ints) -> list[int]:
    """The computations of a schedule, without its moves: a legal order."""
    return [code for code in np.asarray(start).tolist() if code < len(graph)]
