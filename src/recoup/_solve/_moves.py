"""The moves of the annealer, on a schedule in slots: made in place, to be accepted or undone by the caller.

- add: a computation of a value that is alive across an overfull step, after that step and before the value's
  next use; operands that are dead there are kept alive or computed again in turn;
- delete: one of several computations of an operation, and then whatever was computed only for it;
- move: a computation to another slot (first computations too, when their order is free);
- exchange: delete and add in one move.

Random numbers come from a linear congruential generator: the same seed gives the same moves everywhere.
C types are in `_moves.pxd`; without a compiler this file runs as it is.
"""

from array import array
from collections.abc import Sequence

from recoup._solve._slots import Slots


class Moves(Slots):
    """Slots with random moves; `failed` says that a move cannot be made, what was logged is then undone.

    Args:
        seed: of the random numbers; the others as for `Slots`.
    """

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
        Slots.__init__(self, starts, ids, sizes, costs, budget, copies, free, stores, fetches)
        self.state = seed & 0x7FFFFFFFFFFFFFFF
        self.factor = 6364136223846793005
        self.increment = 1442695040888963407
        self.mask = 0x7FFFFFFFFFFFFFFF
        # bytes for a unit of cost: what makes a value worth computing again
        self.value = array("d", [b / (c + 1.0) for b, c in zip(sizes, costs, strict=True)])
        self.limit = 0.0
        self.failed = 0
        self.aim = -1
        self.starved = 0
        self.depth_limit = 8
        # changes in one move; longer ones are hardly ever accepted and slow the search down
        self.longest = 32
        self.reach = 48  # slots looked at for a hole, each way
        self._random()
        self._random()

    # -- random numbers

    def _random(self) -> int:
        self.state = (self.state * self.factor + self.increment) & self.mask
        return self.state >> 31

    def _below(self, n: int) -> int:
        # 0 <= result < n; n below 2**31
        return (self._random() * n) >> 32

    # -- moves

    def _move(self) -> None:
        self.failed = 0
        self.aim = -1
        kind = self._below(64)
        if self.free != 0 and kind < 28:
            self._move_primary()
        elif self.over > 0:
            kind = self._below(16)
            if kind < 8:
                self._add_aimed()
            elif kind < 10:
                self._delete()
            elif kind < 13:
                self._move_extra()
            else:
                self._delete()
                if self.failed == 0:
                    self._add_aimed()
        else:
            kind = self._below(16)
            if kind < 6:
                self._delete()
            elif kind < 10:
                self._move_extra()
            elif kind < 15:
                self._delete()
                if self.failed == 0:
                    self._add_aimed()
            else:
                self._add_aimed()

    def _overfull(self) -> int:
        # a slot over the budget, near a random one; without any, a random computation
        start = self._below(self.blocks)
        if self.over > 0:
            for i in range(self.blocks):
                b = start + i
                if b >= self.blocks:
                    b -= self.blocks
                if self.over_in[b] > 0:
                    size = 1 << self.block_shift
                    first = self._below(size)
                    base = self.shift[b] - self.budget
                    for j in range(size):
                        s = (b << self.block_shift) + ((first + j) & (size - 1))
                        if self.memory[s] + base > 0:
                            return s
        return self._below(self.slots)

    def _hole_left(self, s: int, stop: int) -> int:
        # the nearest hole at or left of s and right of stop, or -1
        tries = 0
        while s > stop and tries < self.reach:
            if self.op_at[s] < 0:
                return s
            s -= 1
            tries += 1
        self.starved += 1
        return -1

    def _hole_near(self, s: int, low: int, high: int) -> int:
        # a hole strictly between low and high, near s, or -1
        for d in range(self.reach):
            if s + d < high and s + d > low and self.op_at[s + d] < 0:
                return s + d
            if s - d > low and s - d < high and self.op_at[s - d] < 0:
                return s - d
        self.starved += 1
        return -1

    def _recipe(self, v: int) -> int:
        # how to have v again within the limit: 1 compute, 3 fetch, 0 neither
        computable = self.cost + self.costs[v] <= self.limit
        if self.fetches[v] >= 0:
            price = self.fetches[v]
            if self.fetched[v] == 0:
                price += self.stores[v]
            if self.cost + price <= self.limit and (not computable or self._below(2) == 0):
                return 3
        if computable:
            return 1
        return 0

    def _add_aimed(self) -> None:
        p = self._overfull()
        wanted = 1
        if self._below(4) < 3:
            wanted = 1 + self._below(6)
        best = -1
        end = 0
        for _ in range(48):
            v = self._below(self.n)
            if self.computed[v] >= self.copies:
                continue
            o = self.first[v]
            i = self._find(v, p + 1)
            if i == 0 or i == self.count[v]:
                continue
            b = self.events[o + i]
            if self.events[o + i - 1] == p or self.op_at[b] == v or b - p < 2:
                continue
            if best < 0 or self.value[v] > self.value[best]:
                best = v
                end = b
            wanted -= 1
            if wanted == 0:
                break
        if best < 0:
            self.failed = 1
            return
        recipe = self._recipe(best)
        if recipe == 0:
            self.failed = 1
            return
        s = end - 1
        if s > p + 1 and self._below(2) == 0:
            s = p + 1 + self._below(end - p - 1)
        s = self._hole_left(s, p)
        if s < 0:
            self.failed = 1
            return
        self.aim = p
        self._again(best, s, 0, recipe)

    def _again(self, v: int, s: int, depth: int, recipe: int) -> None:
        # compute or fetch v once more at s
        self._insert(v, s, recipe)
        if self.cost > self.limit or self.logged > self.longest:
            self.failed = 1
            return
        if recipe == 3:
            return
        for e in range(self.starts[v], self.starts[v + 1]):
            w = self.ids[e]
            o = self.first[w]
            i = self._find(w, s)
            if i + 1 < self.count[w] and self.op_at[self.events[o + i + 1]] != w:
                continue  # alive here anyway
            a = self.events[o + i - 1]
            if depth >= self.depth_limit or self.computed[w] >= self.copies:
                continue
            recipe = self._recipe(w)
            if recipe == 0:
                continue
            chance = 5
            if a < self.aim:
                chance = 14
            if self._below(16) < chance:
                stop = a
                if self.aim > a:
                    stop = self.aim
                c = self._hole_left(s - 1, stop)
                if c >= 0:
                    self._again(w, c, depth + 1, recipe)
                    if self.failed != 0:
                        return

    def _founds(self, v: int, s: int) -> int:
        # 1 if a value may begin with the event at s: a computation of v, not a use or a fetch
        if self.op_at[s] == v and self.fetch_at[s] == 0:
            return 1
        return 0

    def _removable(self, v: int, s: int) -> int:
        if self.computed[v] < 2:
            return 0
        if self.primary[v] == s and (self.free == 0 or self.computed[v] - self.fetched[v] < 2):
            return 0
        o = self.first[v]
        if self.events[o] == s and self._founds(v, self.events[o + 1]) == 0:
            return 0
        return 1

    def _delete(self) -> None:
        if self.extra_count == 0:
            return
        s = self.extras[self._below(self.extra_count)]
        v = self.op_at[s]
        if self._removable(v, s) == 0:
            self.failed = 1
            return
        self._drop(v, s)

    def _drop(self, v: int, s: int) -> None:
        if self.primary[v] == s:
            o = self.first[v]
            i = 0
            while self.events[o + i] == s or self._founds(v, self.events[o + i]) == 0:
                i += 1
            self._promote(v, self.events[o + i])
        fetched = self.fetch_at[s]
        self._remove(v, s)
        if self.logged > self.longest:
            self.failed = 1
            return
        if fetched != 0:
            return
        for e in range(self.starts[v], self.starts[v + 1]):
            w = self.ids[e]
            if self.computed[w] < 2:
                continue
            o = self.first[w]
            i = self._find(w, s)
            if i == 0:
                continue
            a = self.events[o + i - 1]
            if self.op_at[a] != w or (i < self.count[w] and self.op_at[self.events[o + i]] != w):
                continue
            if self._removable(w, a) != 0:
                self._drop(w, a)

    def _operands_ready(self, v: int) -> int:
        # the first slot at which all operands of v have been computed once, less one
        low = -1
        for e in range(self.starts[v], self.starts[v + 1]):
            s = self.events[self.first[self.ids[e]]]
            if s > low:
                low = s
        return low

    def _relocate(self, v: int, s: int, low: int, high: int) -> None:
        # move the computation of v at s to a hole strictly between low and high
        if high - low < 2:
            self.failed = 1
            return
        kind = self._below(8)
        if kind < 3:
            t = low + 1 + self._below(high - low - 1)
        elif kind < 5:
            t = s + self._below(65) - 32
        elif kind < 6:
            t = low + 1
        elif kind < 7:
            t = high - 1
        else:
            t = self._overfull()
        if t <= low:
            t = low + 1
        if t >= high:
            t = high - 1
        t = self._hole_near(t, low, high)
        if t < 0:
            self.failed = 1
            return
        flags = 2 * self.fetch_at[s]
        if self.extra_at[s] >= 0:
            flags += 1
        self._remove(v, s)
        self._insert(v, t, flags)

    def _move_extra(self) -> None:
        if self.extra_count == 0:
            return
        s = self.extras[self._below(self.extra_count)]
        v = self.op_at[s]
        low = -1
        if self.fetch_at[s] == 0:
            low = self._operands_ready(v)
        o = self.first[v]
        high = self.slots
        if self.events[o] == s:
            if self._founds(v, self.events[o + 1]) == 0:
                high = self.events[o + 1]
        elif self.free == 0 or self.fetch_at[s] != 0:
            low = max(low, self.events[o])
        i = self._find(v, s)
        # mostly within its own gaps
        if self._below(4) != 0:
            if i > 0:
                low = max(low, self.events[o + i - 1])
            if i + 1 < self.count[v]:
                high = min(high, self.events[o + i + 1])
        self._relocate(v, s, low, high)

    def _move_primary(self) -> None:
        v = self._below(self.n)
        s = self.primary[v]
        if self.over > 0 and self._below(2) == 0:
            # rather one whose value is alive at an overfull slot, or that sits there
            p = self._overfull()
            for _ in range(24):
                i = self._find(v, p)
                if i > 0 and i < self.count[v] and self.op_at[self.events[self.first[v] + i]] != v:
                    break
                v = self._below(self.n)
            s = self.primary[v]
            if self._below(2) == 0:
                # or its next reader, if that is a first computation
                i = self._find(v, p)
                if i < self.count[v]:
                    t = self.events[self.first[v] + i]
                    if self.extra_at[t] < 0:
                        s = t
                        v = self.op_at[t]
        low = self._operands_ready(v)
        high = self.slots
        o = self.first[v]
        if self.events[o] == s and self.count[v] > 1 and self._founds(v, self.events[o + 1]) == 0:
            high = self.events[o + 1]
        self._relocate(v, s, low, high)
