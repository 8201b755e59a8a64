"""Simulated annealing on the schedule itself.

Objective: cost + weight * (bytes over the budget, summed over computations); the weight adapts so that a
fifth to a third of the time is feasible. A move (`_moves`) is made in place, accepted or undone. The
acceptance threshold comes from a table, so that the same seed and number of moves give the same schedule
everywhere. Moves run without the interpreter's lock when compiled: two searches use two cores.

Limits: a local search proves nothing; `_bounds`, `_cut` and `_exact` do.
"""

import math
from array import array
from collections.abc import Sequence

try:
    import cython
except ImportError:
    from recoup._solve import _nocython as cython

from recoup._solve._moves import Moves

COMPILED = cython.compiled
TABLE_BITS = 12


class Annealer(Moves):
    """One search: `start` from an order, set the `heat`, `run` moves; `best_order` is the best within
    budget."""

    def __init__(
        self,
        starts: Sequence[int],
        ids: Sequence[int],
        sizes: Sequence[int],
        costs: Sequence[int],
        budget: int,
        copies: int,
        free: bool,
        seed: int,
        stores: Sequence[int],
        fetches: Sequence[int],
    ) -> None:
        Moves.__init__(self, starts, ids, sizes, costs, budget, copies, free, seed, stores, fetches)
        cells = 1 << TABLE_BITS
        # -log(u) of the middle of each cell, rounded so that libraries that differ in the last digit agree
        self.threshold = array("d", [round(-math.log((i + 0.5) / cells), 9) for i in range(cells)])
        self.best_cost = -1
        self.best_length = 0
        self.best = array("i", [0])
        self.weight = 1.0  # integer cost per byte over the budget
        self.heaviest = 1e300
        self.temperature = 1.0
        self.cooling = 1.0
        self.done = 0
        self.accepted = 0
        self.feasible = 0

    def forget_best(self) -> None:
        """Start a new record of the best schedule."""
        self.best_cost = -1
        self.best_length = 0

    def best_order(self) -> list[int]:
        """The cheapest order within the budget since the record began; empty if there was none."""
        return list(self.best[: self.best_length])

    def start(self, order: Sequence[int], spacing: int, places: Sequence[int] = ()) -> None:
        """Load `order` (see `load`) and make room for the record of the best."""
        self.load(order, spacing, places)
        if places:
            self.reach = max(self.reach, self.slots)
        if len(self.best) < self.slots:
            kept = array("i", bytes(4 * self.slots))
            for i in range(self.best_length):
                kept[i] = self.best[i]
            self.best = kept
        self.starved = 0

    def heat(self, hot: float, cold: float, moves: int) -> None:
        """Set the temperature, in units of integer cost: falling geometrically from `hot` to `cold` in
        `moves` moves."""
        self.temperature = hot
        self.cooling = (cold / hot) ** (256.0 / max(256, moves))

    def run(self, moves: int) -> int:
        """Make `moves` moves, a multiple of 256; calling it twice is the same as calling it once with the
        sum.

        Returns:
            moves made: fewer when holes ran out, so that the state should be loaded again with new ones.
        """
        self.done = 0
        with cython.nogil:
            self.done = self._run(moves)
        return self.done

    def _run(self, moves: int) -> int:
        k = 0
        dirty = 0
        if self.over == 0 and (self.best_cost < 0 or self.cost < self.best_cost):
            self._save()
        while k < moves:
            k += 1
            old_cost = self.cost
            slack = self.temperature * self.threshold[self._random() & 4095]
            # a move may add at most this much to the cost, however many bytes it frees
            self.limit = old_cost + slack + self.weight * self.over
            self._move()
            if self.logged != 0:
                if self.failed == 0 and self.cost + self.weight * self.over <= self.limit:
                    self.accepted += 1
                    if dirty != 0 and (self.over != 0 or self.cost >= self.best_cost):
                        # the best state was the one before this move
                        self._save_before()
                        dirty = 0
                    self.logged = 0
                    if self.over == 0 and (self.best_cost < 0 or self.cost < self.best_cost):
                        self.best_cost = self.cost
                        dirty = 1
                else:
                    self._undo()
            if self.over == 0:
                self.feasible += 1
            if (k & 255) == 0:
                self.temperature = self.temperature * self.cooling
                if self.feasible < 40:
                    self.weight = min(self.weight * 1.06, self.heaviest)
                elif self.feasible > 90:
                    self.weight = self.weight / 1.06
                self.feasible = 0
                if self.starved > 400:
                    break
        if dirty != 0:
            self._save()
        return k

    def _save(self) -> None:
        length = 0
        for s in range(self.slots):
            if self.op_at[s] >= 0:
                self.best[length] = self.op_at[s] + self.n * self.fetch_at[s]
                length += 1
        self.best_length = length
        self.best_cost = self.cost

    def _save_before(self) -> None:
        # rewind the logged move on a copy of the slots
        for s in range(self.slots):
            self.scratch[s] = self.op_at[s]
            if self.scratch[s] >= 0:
                self.scratch[s] += self.n * self.fetch_at[s]
        i = self.logged
        while i > 0:
            i -= 1
            if self.log_kind[i] == 0:
                self.scratch[self.log_slot[i] >> 2] = -1
            elif self.log_kind[i] == 1:
                self.scratch[self.log_slot[i] >> 2] = self.log_op[i] + self.n * ((self.log_slot[i] >> 1) & 1)
        length = 0
        for s in range(self.slots):
            if self.scratch[s] >= 0:
                self.best[length] = self.scratch[s]
                length += 1
        self.best_length = length
