"""A schedule whose moves take time on a link, executed from start to end: legal or not, its time, its bytes.

The order is coded as the machine reads it (`_check`): computations, ends of stores, begins of fetches. This
is the same machine, for a search: it stops at the first illegal step, or when the time is past a limit.
Linear in the length. C types are in `_timed.pxd`, and without a compiler this file runs as it is.
"""

from array import array
from collections.abc import Sequence


class Timed:
    """The present schedule, the one that is tried, and the best within the budget so far.

    Args:
        starts, ids: operands of operation v are ids[starts[v]:starts[v + 1]].
        sizes: bytes of each output.
        costs, takes: time of each computation, and of each value on the link, one way.
        stores, fetches: what moving costs beside its time; below 0 where a value may not move.
        budget: bytes.
        free: first computations may change their order.
        room: steps that a schedule may grow to.
    """

    def __init__(
        self,
        starts: Sequence[int],
        ids: Sequence[int],
        sizes: Sequence[int],
        costs: Sequence[float],
        takes: Sequence[float],
        stores: Sequence[float],
        fetches: Sequence[float],
        budget: int,
        free: bool,
        room: int,
    ) -> None:
        n = len(sizes)
        self.n = n
        self.starts = array("i", starts)
        self.ids = array("i", [*ids, 0])
        self.sizes = array("q", sizes)
        self.costs = array("d", costs)
        self.takes = array("d", takes)
        self.stores = array("d", stores)
        self.fetches = array("d", fetches)
        self.budget = budget
        self.free = 1 if free else 0
        self.room = room
        none = bytes(4 * (room + 1))
        # the present schedule, the one tried, the best: steps, bytes at each, places of what is not a first
        self.code, self.trial, self.best = array("i", none), array("i", none), array("i", none)
        self.extras, self.trial_extras = array("i", none), array("i", none)
        self.memory, self.trial_memory = array("q", none + none), array("q", none + none)
        self.length = self.trial_length = self.best_length = 0
        self.extra_count = self.trial_extra_count = 0
        self.cost = self.trial_cost = 0.0
        self.over = self.trial_over = 0
        self.best_cost = -1.0
        # of each value while a schedule is executed
        self.at, self.last, self.stored = (array("i", bytes(4 * n)) for _ in range(3))
        self.ready = array("d", bytes(8 * n))

    def load(self, order: Sequence[int]) -> bool:
        """Continue from `order`; whether it is legal and there is room for it."""
        if len(order) > self.room:
            return False
        for i, code in enumerate(order):
            self.trial[i] = code
        self.trial_length = len(order)
        if self._execute(1e300) == 0:
            return False
        self._accept()
        return True

    def order(self) -> list[int]:
        """The present schedule."""
        return list(self.code[: self.length])

    def best_order(self) -> list[int]:
        """The cheapest schedule within the budget so far; empty if there was none."""
        return list(self.best[: self.best_length])

    def _live(self, v: int) -> None:
        self.trial_memory[self.at[v]] += self.sizes[v]
        self.trial_memory[self.last[v] + 1] -= self.sizes[v]

    def _execute(self, limit: float) -> int:
        # the schedule tried: 0 if it is illegal or its cost is above the limit; else 1, cost and bytes over
        now = out = back = moved = 0.0
        first = 0
        extras = 0
        for v in range(self.n):
            self.at[v] = -1
            self.stored[v] = 0
        for i in range(self.trial_length + 1):
            self.trial_memory[i] = 0
        for i in range(self.trial_length):
            v = self.trial[i]
            if v < self.n:
                for e in range(self.starts[v], self.starts[v + 1]):
                    u = self.ids[e]
                    if self.at[u] < 0:
                        return 0
                    if self.ready[u] > now:
                        now = self.ready[u]
                    self.last[u] = i
                now += self.costs[v]
                self.ready[v] = now
                if self.at[v] < 0:
                    if self.free == 0 and v != first:
                        return 0
                    first += 1
                else:
                    self._live(v)
                    self.trial_extras[extras] = i
                    extras += 1
                self.at[v] = i
                self.last[v] = i
            else:
                self.trial_extras[extras] = i
                extras += 1
                if v < 2 * self.n:
                    v -= self.n
                    if self.stored[v] == 0:
                        return 0
                    if now > back:
                        back = now
                    back += self.takes[v]
                    self.ready[v] = back
                    moved += self.fetches[v]
                    self._live(v)
                    self.at[v] = i
                else:
                    v -= 2 * self.n
                    if self.at[v] < 0 or self.stored[v] != 0 or self.stores[v] < 0:
                        return 0
                    self.stored[v] = 1
                    if self.ready[v] > out:
                        out = self.ready[v]
                    out += self.takes[v]
                    if out > now:
                        now = out
                    moved += self.stores[v]
                self.last[v] = i
            if now + moved > limit:
                return 0
        if first < self.n:
            return 0
        for v in range(self.n):
            self._live(v)
        over = self.budget - self.budget
        total = over
        for i in range(self.trial_length):
            total += self.trial_memory[i]
            self.trial_memory[i] = total
            if total > self.budget:
                over += total - self.budget
        self.trial_cost = now + moved
        self.trial_over = over
        self.trial_extra_count = extras
        return 1

    def _accept(self) -> None:
        for i in range(self.trial_length):
            self.code[i] = self.trial[i]
            self.memory[i] = self.trial_memory[i]
        for i in range(self.trial_extra_count):
            self.extras[i] = self.trial_extras[i]
        self.length = self.trial_length
        self.extra_count = self.trial_extra_count
        self.cost = self.trial_cost
        self.over = self.trial_over
        if self.over == 0 and (self.best_cost < 0 or self.cost < self.best_cost):
            self.best_cost = self.cost
            self.best_length = self.length
            for i in range(self.length):
                self.best[i] = self.code[i]
