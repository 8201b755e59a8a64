"""The memory profile of a schedule in slots, changed range by range.

It lies in blocks, each with a shift that applies to all of it, its highest entry and its bytes over the
budget: a range is changed in O(block + slots / block), and blocks that stay within the budget are never
looked into. Slots without a computation (holes) count as far below any budget.
C types are in `_profile.pxd`; without a compiler this file runs as it is.
"""

from array import array

HOLE = 1 << 58  # subtracted from the profile where no computation sits


class Profile:
    """Bytes at each slot; `over` is the sum of what exceeds the budget."""

    def __init__(self, budget: int) -> None:
        self.hole = HOLE
        self.budget = budget
        self.over = 0
        self.slots = 0
        self.blocks = 0

    def room_for(self, slots: int) -> bool:
        """Make room for so many slots; whether their number changed."""
        shift = 4
        while (1 << (2 * shift)) < slots and shift < 8:
            shift += 1
        changed = slots != self.slots
        self.block_shift = shift
        self.blocks = (slots >> shift) + 1
        if changed:
            self.slots = slots
            self.memory = array("q", bytes(8 * (self.blocks << shift)))
            self.shift = array("q", bytes(8 * self.blocks))
            self.top = array("q", bytes(8 * self.blocks))
            self.over_in = array("q", bytes(8 * self.blocks))
        return changed

    def set_budget(self, budget: int) -> None:
        """Change the budget of the present state."""
        self.budget = budget
        for b in range(self.blocks):
            self._excess(b)

    def peak(self) -> int:
        """Bytes of the highest step of the present state."""
        return max(self.top[b] + self.shift[b] for b in range(self.blocks))

    def _summit(self, b: int) -> None:
        s = b << self.block_shift
        end = s + (1 << self.block_shift)
        best = self.memory[s]
        while s < end:
            if self.memory[s] > best:
                best = self.memory[s]
            s += 1
        self.top[b] = best

    def _excess(self, b: int) -> None:
        base = self.shift[b] - self.budget
        total = base - base
        if self.top[b] + base > 0:
            s = b << self.block_shift
            end = s + (1 << self.block_shift)
            while s < end:
                x = self.memory[s] + base
                if x > 0:
                    total += x
                s += 1
        elif self.over_in[b] == 0:
            return
        self.over += total - self.over_in[b]
        self.over_in[b] = total

    def _part(self, b: int, left: int, right: int, d: int) -> None:
        # one block, slots left to right of it
        s = left
        if d > 0:
            best = self.top[b]
            while s <= right:
                self.memory[s] += d
                if self.memory[s] > best:
                    best = self.memory[s]
                s += 1
            self.top[b] = best
        else:
            best = self.top[b]
            x = best - 1
            while s <= right:
                if self.memory[s] > x:
                    x = self.memory[s]
                self.memory[s] += d
                s += 1
            if x == best:
                self._summit(b)
        self._excess(b)

    def _add(self, left: int, right: int, d: int) -> None:
        if left > right or d == 0:
            return
        b = left >> self.block_shift
        end = right >> self.block_shift
        if b == end:
            self._part(b, left, right, d)
            return
        self._part(b, left, ((b + 1) << self.block_shift) - 1, d)
        b += 1
        while b < end:
            self.shift[b] += d
            if self.over_in[b] != 0 or self.top[b] + self.shift[b] > self.budget:
                self._excess(b)
            b += 1
        self._part(end, end << self.block_shift, right, d)
