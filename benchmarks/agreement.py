"""How far two runs of one step are apart: to the bit, or beside plain's own distance to a float64 run.

A rewritten program may be fused differently, and then rounds differently. What may be asked of it is that it
is no worse than plain: its distance to a float64 run of the same step, output by output, over plain's
distance. A distance is the largest absolute difference of an output; plain's is taken as at least half a
unit in the last place of the output's largest value, below which float32 cannot tell anything.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Distance:
    """How an output tree differs from plain's.

    Attributes:
        equal: Every output has plain's bits (NaN and signed zeros included).
        ulps: Largest difference from plain, in units in the last place of that output's largest value.
        ratio: Largest distance to float64 over plain's distance to float64; None without a float64 run.
        worst: Path of the output that set `ratio` (or `ulps`).
    """

    equal: bool
    ulps: float
    ratio: float | None
    worst: str


def to_numpy(tree: Any) -> list[tuple[str, np.ndarray]]:
    """The arrays of a result with their paths; keys as their data."""
    leaves = jax.tree.leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), _array(leaf)) for path, leaf in leaves]


def distance(
    plain: list[tuple[str, np.ndarray]],
    other: list[tuple[str, np.ndarray]],
    exact: list[tuple[str, np.ndarray]] | None,
) -> Distance:
    """Compare `other` with `plain`, and both with the float64 run `exact` where there is one."""
    if [(path, x.shape, x.dtype) for path, x in plain] != [(path, x.shape, x.dtype) for path, x in other]:
        raise ValueError("the two results have different paths, shapes or types")
    equal, worst, largest_ulps, largest_ratio = True, "", 0.0, 0.0
    for i, ((path, a), (_, b)) in enumerate(zip(plain, other, strict=True)):
        if a.tobytes() == b.tobytes():
            continue
        equal = False
        if not np.issubdtype(a.dtype, np.floating):
            return Distance(False, float("inf"), float("inf"), path)
        ulp = float(np.finfo(a.dtype).eps) * max(_largest(a), float(np.finfo(a.dtype).tiny))
        ulps = _largest(b.astype(np.float64) - a) / ulp
        ratio = ulps
        if exact is not None:
            own = max(_largest(a - exact[i][1]), ulp / 2)
            ratio = _largest(b - exact[i][1]) / own
        if ratio > (largest_ratio if exact is not None else largest_ulps):
            worst = path
        largest_ulps, largest_ratio = max(largest_ulps, ulps), max(largest_ratio, ratio)
    return Distance(equal, largest_ulps, largest_ratio if exact is not None and not equal else None, worst)


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _largest(x: np.ndarray) -> float:
    """The largest magnitude; a NaN makes it infinite, so that it is never overlooked."""
    if x.size == 0:
        return 0.0
    largest = float(np.max(np.abs(x)))
    return float("inf") if np.isnan(largest) else largest
