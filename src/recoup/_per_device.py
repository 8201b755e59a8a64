"""Predicted memory on each of several devices, where the compiler divides a step's arrays.

Idea: such a step is traced as if on one device. Which sizes are divided, over which mesh axes, is read off
the arguments' shardings: an array with an axis of such a size is taken to be divided like it, each mesh axis
once, the largest size first. The compiled plain step then calibrates: its arguments and results are what they
are for every plan, and its temporaries scale the most that is alive at once. Where `shard_map` divides the
arrays the program is a device's own (see `_one_device`), and only the calibration is left.
Limits: sizes that coincide are taken for one another; shardings given by `in_shardings` alone only calibrate.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from recoup._compiling import CompiledMemory
from recoup._ladder import Step
from recoup._memory import Prediction


class PerDevice:
    """Totals per device, in bytes.

    Args:
      arguments: the step's arguments: arrays or shapes, with their shardings where they have some; none where
        predictions are of one device.
      plain: the prediction of the step as it is.
      compiled: what the compiler says of it.
    """

    def __init__(self, arguments: Iterable[Any], plain: Prediction, compiled: CompiledMemory):
        self._divided = divided_sizes(arguments)
        self._fixed_bytes = compiled.fixed_bytes
        self._scale = 0.0
        self.learn(plain, compiled)

    def learn(self, prediction: Prediction, compiled: CompiledMemory) -> None:
        """A compiled plan: predictions are never lower, for their share, than the worst one seen."""
        self._scale = max(self._scale, compiled.temporaries_bytes / max(1.0, self._temporaries(prediction)))

    def total_bytes(self, prediction: Prediction) -> int:
        """The predicted total on each device."""
        return self._fixed_bytes + int(self._scale * self._temporaries(prediction))

    def first_within(self, steps: Sequence[Step], budget_bytes: int, start: int) -> int | None:
        """The first step from `start` on that is predicted within the budget; predictions fall, nearly."""

        def fits(k: int) -> bool:
            return self.total_bytes(steps[k].prediction) <= budget_bytes

        low, high = start, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        if low < len(steps) and fits(low):
            return low
        return next((k for k in range(start, len(steps)) if fits(k)), None)

    def _temporaries(self, prediction: Prediction) -> float:
        if not self._divided:
            return prediction.estimate.temporaries_bytes
        change = np.zeros(len(prediction.timeline) + 1)
        for life in prediction.lives:
            size = life.nbytes / divisor(life.shape, self._divided)
            change[life.first] += size
            change[life.last + 1] -= size
        return float(np.cumsum(change).max())


def divided_sizes(arguments: Iterable[Any]) -> dict[int, dict[str, int]]:
    """For each size that an argument's sharding divides: the mesh axes that do, with their sizes."""
    found: dict[int, dict[str, int]] = {}
    for leaf in arguments:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            continue
        for size, names in zip(leaf.shape, sharding.spec, strict=False):
            for name in (names,) if isinstance(names, str) else names or ():
                if isinstance(name, str):
                    found.setdefault(size, {})[name] = sharding.mesh.shape[name]
    return found


def divisor(shape: Sequence[int], divided: dict[int, dict[str, int]]) -> int:
    """Over how many devices an array of this shape is taken to be divided."""
    axes: dict[str, int] = {}
    for size in sorted(shape, reverse=True):
        axes |= {name: count for name, count in divided.get(size, {}).items() if name not in axes}
    product = 1
    for count in axes.values():
        product *= count
    return product
