"""Random programs as a hypothesis strategy: its draws are the program's decisions, so failures shrink."""

from typing import TYPE_CHECKING

from benchmarks.programs.choices import Choices
from benchmarks.programs.steps import Case, _case

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def cases(size: str = "tiny", *, double: bool = False) -> "SearchStrategy[Case]":
    """A strategy for cases of this size (see `draw`)."""
    from hypothesis import strategies as st  # only tests need it

    @st.composite
    def case(pick: st.DrawFn) -> Case:
        choices = Choices(lambda n: pick(st.integers(0, n - 1)))
        return _case(choices, size, double, None)

    return case()
