"""Simulated annealing on a schedule whose moves take time on a link.

The state is the order itself. A move changes a copy of it, and the copy is executed from start to end
(`_timed`). That is linear in the length, and so slower than the incremental profile of
`_slots`, but waiting for a link is not a local matter: a later fetch delays all that follow. Moves:

- shift: one step to another place, near or far;
- add: fetch or compute again a value that is alive across an overfull step, with its store where it has none;
- remove: a computation that is not the first, or a fetch and, with the last one, its store;
- exchange: remove and add; a fetch for a computation in its place, and the other way round.

Proposals need not be legal: executing them finds out. Acceptance, temperatures and the adaptive weight of
bytes are those of `_annealer`; C types are in `_link.pxd`, and without a compiler this file runs as it is.

Limits: some 10^5 moves a second at 300 operations, fewer in proportion to the length.
"""

import math
from array import array
from collections.abc import Sequence

try:
    import cython
except ImportError:
    from recoup._solve import _nocython as cython

from recoup._solve._timed import Timed

TABLE = 4096


class Link(Timed):
    """One search: `load` an order, set the `heat`, `run` moves; `best_order` is the best within the budget.

    Args:
        seed: of all random draws; the others as for `Timed`.
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
        seed: int,
        room: int,
    ) -> None:
        Timed.__init__(self, starts, ids, sizes, costs, takes, stores, fetches, budget, free, room)
        self.state = seed & 0x7FFFFFFFFFFFFFFF
        self.factor = 6364136223846793005
        self.increment = 1442695040888963407
        self.mask = 0x7FFFFFFFFFFFFFFF
        self.threshold = array("d", [round(-math.log((i + 0.5) / TABLE), 9) for i in range(TABLE)])
        self.weight = 1.0  # cost per byte over the budget
        self.temperature = 1.0
        self.cooling = 1.0
        self.failed = 0
        self._random()
        self._random()

    def heat(self, hot: float, cold: float, moves: int) -> None:
        """Set the temperature, in units of cost: falling geometrically from `hot` to `cold`."""
        self.temperature = hot
        self.cooling = (cold / hot) ** (256.0 / max(256, moves))

    def run(self, moves: int) -> None:
        """Make `moves` moves, a multiple of 256; twice is the same as once with the sum."""
        with cython.nogil:
            self._run(moves)

    # -- annealing

    def _random(self) -> int:
        self.state = (self.state * self.factor + self.increment) & self.mask
        return self.state >> 31

    def _below(self, n: int) -> int:
        # 0 <= result < n; n below 2**31
        return (self._random() * n) >> 32

    def _run(self, moves: int) -> None:
        feasible = 0
        for k in range(1, moves + 1):
            slack = self.temperature * self.threshold[self._random() & 4095]
            limit = self.cost + slack + self.weight * self.over
            self.trial_length = self.length
            for i in range(self.length):
                self.trial[i] = self.code[i]
            self.failed = 0
            self._move()
            if (
                self.failed == 0
                and self._execute(limit) != 0
                and self.trial_cost + self.weight * self.trial_over <= limit
            ):
                self._accept()
            if self.over == 0:
                feasible += 1
            if (k & 255) == 0:
                self.temperature = self.temperature * self.cooling
                if feasible < 40:
                    self.weight = self.weight * 1.06
                elif feasible > 90:
                    self.weight = self.weight / 1.06
                feasible = 0

    # -- moves, on the copy

    def _move(self) -> None:
        kind = self._below(16)
        if kind < 6:
            self._shift()
        elif kind < 8:
            self._swap()
        elif kind < 10:
            self._remove()
        elif kind < 13:
            self._remove()
            if self.failed == 0:
                self._add()
        else:
            self._add()

    def _put(self, place: int, code: int) -> None:
        if self.trial_length >= self.room:
            self.failed = 1
            return
        i = self.trial_length
        while i > place:
            self.trial[i] = self.trial[i - 1]
            i -= 1
        self.trial[place] = code
        self.trial_length += 1

    def _cut(self, place: int) -> None:
        self.trial_length -= 1
        for i in range(place, self.trial_length):
            self.trial[i] = self.trial[i + 1]

    def _find(self, code: int) -> int:
        # the first place of this code, or -1
        for i in range(self.trial_length):
            if self.trial[i] == code:
                return i
        return -1

    def _reads(self, code: int, v: int) -> int:
        # 1 for an event of the value of v: a computation or fetch of it, or a read
        if code >= self.n:
            return 1 if code == v + self.n else 0
        if code == v:
            return 1
        for e in range(self.starts[code], self.starts[code + 1]):
            if self.ids[e] == v:
                return 1
        return 0

    def _event_before(self, v: int, place: int) -> int:
        # the last event of v before this place, or -1
        i = place - 1
        while i >= 0 and self._reads(self.trial[i], v) == 0:
            i -= 1
        return i

    def _shift(self) -> None:
        if self.free != 0 and self._below(2) == 0:
            i = self._below(self.trial_length)
        elif self.extra_count > 0:
            i = self.extras[self._below(self.extra_count)]
        else:
            self.failed = 1
            return
        kind = self._below(8)
        if kind < 4:
            j = i + self._below(9) - 4
        elif kind < 7:
            j = i + self._below(65) - 32
        else:
            j = self._below(self.trial_length)
        if j < 0:
            j = 0
        if j >= self.trial_length:
            j = self.trial_length - 1
        if i == j:
            self.failed = 1
            return
        code = self.trial[i]
        self._cut(i)
        self._put(j, code)

    def _unstore(self, v: int) -> None:
        # without fetches a value needs no store
        if self._find(v + self.n) < 0:
            i = self._find(v + 2 * self.n)
            if i >= 0:
                self._cut(i)

    def _remove(self) -> None:
        if self.extra_count == 0:
            self.failed = 1
            return
        i = self.extras[self._below(self.extra_count)]
        code = self.trial[i]
        if code >= 2 * self.n:
            i = self._find(code - self.n)
            if i < 0:
                self.failed = 1
                return
            code -= self.n
        self._cut(i)
        if code >= self.n:
            self._unstore(code - self.n)

    def _swap(self) -> None:
        # a fetch becomes a computation in its place, and the other way round
        if self.extra_count == 0:
            self.failed = 1
            return
        i = self.extras[self._below(self.extra_count)]
        code = self.trial[i]
        if code >= 2 * self.n:
            self.failed = 1
        elif code >= self.n:
            self.trial[i] = code - self.n
            self._unstore(code - self.n)
        elif self.fetches[code] < 0:
            self.failed = 1
        else:
            self.trial[i] = code + self.n
            self._store(code, i)

    def _store(self, v: int, fetch: int) -> int:
        # a store of v, where it has none, some time before its fetch; how many steps that added
        if self._find(v + 2 * self.n) >= 0:
            return 0
        first = self._find(v)
        if first < 0 or first >= fetch:
            self.failed = 1
            return 0
        if self._below(2) == 0:
            before = self._event_before(v, fetch)
            if before > first:
                first = before
        self._put(first + 1 + self._below(fetch - first), v + 2 * self.n)
        return 1

    def _add(self) -> None:
        p = self._below(self.trial_length)
        if self.over > 0:
            for d in range(self.length):
                i = p + d
                if i >= self.length:
                    i -= self.length
                if self.memory[i] > self.budget:
                    p = i
                    break
        # after a removal in the same move, places have shifted by one or two
        if p >= self.trial_length - 1:
            self.failed = 1
            return
        for _ in range(24):
            i = p + 1 + self._below(self.trial_length - p - 1)
            op = self.trial[i]
            if op >= self.n or self.starts[op] == self.starts[op + 1]:
                continue
            u = self.ids[self.starts[op] + self._below(self.starts[op + 1] - self.starts[op])]
            a = self._event_before(u, i)
            if a >= p or a < 0:
                continue
            place = i
            if self._below(2) == 0:
                place = p + 1 + self._below(i - p)
            self._again(u, place, p, 0)
            return
        self.failed = 1

    def _again(self, v: int, place: int, p: int, depth: int) -> int:
        # fetch or compute v at this place, after the step p; how many steps that added
        if self.fetches[v] >= 0 and self._below(2) == 0:
            self._put(place, v + self.n)
            if self.failed != 0:
                return 0
            return 1 + self._store(v, place)
        self._put(place, v)
        if self.failed != 0 or depth >= 4:
            return 1
        added = 1
        for e in range(self.starts[v], self.starts[v + 1]):
            w = self.ids[e]
            if self._event_before(w, place) < p and self._below(2) == 0:
                before = self.trial_length
                self._again(w, place, p, depth + 1)
                if self.failed != 0:
                    return added
                grown = self.trial_length - before
                added += grown
                place += grown
        return added
