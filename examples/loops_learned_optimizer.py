"""A learned optimizer: its settings are trained through 1,000 steps of the training that it performs.

The body of the loop takes a gradient of its own (the inner problem's), so that the outer gradient is reverse
mode over a loop that contains reverse mode. The outer problem also asks for a Hessian-vector product, forward
over reverse.

Run: python examples/loops_learned_optimizer.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from loops_compare import adam, compare, peer_scan

import recoup

INNER, SLOTS, FEATURES, ROWS = 1000, 40, 256, 64


def problem(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A badly scaled regression."""
    k = jax.random.split(key, 3)
    x = jax.random.normal(k[0], (ROWS, FEATURES)) * jnp.logspace(0, -1.5, FEATURES)
    return x, x @ jax.random.normal(k[1], (FEATURES,)) + 0.01 * jax.random.normal(k[2], (ROWS,))


def train(
    meta: dict[str, jax.Array], data: tuple[jax.Array, jax.Array], scan: Callable[..., Any]
) -> jax.Array:
    """Mean loss over the inner training: gradient descent with learned rates and momentum."""
    x, y = data
    rates, momentum = jnp.exp(meta["log_rates"]), jax.nn.sigmoid(meta["momentum"])

    def inner(w: jax.Array) -> jax.Array:
        return jnp.mean((x @ w - y) ** 2)

    def step(c: tuple[jax.Array, jax.Array], _: None) -> Any:
        w, v = c
        value, g = jax.value_and_grad(inner)(w)
        v = momentum * v - rates * g
        return (w + v, v), value

    zero = jnp.zeros(FEATURES)
    _, values = scan(step, (zero, zero), None, INNER)
    return jnp.mean(jnp.log(values + 1e-6))


def main() -> None:
    data = problem(jax.random.key(1))
    meta = {"log_rates": jnp.full(FEATURES, -4.0), "momentum": jnp.float32(0.0)}

    def bounded(f: Any, c: Any, xs: Any, n: int) -> Any:
        return recoup.scan(f, c, xs, n, checkpoints=SLOTS)

    scans: dict[str, Callable[..., Any]] = {
        "plain lax.scan": jax.lax.scan,
        f"recoup.scan, {SLOTS} states": bounded,
    }
    peer = peer_scan(SLOTS)
    if peer is not None:
        scans[f"equinox, {SLOTS} states"] = peer
    print(f"Value and gradient of the settings through {INNER} inner steps:")
    compare({name: (lambda m, scan=scan: train(m, data, scan)) for name, scan in scans.items()}, meta)

    gradient = jax.jit(jax.value_and_grad(lambda m: train(m, data, bounded)))
    state, start = None, meta
    for k in range(16):
        value, g = gradient(meta)
        meta, state = adam(meta, g, state, 0.1)
        if k % 5 == 0:
            print(f"  outer step {k:2d}: mean log loss {value:.3f}")

    def curvature(scan: Callable[..., Any]) -> Any:
        direction = jax.tree.map(jnp.ones_like, start)
        f = jax.grad(lambda m: train(m, data, scan))
        return jax.jit(lambda m: jax.jvp(f, (m,), (direction,))[1])

    a, b = curvature(bounded)(start), curvature(jax.lax.scan)(start)
    gap = jnp.abs(a["log_rates"] - b["log_rates"]).max() / jnp.abs(b["log_rates"]).max()
    print(f"  Hessian-vector product against plain: {gap:.1e} relative")


if __name__ == "__main__":
    main()
