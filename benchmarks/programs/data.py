"""Data for random programs: arrays that depend only on their shape, type and seed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def array(
    shape: tuple[int, ...], dtype: str, seed: int = 0, limit: int = 2, special: bool = False
) -> jax.Array:
    """Floating numbers of a spread that keeps products tame, integers below `limit`, or booleans.

    `special` puts NaN, infinities, signed zeros and a subnormal in a few places.
    """
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, np.integer):
        return jnp.asarray(rng.integers(0, limit, shape), dtype)
    values: Any = rng.standard_normal(shape) / np.sqrt(max(1, shape[-2] if len(shape) > 1 else 1))
    if special:
        flat = values.reshape(-1)
        for i, odd in enumerate((np.nan, np.inf, -np.inf, -0.0, 1e-40)):
            if flat.size > 4 * i:
                flat[(7 * i + seed) % flat.size] = odd
    return jnp.asarray(values, dtype)
