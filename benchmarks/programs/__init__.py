"""Random training steps: whole programs, printable as Python, deterministic for a seed, that shrink.

    from benchmarks import programs
    case = programs.draw(7, "small")        # .step, .args, .donate, .description, .primitives, .jaxpr
    programs.smallest(case, fails)          # the shortest text found for which fails(case) holds

and with hypothesis `@given(programs.cases("tiny"))`. `python -m benchmarks.programs SEED [SIZE]` prints one.
"""

from benchmarks.programs.steps import Case as Case
from benchmarks.programs.steps import again as again
from benchmarks.programs.steps import draw as draw
from benchmarks.programs.steps import smallest as smallest
from benchmarks.programs.strategy import cases as cases
