"""Which loops the compiler looks at for what does not change in them.

Its pass takes the loops of one computation after the other, computations inside first. When it has seen so
many instructions of their bodies it leaves the rest of the loops as they are: in a program with many loops
(each random draw is one) what does not change stays inside the outer ones. Instructions are counted before
equal ones are merged, and the count here is not exact: see `HOIST_DOUBT`.
"""

from collections.abc import Sequence


class Hoisting:
    """The loops of a program, by number in the order in which they are lowered."""

    def __init__(self, reached: Sequence[bool] = ()):
        self.reached = reached  # by number; what is not there is reached
        self.sizes: list[int] = []  # of each loop's body, in instructions
        self.order: list[int] = []  # in which the compiler takes the loops

    def reaches(self) -> bool:
        """Whether the next loop is looked at."""
        at = len(self.sizes)
        return at >= len(self.reached) or self.reached[at]

    def made(self, numbers: list[int], instructions: int, inside: Sequence[list[int]] = ()) -> None:
        """A loop is there; `numbers`: the loops of its computation so far, `inside`: of those in it."""
        for loops in inside:
            self.order.extend(loops)
        numbers.append(len(self.sizes))
        self.sizes.append(instructions)

    def within(self, entry: list[int], instructions: int) -> tuple[bool, ...]:
        """What is reached if so many instructions are looked at; `entry`: the loops of the program itself."""
        reached = [False] * len(self.sizes)
        for i in [*self.order, *entry]:
            instructions -= self.sizes[i]
            if instructions <= 0:
                break
            reached[i] = True
        return tuple(reached)
