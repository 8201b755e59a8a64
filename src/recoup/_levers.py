"""The compiler's levers: an option that lowers a step's memory and repeats nothing, for where a plan is dear.

Idea: XLA:CPU orders operations as they become ready, so that several may run at once; what is ready early is
then alive early. Its other scheduler puts all that an operation needs right before it: many branches that no
backward pass reads again take the memory of one. The memory model predicts the step as it is in that order
too, so that nothing is compiled on the off chance.
A lever repeats nothing, but it is not free: what could run at once may wait. It is one more rung of the
ladder, at a price of `PRICE` of the step's own cost: a smaller budget still never gives a cheaper plan.
Limits: XLA:CPU on one device, and the step as it is: that scheduler does not hold recomputations back, so
that most rungs would need more under it, up to twice as much. No JAX.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recoup._ladder import Step

DEPTH_FIRST = "memory-optimized schedule"
OPTIONS: Mapping[str, Mapping[str, str]] = {
    DEPTH_FIRST: {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
}
PRICE = 0.05  # of the step's cost; measured on two cores: 0.79 to 1.02 of its time (docs/guide/levers.md)
_SAME = ("xla_cpu_scheduler_type", "xla_cpu_enable_concurrency_optimized_scheduler")


def left_alone(options: Mapping[str, Any]) -> bool:
    """Whether the user has not chosen an order himself, by an option or in XLA_FLAGS."""
    flags = os.environ.get("XLA_FLAGS", "")
    return not any(name in options or name in flags for name in _SAME)


def offered(plain: "Step") -> "Step":
    """The step as it is under the lever, as a rung with its price."""
    price = PRICE * sum(op.cost for op in plain.variant.program.ops)
    return replace(plain, cost=price, lever=DEPTH_FIRST)


def pays(lever: "Step", other: "Step | None", budget_bytes: int) -> bool:
    """Whether the lever is the next to compile: it may fit, and the rung that would be is dearer, or there is
    none."""
    dear = other is None or other.cost > lever.cost
    return dear and lever.prediction.low.total_bytes <= budget_bytes


def described(lever: str) -> str:
    """A lever in a sentence, for plans and reports."""
    given = ", ".join(f"{name}={value}" for name, value in OPTIONS[lever].items())
    return (
        f"Compiled with {given}: the compiler's {lever}, in which less is alive at once. "
        f"Less may run at once, too: planned as {PRICE:.0%} more work."
    )
