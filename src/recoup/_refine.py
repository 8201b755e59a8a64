"""The dear end of a ladder, planned again by the solver of general graphs, for budgets that need it.

Idea: the ladder is nearly optimal where a little is recomputed; below that its rungs may lie far apart in
price, for zones are dropped as wholes. From the first dear jump down, `anneal` moves single recomputations,
and what is better by the machine joins the rungs. A budget above that end is not kept waiting for it.
Limits: nothing cheaper than the last rung above the jump is taken, so that a smaller budget never gives a
cheaper plan; plans with host memory are left as they are.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from recoup._ladder import Ladder, Step, spaced
from recoup._planner.anneal import anneal
from recoup._planner.ladder import Rung, pareto_by
from recoup._planner.machine import execute

_DEAR = 0.01  # of one pass: a jump in cost from rung to rung
_TARGETS = 8  # peaks to aim at, shared out among the loop trades of the dear end


def refined(ladder: Ladder, fits: Callable[[Step], bool], progress: Any = None) -> Ladder:
    """The ladder with its dear end planned again, where a rung above that end does not fit.

    Args:
      ladder: what to refine.
      fits: whether a rung is predicted to be within the budget.
      progress: told that it is done.
    """
    steps = ladder.steps
    whole = sum(op.cost for op in ladder.traced.program.ops)
    jumps = (k for k in range(1, len(steps)) if steps[k].cost - steps[k - 1].cost > _DEAR * whole)
    first = next(jumps, None)
    if first is None or any(fits(steps[k]) for k in ladder.last_cheap(first)):
        return ladder
    if progress is not None:
        progress.stage(f"searching between {len(steps) - first} dear plans")
    above, end = steps[:first], steps[first:]
    better = [step for step in _between(above[-1], end, whole) if step.cost > above[-1].cost]
    return replace(
        ladder, steps=(*above, *_together(end, spaced(pareto_by(better, sys.maxsize)))), refined=first
    )


def _between(above: Step, end: Sequence[Step], whole: float) -> Iterable[Step]:
    """Rungs between those of each loop trade, and below them."""
    for variant in dict.fromkeys(step.variant for step in end if not step.variant.moves):
        program, windows = variant.program, variant.layout.windows
        mine = [step for step in end if step.variant is variant]
        given = [s.rung for s in ([above, *mine] if above.variant is variant else mine)]
        dearer = mine[0].cost - mine[0].rung.cost
        plain_flops = mine[0].rung.flops - mine[0].extra_flops
        for schedule in anneal(program, variant.layout, given, max(2, _TARGETS * len(mine) // len(end))):
            run = execute(program, schedule, windows)
            rung = Rung(schedule, run.peak_bytes, run.cost, run.flops)
            extra = run.flops - plain_flops
            yield Step(variant, rung, run.peak_bytes, run.cost + dearer, extra, above.donated)


def _together(end: Sequence[Step], better: Sequence[Step]) -> list[Step]:
    """Both, the cheapest first. What the machine puts below a rung may be above it by the memory model."""
    known = pareto_by([*end, *better], sys.maxsize)
    return sorted([*end, *(step for step in known if step not in end)], key=lambda s: (s.cost, s.peak_bytes))
