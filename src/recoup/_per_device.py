"""Predicted memory on each of several devices, where the compiler divides a step's arrays.

Idea: such a step is traced as if on one device. Which sizes are divided, over which mesh axes, is read off
the arguments' shardings: an array with an axis of such a size is taken to be divided like it, each mesh axis
once, the largest size first. The compiled plain step then calibrates: its arguments and results are what they
are for every plan, and its temporaries scale the most that is alive at once. Where `shard_map` divides the
arrays the program is a device's own (see `_one_device`), and only the calibration is left.
Limits: sizes that coincide are taken for one another; shardings given by `in_shardings` alone only calibrate.
"""

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from recoup import _compat
from recoup._compiling import CompiledMemory
from recoup._ladder import Step


class PerDevice:
    """Totals per device, in bytes.

    Args:
      arguments: the step's arguments: arrays or shapes, with their shardings where they have some; none where
        predictions are of one device.
      plain: the step as it is.
      compiled: what the compiler says of it.
    """

    def __init__(self, arguments: Iterable[Any], plain: Step, compiled: CompiledMemory):
        self._divided = divided_sizes(arguments)
        self._fixed_bytes = compiled.fixed_bytes
        self._scale = 0.0
        self.learn(plain, compiled)

    def learn(self, step: Step, compiled: CompiledMemory) -> None:
        """A compiled plan: predictions are never lower, for their share, than the worst one seen."""
        self._scale = max(self._scale, compiled.temporaries_bytes / max(1.0, self._temporaries(step)))

    def total_bytes(self, step: Step) -> int:
        """The predicted total on each device."""
        return self._fixed_bytes + int(self._scale * self._temporaries(step))

    def first_within(self, steps: Sequence[Step], budget_bytes: int, start: int) -> int | None:
        """The first step from `start` on that is predicted within the budget; predictions fall, nearly."""

        def fits(k: int) -> bool:
            return self.total_bytes(steps[k]) <= budget_bytes

        low, high = start, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        if low < len(steps) and fits(low):
            return low
        return next((k for k in range(start, len(steps)) if fits(k)), None)

    def _temporaries(self, step: Step) -> float:
        prediction = step.prediction
        if not self._divided:
            return prediction.estimate.temporaries_bytes
        change = np.zeros(len(prediction.timeline) + 1)
        eqns = step.flat.eqns
        for life in prediction.lives:
            parts = self._parts(eqns[life.eqn] if life.eqn >= 0 else None, life.shape)
            change[life.first] += life.nbytes / parts
            change[life.last + 1] -= life.nbytes / parts
        return float(np.cumsum(change).max())

    def _parts(self, eqn: Any, shape: Sequence[int]) -> int:
        """Over how many devices a buffer is divided: as its equation says, or as its sizes are."""
        if eqn is None:
            return divisor(shape, self._divided)
        if said := _compat.resharded(eqn):
            return said[0]  # a buffer for the copies of all devices
        summed: set[str] = set()
        if eqn.primitive.name == "dot_general":
            # A product over an axis that both operands are divided along (a weight's gradient) is whole on
            # each device, until it is added up.
            contracted, _ = eqn.params["dimension_numbers"]
            found = []
            for v, dims in zip(eqn.invars, contracted, strict=True):
                sizes = [v.aval.shape[d] for d in dims]
                along = axes_of(v.aval.shape, self._divided)
                found.append({name for name, (size, _) in along.items() if size in sizes})
            summed = found[0] & found[1]
        return divisor(shape, self._divided, summed)


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


def divisor(shape: Sequence[int], divided: dict[int, dict[str, int]], without: Container[str] = ()) -> int:
    """Over how many devices an array of this shape is taken to be divided, `without` some mesh axes."""
    return math.prod(count for name, (_, count) in axes_of(shape, divided).items() if name not in without)


def axes_of(shape: Sequence[int], divided: dict[int, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """For each mesh axis that divides an array of this shape: the size that it divides, and into how many."""
    axes: dict[str, tuple[int, int]] = {}
    for size in sorted(shape, reverse=True):
        for name, count in divided.get(size, {}).items():
            axes.setdefault(name, (size, count))
    return axes
