"""The error of a budget that cannot be met: the smallest peak found, who holds it, and the bound below it."""

from collections.abc import Sequence

from recoup._bound import lower_bound
from recoup._budget import Budget
from recoup._compiling import CompiledMemory
from recoup._ladder import Ladder, Step
from recoup._report.text import format_bytes
from recoup._strip import region_at
from recoup.errors import BudgetError


def fixed_bytes(step: Step) -> int:
    """Arguments, results and constants, predicted."""
    estimate = step.prediction.estimate
    return estimate.total_bytes - estimate.temporaries_bytes


def infeasible(
    ladder: Ladder,
    limit: int,
    wanted: Budget,
    tried: Sequence[tuple[Step, int]] = (),
    on_each: CompiledMemory | None = None,
    lever: Step | None = None,
) -> BudgetError:
    """The error.

    Args:
      ladder: the rungs that are there.
      limit: the budget in bytes; `wanted`: as it was given.
      tried: rungs that were compiled, with their totals.
      on_each: the plain step's memory on each of several devices, as compiled.
      lever: the step as it is under a lever of the compiler, where that was to be had.
    """
    bound, where = lower_bound(ladder.traced.program, ladder.tradable())
    if on_each is not None and ladder.traced.flat.shards is not None:
        bound = max(on_each.fixed_bytes, bound + on_each.fixed_bytes - fixed_bytes(ladder.steps[0]))
    elif on_each is not None:
        bound, where = on_each.fixed_bytes, "arguments and results on each device"
    lowest = ladder.steps[ladder.lowest() or 0]
    if lever is not None and lever.predicted_bytes < lowest.predicted_bytes:
        lowest = lever
    peak = lowest.prediction.peak
    top = f"; its peak is held by {peak[0].op} at {peak[0].source or 'no user line'}" if peak else ""
    if peak and peak[0].eqn >= 0 and (region := region_at(lowest.flat.eqns[peak[0].eqn])):
        top += f" in region {region!r}"
    found = [f"{format_bytes(lowest.predicted_bytes)} (predicted)"] if on_each is None else []
    compiled = [total for _, total in tried] + ([] if on_each is None else [on_each.total_bytes])
    if compiled:
        found.append(f"{format_bytes(min(compiled))} (compiled)")
    why = "cannot be met" if limit < bound else "is met by no plan that was found"
    return BudgetError(
        f"the budget of {format_bytes(limit)} ({wanted.text!r}) {why}. "
        f"Smallest peak found: {', '.join(found)}{top}. "
        f"No plan can be below {format_bytes(bound)}, set by {where}. "
        "Raise the budget, donate arguments that the step replaces (donate_argnums=), or make the batch "
        "smaller"
    )
