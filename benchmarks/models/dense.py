"""Dense blocks: the eight-block MLP that the facts about regions on CPU were measured on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models.common import region, sgd, weight

SIZES = {
    "bench": {"blocks": 8, "batch": 2048, "width": 256, "hidden": 1024},
    "device": {"blocks": 8, "batch": 16384, "width": 1024, "hidden": 4096},
    "small": {"blocks": 8, "batch": 256, "width": 32, "hidden": 128},
}


def mlp(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, x) -> (params, loss)`: squared output of residual tanh blocks, plain gradient descent."""
    s, rng = SIZES[scale], np.random.default_rng(0)
    params = [
        {"w1": weight(rng, s["width"], s["hidden"]), "w2": weight(rng, s["hidden"], s["width"])}
        for _ in range(s["blocks"])
    ]
    x = rng.standard_normal((s["batch"], s["width"])).astype(np.float32)

    def block(p: Any, x: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ p["w1"])
        h = jnp.tanh(h * h)
        return x + jnp.tanh(h @ p["w2"])

    def loss_fn(params: Any, x: jax.Array) -> jax.Array:
        for p in params:
            x = region(block, policy)(p, x)
        return jnp.square(x).mean()

    def step(params: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        return sgd(params, grads), loss

    return step, (params, x)
