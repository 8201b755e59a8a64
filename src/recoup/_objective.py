"""What a plan minimises: counted work, or seconds of this device.

Idea: counted work (FLOPs, with bytes at a fixed exchange rate) is the same on every machine. In seconds,
each operation costs what the device's roofline says (`recoup.calibrate`), and so does memory that a run uses
first: where the operating system hands out pages anew in every run, a plan that holds less can be quicker
than the step as it is. So the quickest of the plans within the budget is taken, which may hold less than it
is allowed.
Source: the roofline of `_calibrate`; benchmarks/results/times-*.md compare its order with the clock.
Limits: seconds are predicted; the machine's peaks choose a few plans, and only those are predicted closely. A
step that the roofline does not put a percent apart stays on the cheaper plan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from recoup import _cost
from recoup._ladder import Ladder, Step

if TYPE_CHECKING:
    from recoup._calibrate import Roofline

FLOPS, SECONDS = "flops", "seconds"
_CLOSELY = 4  # plans that are predicted
_WORTH = 0.01  # of the step's predicted time


@contextmanager
def minimizing(objective: "str | Roofline") -> "Iterator[Roofline | None]":
    """Prices operations by the objective while it is open; the roofline, or None for counted work."""
    from recoup._calibrate import Roofline, calibrate

    if isinstance(objective, Roofline):
        roofline = objective
    elif objective == SECONDS:
        roofline = calibrate()
    elif objective == FLOPS:
        yield None
        return
    else:
        raise ValueError(f'minimize={objective!r}: give "flops", "seconds" or a Roofline')
    with _cost.priced(roofline.price):
        yield roofline


def quickest(ladder: Ladder, at: int, roofline: "Roofline", fits: Callable[[Step], bool]) -> int:
    """The rung from `at` on that takes the least predicted time.

    Args:
      ladder: made under `minimizing`.
      at: the first rung that is within the budget.
      roofline: the rates.
      fits: whether a rung is predicted to be within the budget.
    """
    steps = ladder.steps
    if at + 1 >= len(steps):
        return at
    near = steps[max(1, at)]
    offset = near.prediction.estimate.temporaries_bytes - near.peak_bytes

    def roughly(k: int) -> float:
        return _work(steps[k], roofline) + (steps[k].peak_bytes + offset) / roofline.fresh_bytes

    now = extra_seconds(steps[at], roofline)
    whole = sum(op.cost for op in ladder.traced.program.ops) / roofline.product_flops
    least = now - _WORTH * (whole + extra_seconds(steps[0], roofline))
    lower = [k for k in range(at + 1, len(steps)) if roughly(k) < least]
    best = at
    for k in sorted(sorted(lower, key=roughly)[:_CLOSELY]):
        seconds = extra_seconds(steps[k], roofline)
        if seconds < least and fits(steps[k]):
            best, least = k, seconds
    return best


def extra_seconds(step: Step, roofline: "Roofline") -> float:
    """What a rung's repeats and its temporaries take, predicted."""
    return _work(step, roofline) + step.prediction.estimate.temporaries_bytes / roofline.fresh_bytes


def described(ladder: Ladder, step: Step, roofline: "Roofline") -> str:
    """A rung's predicted time beside that of the step as it is, with the instrument."""
    plain = ladder.steps[0]
    once = sum(op.cost for op in ladder.traced.program.ops) / roofline.product_flops
    once += plain.prediction.estimate.outputs_bytes / roofline.fresh_bytes
    share = (once + extra_seconds(step, roofline)) / (once + extra_seconds(plain, roofline))
    return f"{share:.2f} of the step's as it is (roofline of {roofline.device}, predicted)"


def _work(step: Step, roofline: "Roofline") -> float:
    return step.cost / roofline.product_flops
