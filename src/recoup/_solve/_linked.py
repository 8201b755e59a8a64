"""The search where moves take time on a link: schedules to start from, then annealing on the real thing.

Starts: the order with whatever is read last moved away (`evict`), and schedules of the search without time
(`_search`), at a few prices for a byte moved, shares of its time on the link, and without moves; it begins
with the plan of the relaxation (`_cut`). Their moves are placed (`place`). No price is right: it knows
neither when the link is idle nor where the memory is short. The cheapest, and the one without moves, go to
two islands of annealing in which the clock runs (`_link`), in rounds as in `_search`.

Measured (docs/planners.md): that annealing is where the gain is, from any of these starts; on graphs of
thousands of operations it is slow, and the plan of the relaxation decides.
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
from recoup._solve._place import evict, place
from recoup._solve._search import ISLANDS, PAUSE, UNIT, Search

PRICES = (0.1, 0.3, 0.03, None)  # of the time on the link, each way; None: no moves
START = 0.05  # share of the moves or the time for each
PARTS = (0.2, 0.5, 1.0)  # of them, after which the best is placed
LENGTH = 25_600  # moves of an island in the first round; a fifth of it on large graphs
LARGE = 1000
GROWN = 1.2
ROOM = 3  # how many times its operations a schedule may grow to


class Linked:
    """The search and the best it has found.

    Args:
        graph: the problem.
        budget: bytes.
        given: a legal order of the computations alone.
        planned: an order of computations and fetches whose moves take no time, or None.
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
        given: list[int],
        planned: list[int] | None,
        start: list[int] | None,
        free: bool,
        seed: int,
        offload: Offload,
    ) -> None:
        self.graph, self.budget, self.offload, self.free, self.seed = graph, budget, offload, free, seed
        self.searches = []
        for price in PRICES:
            starts = [given] if planned is None or price is None else [planned, given]
            self.searches.append(Search(graph, budget, starts, free, seed, self._priced(price)))
        self.order: list[int] | None = None
        self.cost = float("inf")
        self.lowest_bytes = min(s.lowest_bytes for s in self.searches)
        self.moves = 0
        self.starts: list[tuple[float, list[int]]] = []
        for moving in (planned, evict(graph, np.arange(len(graph)), budget, offload.movable.tolist())):
            if moving is not None:
                self._offer(place(graph, moving, budget, offload))
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
            search = self.searches[0]
            self._begin(search, search.moves + max(0, moves - self.moves), deadline, 1 << 60)
        if self.order is not None and self.cost > enough:
            self._anneal(moves, deadline, enough)

    def _begin(self, search: Search, moves: int, deadline: float, enough: int) -> None:
        # looked at on the way, too: what is cheaper at a price may wait longer for the link
        began, before = time.monotonic(), search.moves
        for part in PARTS:
            made, order = search.moves, search.order
            until = before + int(part * (moves - before)) // 512 * 512
            search.run(until, began + part * (deadline - began), enough)
            self.moves += search.moves - made
            if search.order is not None and search.order is not order:
                self._offer(place(self.graph, search.order, self.budget, self.offload))
        self.lowest_bytes = min(self.lowest_bytes, search.lowest_bytes)

    def _anneal(self, moves: int, deadline: float, enough: float) -> None:
        graph, offload = self.graph, self.offload
        total = graph.total_cost or 1.0
        mean = total / max(1, len(graph))
        movable = offload.movable
        room = max(ROOM * len(graph) + 64, *(len(order) for _, order in self.starts))
        # the last start is the one without moves, if that fits
        best = [min(self.starts, key=lambda s: s[0])[1], self.starts[-1][1]]
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
        small = len(graph) <= LARGE
        length = LENGTH if small else LENGTH // 5
        look = PAUSE if COMPILED and small else 256  # no influence on the result
        with ThreadPoolExecutor(ISLANDS if COMPILED else 1) as pool:
            while True:
                for link in islands:
                    hot = mean * 10 ** draws.uniform(-1.5, 1.0)
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
