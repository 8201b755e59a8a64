"""Loops: an LSTM over a sequence, and a field fitted through the steps of a reaction-diffusion equation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models.common import Array, Params, adamw, adamw_init, region, sgd, weight

LSTM_SIZES = {
    "bench": {"steps": 256, "batch": 32, "inputs": 32, "hidden": 256},
    "device": {"steps": 512, "batch": 128, "inputs": 64, "hidden": 512},
    "small": {"steps": 32, "batch": 16, "inputs": 16, "hidden": 64},
}
PDE_SIZES = {
    "bench": {"steps": 400, "side": 256},
    "small": {"steps": 50, "side": 64},
}


def lstm(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, opt_state, sequence) -> (params, opt_state, loss)`: next-value prediction, AdamW."""
    s, rng = LSTM_SIZES[scale], np.random.default_rng(6)
    params = {
        "input": weight(rng, s["inputs"], 4 * s["hidden"]),
        "recurrent": weight(rng, s["hidden"], 4 * s["hidden"]),
        "bias": np.zeros(4 * s["hidden"], np.float32),
        "head": weight(rng, s["hidden"], s["inputs"]),
    }
    sequence = rng.standard_normal((s["steps"] + 1, s["batch"], s["inputs"])).astype(np.float32)

    def loss_fn(params: Params, sequence: Array) -> Array:
        def cell(carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = carry
            gates = x @ params["input"] + h @ params["recurrent"] + params["bias"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h @ params["head"]

        zero = jnp.zeros((s["batch"], s["hidden"]), sequence.dtype)
        _, predicted = jax.lax.scan(region(cell, policy), (zero, zero), sequence[:-1])
        return jnp.square(predicted - sequence[1:]).mean()

    def step(params: Params, opt_state: Params, sequence: Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, sequence)
        params, opt_state = adamw(params, opt_state, grads)
        return params, opt_state, loss

    return step, (params, adamw_init(params), sequence)


def pde(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(feed, state, target) -> (feed, loss)`: the feed rate, a field, is fitted to a final state.

    Gray-Scott, periodic, explicit Euler: u' = Du lap u - u v^2 + feed (1 - u) and
    v' = Dv lap v + u v^2 - (feed + kill) v.
    """
    s, rng = PDE_SIZES[scale], np.random.default_rng(7)
    shape = (s["side"], s["side"])
    feed = np.full(shape, 0.04, np.float32)
    spots = (rng.random(shape) < 0.1).astype(np.float32)
    state = (1.0 - 0.5 * spots, 0.25 * spots)
    target = rng.random(shape).astype(np.float32)

    def laplacian(u: Array) -> Array:
        return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4.0 * u

    def loss_fn(feed: Array, state: tuple[Array, Array], target: Array) -> Array:
        def advance(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            u, v = state
            reaction = u * v * v
            new_u = u + 0.16 * laplacian(u) - reaction + feed * (1.0 - u)
            new_v = v + 0.08 * laplacian(v) + reaction - (feed + 0.06) * v
            return (new_u, new_v), None

        (_, v), _ = jax.lax.scan(region(advance, policy), state, None, length=s["steps"])
        return jnp.square(v - target).mean()

    def step(feed: Array, state: tuple[Array, Array], target: Array) -> Any:
        loss, grad = jax.value_and_grad(loss_fn)(feed, state, target)
        return sgd(feed, grad, 10.0), loss

    return step, (feed, state, target)
