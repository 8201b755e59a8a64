"""Where a random program's decisions come from: a seed, a list of earlier decisions, or hypothesis.

Every decision is an integer below a limit, and 0 is always the simplest. So a program is the list of its
decisions, and one with fewer or smaller decisions is simpler: that is what `shrink` looks for, and what
hypothesis looks for by itself.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """A stream of decisions; `made` has those taken so far."""

    def __init__(self, source: Callable[[int], int]):
        self._source = source
        self.made: list[int] = []

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        if n <= 1:
            return 0
        k = self._source(n)
        self.made.append(k)
        return k

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, of which the first is the simplest."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True in so many cases of a hundred; False is simpler."""
        return self.below(100) >= 100 - percent


def seeded(seed: int) -> Choices:
    """Decisions from a seed: the same on every Python and platform."""
    return Choices(random.Random(seed).randrange)


def replayed(made: Sequence[int]) -> Choices:
    """Earlier decisions again; the simplest one where they end or do not fit."""
    left = iter(made)
    return Choices(lambda n: min(next(left, 0), n - 1))


def shrink(made: Sequence[int], fails: Callable[[list[int]], bool], attempts: int = 300) -> list[int]:
    """A shorter and smaller list of decisions for which `fails` still holds.

    Deletes runs of decisions, long ones first, then lowers single ones, until nothing helps or `attempts`
    programs have been tried. `fails` gets a list and must not raise.
    """
    best = list(made)
    left = attempts

    def better(candidate: list[int]) -> bool:
        nonlocal best, left
        if left <= 0 or candidate == best:
            return False
        left -= 1
        if not fails(candidate):
            return False
        best = candidate
        return True

    progress = True
    while progress and left > 0:
        progress = False
        length = max(1, len(best) // 2)
        while length:
            at = len(best) - length
            while at >= 0:
                if better(best[:at] + best[at + length :]):
                    progress = True
                at -= length
            length //= 2
        for i in range(len(best) - 1, -1, -1):
            for step in (best[i], best[i] // 2, 1) if i < len(best) else ():
                if 0 < step <= best[i] and better([*best[:i], best[i] - step, *best[i + 1 :]]):
                    progress = True
                    break
    return best
