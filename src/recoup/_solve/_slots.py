"""A schedule in a slot array with holes, and its memory profile, both changed in place by single steps.

A slot holds one computation or nothing. Each value keeps the sorted slots of its events: its computations and
its uses. A value is in memory at each of its events and throughout every gap between two events whose later
one is a use, so inserting or removing one event changes the profile (`_profile`) on one range only.

This file is the only implementation: Python when no compiler was there at installation, otherwise compiled by
Cython with the C types of `_slots.pxd`, with the same results.

Limits: an operation is computed at most `copies` times; integers are 64-bit.
"""

from array import array
from collections.abc import Sequence

from recoup._solve._profile import Profile

INSERT, REMOVE, PROMOTE = 0, 1, 2  # what the log of changes records


class Slots(Profile):
    """The state of a search: insert, remove and undo single computations; cost and bytes over budget at hand.

    Args:
        starts, ids: operands of operation v are ids[starts[v]:starts[v + 1]].
        sizes: bytes of each output.
        costs: integer cost of each computation.
        budget: bytes.
        copies: most computations of one operation.
        free: first computations may change their order.
        stores, fetches: integer costs of moving each value to another store and of bringing it back; a fetch
            below 0 is not allowed. The store is paid once for a value that is ever fetched.

    A computation is coded as its operation `v`, a fetch of its value as `n + v`.
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
        stores: Sequence[int],
        fetches: Sequence[int],
    ) -> None:
        Profile.__init__(self, budget)
        self.n = len(sizes)
        self.stores = array("q", stores)
        self.fetches = array("q", fetches)
        self.starts = array("i", starts)
        self.ids = array("i", [*ids, 0])
        self.sizes = array("q", sizes)
        self.costs = array("q", costs)
        self.copies = copies
        self.free = 1 if free else 0
        uses = [0] * self.n
        for u in ids:
            uses[u] += 1
        room = 0
        first = []
        for v in range(self.n):
            first.append(room)
            room += copies * (1 + uses[v])
        self.first = array("i", first)
        self.events = array("i", bytes(4 * (room + 1)))
        self.count = array("i", bytes(4 * self.n))
        self.computed = array("i", bytes(4 * self.n))
        self.log_kind = array("i", bytes(4 * 4096))
        self.log_op = array("i", bytes(4 * 4096))
        self.log_slot = array("i", bytes(4 * 4096))
        self.primary = array("i", bytes(4 * self.n))
        self.fetched = array("i", bytes(4 * self.n))
        self.logged = 0

    def load(self, order: Sequence[int], spacing: int, places: Sequence[int] = ()) -> None:
        """Take `order` as the state, with holes between its computations. Clears the log.

        Args:
            order: the computations.
            spacing: holes before each of them, and at the end.
            places: if given, holes before each operation's first computation instead, and none at the end;
                `spacing` is then for repeats only. Repeats appear and move where there are holes: this says
                where they may run.
        """
        length = len(order)
        holes = array("i", [spacing]) * (length + 1)
        if places:
            seen = set()
            for i, v in enumerate(order):
                if v not in seen:
                    seen.add(v)
                    holes[i] = places[v]
            holes[length] = 0
        slots = length + sum(holes)
        if self.room_for(slots):
            self.op_at = array("i", bytes(4 * slots))
            self.extra_at = array("i", bytes(4 * slots))
            self.fetch_at = array("i", bytes(4 * slots))
            self.extras = array("i", bytes(4 * slots))
            self.scratch = array("i", bytes(4 * slots))
        packed = array("i", order)
        self._load(packed, length, holes)

    def _load(self, packed: "array[int]", length: int, holes: "array[int]") -> None:
        for s in range(self.blocks << self.block_shift):
            self.memory[s] = 0
        for s in range(self.slots):
            self.op_at[s] = -1
            self.extra_at[s] = -1
            self.fetch_at[s] = 0
        for v in range(self.n):
            self.count[v] = 0
            self.computed[v] = 0
            self.primary[v] = -1
            self.fetched[v] = 0
        self.extra_count = 0
        self.cost = 0
        self.logged = 0
        s = -1
        for i in range(length):
            s += holes[i] + 1
            v = packed[i]
            if v >= self.n:
                v -= self.n
                self.fetch_at[s] = 1
                self._count_fetch(v)
            else:
                self.cost += self.costs[v]
            self.op_at[s] = v
            self.events[self.first[v] + self.count[v]] = s
            self.count[v] += 1
            self.computed[v] += 1
            if self.primary[v] < 0:
                self.primary[v] = s
            else:
                self.extra_at[s] = self.extra_count
                self.extras[self.extra_count] = s
                self.extra_count += 1
            if self.fetch_at[s] == 0:
                for e in range(self.starts[v], self.starts[v + 1]):
                    w = self.ids[e]
                    self.events[self.first[w] + self.count[w]] = s
                    self.count[w] += 1
        for v in range(self.n):
            o = self.first[v]
            for i in range(self.count[v]):
                s = self.events[o + i]
                if i > 0 and self.op_at[s] != v:
                    a = self.events[o + i - 1] + 1
                else:
                    a = s
                # differences first, summed up below
                self.memory[a] += self.sizes[v]
                if s + 1 < self.slots:
                    self.memory[s + 1] -= self.sizes[v]
        total = self.hole - self.hole
        for s in range(self.blocks << self.block_shift):
            if s < self.slots:
                total += self.memory[s]
                self.memory[s] = total
                if self.op_at[s] < 0:
                    self.memory[s] -= self.hole
            else:
                self.memory[s] = -self.hole
        self.over = 0
        for b in range(self.blocks):
            self.shift[b] = 0
            self.over_in[b] = 0
            self._summit(b)
            self._excess(b)

    def order(self) -> list[int]:
        """The computations and fetches of the present state, in running order."""
        return [v + self.n * f for v, f in zip(self.op_at, self.fetch_at, strict=True) if v >= 0]

    # -- events of one value

    def _find(self, v: int, s: int) -> int:
        # index of the first event of v at or after slot s
        low = 0
        high = self.count[v]
        o = self.first[v]
        while low < high:
            mid = (low + high) >> 1
            if self.events[o + mid] < s:
                low = mid + 1
            else:
                high = mid
        return low

    def _change(self, v: int, before: int, s: int, after: int, is_use: int, sign: int) -> None:
        # the profile's change when an event at s appears (sign 1) or goes (-1) between two others (-1: none)
        d = sign * self.sizes[v]
        if after >= 0 and self.op_at[after] != v:
            if before < 0:
                self._add(s, after - 1, d)
            elif is_use == 0:
                self._add(before + 1, s - 1, -d)
        elif is_use != 0 and before >= 0:
            self._add(before + 1, s, d)
        else:
            self._add(s, s, d)

    def _event_in(self, v: int, s: int, is_use: int) -> None:
        o = self.first[v]
        k = self.count[v]
        i = k
        while i > 0 and self.events[o + i - 1] > s:
            self.events[o + i] = self.events[o + i - 1]
            i -= 1
        self.events[o + i] = s
        self.count[v] = k + 1
        before = -1
        after = -1
        if i > 0:
            before = self.events[o + i - 1]
        if i < k:
            after = self.events[o + i + 1]
        self._change(v, before, s, after, is_use, 1)

    def _event_out(self, v: int, s: int, is_use: int) -> None:
        o = self.first[v]
        i = self._find(v, s)
        k = self.count[v] - 1
        before = -1
        after = -1
        if i > 0:
            before = self.events[o + i - 1]
        if i < k:
            after = self.events[o + i + 1]
        j = i
        while j < k:
            self.events[o + j] = self.events[o + j + 1]
            j += 1
        self.count[v] = k
        self._change(v, before, s, after, is_use, -1)

    # -- computations

    def _count_fetch(self, v: int) -> None:
        self.cost += self.fetches[v]
        if self.fetched[v] == 0:
            self.cost += self.stores[v]
        self.fetched[v] += 1

    def _place(self, v: int, s: int, flags: int) -> None:
        # flags: 1 for an extra computation, plus 2 for a fetch
        self.op_at[s] = v
        self._part(s >> self.block_shift, s, s, self.hole)
        self._event_in(v, s, 0)
        if flags & 2:
            self.fetch_at[s] = 1
            self._count_fetch(v)
        else:
            for e in range(self.starts[v], self.starts[v + 1]):
                self._event_in(self.ids[e], s, 1)
            self.cost += self.costs[v]
        self.computed[v] += 1
        if flags & 1:
            self.extra_at[s] = self.extra_count
            self.extras[self.extra_count] = s
            self.extra_count += 1
        else:
            self.primary[v] = s

    def _take(self, v: int, s: int) -> None:
        self._part(s >> self.block_shift, s, s, -self.hole)
        if self.fetch_at[s] != 0:
            self.fetch_at[s] = 0
            self.fetched[v] -= 1
            self.cost -= self.fetches[v]
            if self.fetched[v] == 0:
                self.cost -= self.stores[v]
        else:
            for e in range(self.starts[v], self.starts[v + 1]):
                self._event_out(self.ids[e], s, 1)
            self.cost -= self.costs[v]
        self._event_out(v, s, 0)
        self.computed[v] -= 1
        self.op_at[s] = -1
        i = self.extra_at[s]
        if i >= 0:
            self.extra_count -= 1
            last = self.extras[self.extra_count]
            self.extras[i] = last
            self.extra_at[last] = i
            self.extra_at[s] = -1
        else:
            self.primary[v] = -1

    def _swap_roles(self, v: int, s: int) -> None:
        # the extra computation of v at s becomes its primary, and the other way round
        old = self.primary[v]
        i = self.extra_at[s]
        self.extra_at[s] = -1
        self.extra_at[old] = i
        self.extras[i] = old
        self.primary[v] = s

    def _note(self, kind: int, v: int, s: int) -> None:
        self.log_kind[self.logged] = kind
        self.log_op[self.logged] = v
        self.log_slot[self.logged] = s
        self.logged += 1

    def _insert(self, v: int, s: int, flags: int) -> None:
        self._place(v, s, flags)
        self._note(0, v, 4 * s + flags)

    def _remove(self, v: int, s: int) -> None:
        flags = 2 * self.fetch_at[s]
        if self.extra_at[s] >= 0:
            flags += 1
        self._take(v, s)
        self._note(1, v, 4 * s + flags)

    def _promote(self, v: int, s: int) -> None:
        self._note(2, v, self.primary[v])
        self._swap_roles(v, s)

    def _undo(self) -> None:
        i = self.logged
        while i > 0:
            i -= 1
            if self.log_kind[i] == 0:
                self._take(self.log_op[i], self.log_slot[i] >> 2)
            elif self.log_kind[i] == 1:
                self._place(self.log_op[i], self.log_slot[i] >> 2, self.log_slot[i] & 3)
            else:
                self._swap_roles(self.log_op[i], self.log_slot[i])
        self.logged = 0
