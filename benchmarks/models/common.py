"""What the zoo's models share: parameters, regions by hand, dropout, layer norm, losses and optimizers.

Everything is a pure function of arrays and follows the dtype of its arguments, so that a model runs in
float32 and, unchanged, in float64 (the reference that distances are measured to). Parameters are drawn with
NumPy, so they are the same under every JAX version.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Params = Any


def weight(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> np.ndarray:
    """A float32 weight of `shape`, normal, scaled by 1/sqrt(fan in): all axes but the last are inputs."""
    fan_in = max(1, math.prod(shape[:-1]))
    return (gain * rng.standard_normal(shape) / math.sqrt(fan_in)).astype(np.float32)


def experts_weight(rng: np.random.Generator, experts: int, fan_in: int, fan_out: int) -> np.ndarray:
    """One weight for each expert; the leading axis is no input."""
    return np.stack([weight(rng, fan_in, fan_out) for _ in range(experts)])


def stack(layers: list[Params]) -> Params:
    """A list of equal trees as one tree of stacked arrays, for `lax.scan` over layers."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def region(fun: Callable[..., Any], policy: str | None) -> Callable[..., Any]:
    """`fun` under `jax.checkpoint` with one of JAX's built-in policies by name; None leaves it alone."""
    if policy is None:
        return fun
    return jax.checkpoint(fun, policy=getattr(jax.checkpoint_policies, policy))


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias


def dropout(x: Array, key: Array, rate: float) -> Array:
    """Zero a share `rate` of x. The mask is drawn in float32 in both precisions, so both drop the same."""
    keep = jax.random.bernoulli(key, jnp.float32(1.0 - rate), x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Mean negative log-likelihood of integer `labels` under `logits` (classes last)."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1).mean()


def sgd(params: Params, grads: Params, rate: float = 0.01) -> Params:
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def momentum(params: Params, velocity: Params, grads: Params, rate: float = 0.01) -> tuple[Params, Params]:
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity


def adamw_init(params: Params) -> Params:
    """AdamW's state in mid-training: some mean square of the gradient has been seen.

    From zero moments the first update is every gradient over its own magnitude, where rounding decides the
    sign of the smallest: no two compilations would agree on it.
    """
    mean = jax.tree.map(np.zeros_like, params)
    square = jax.tree.map(lambda p: np.full_like(p, 1e-4), params)
    return {"count": np.int32(1000), "mean": mean, "square": square}


def adamw(
    params: Params, state: Params, grads: Params, rate: float = 1e-3, decay: float = 1e-4
) -> tuple[Params, Params]:
    """One AdamW update (Loshchilov & Hutter 2019): decoupled weight decay, bias-corrected moments."""
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], grads)

    def update(p: Array, m: Array, v: Array) -> Array:
        t = count.astype(p.dtype)
        m_hat, v_hat = m / (1.0 - 0.9**t), v / (1.0 - 0.999**t)
        return p - rate * (m_hat / (jnp.sqrt(v_hat) + 1e-8) + decay * p)

    new = jax.tree.map(update, params, mean, square)
    return new, {"count": count, "mean": mean, "square": square}
