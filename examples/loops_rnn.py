"""A recurrent network trained through a whole year of hourly temperatures: 8,759 steps of backpropagation, no
truncation.

The series is Seattle's hourly temperatures of 2010 from the `vega_datasets` package (pip install
vega_datasets). The weights are captured by the loop's body and get one gradient accumulator, not one per
level of a nested scan.

Run: python examples/loops_rnn.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from loops_compare import adam, compare, peer_scan

import recoup

HIDDEN, SLOTS = 32, 120


def series() -> jax.Array:
    """Hourly temperatures, normalised."""
    try:
        from vega_datasets import local_data
    except ImportError:
        raise SystemExit(
            "this example needs the series in vega_datasets: pip install vega_datasets"
        ) from None
    values = np.asarray(local_data.seattle_temps()["temp"], np.float32)
    return jnp.asarray((values - values.mean()) / values.std())


def init(key: jax.Array) -> dict[str, jax.Array]:
    k = jax.random.split(key, 3)
    return {
        "w": jax.random.normal(k[0], (HIDDEN + 1, 3 * HIDDEN)) / HIDDEN**0.5,
        "b": jnp.zeros(3 * HIDDEN),
        "out": jax.random.normal(k[1], (HIDDEN,)) * 0.1,
    }


def loss(params: dict[str, jax.Array], values: jax.Array, scan: Callable[..., Any]) -> jax.Array:
    """Mean squared error of the next hour's prediction, by a gated recurrent unit."""

    def step(h: jax.Array, x: tuple[jax.Array, jax.Array]) -> Any:
        now, following = x
        z = jnp.concatenate([h, now[None]]) @ params["w"] + params["b"]
        update, reset, candidate = jnp.split(z, 3)
        h = h + jax.nn.sigmoid(update) * (jnp.tanh(candidate * jax.nn.sigmoid(reset)) - h)
        return h, (h @ params["out"] + now - following) ** 2

    _, errors = scan(step, jnp.zeros(HIDDEN), (values[:-1], values[1:]))
    return jnp.mean(errors)


def main() -> None:
    values = series()
    params = init(jax.random.key(0))

    def bounded(f: Any, h: Any, xs: Any) -> Any:
        return recoup.scan(f, h, xs, checkpoints=SLOTS)

    scans: dict[str, Callable[..., Any]] = {
        "plain lax.scan": jax.lax.scan,
        f"recoup.scan, {SLOTS} states": bounded,
    }
    scans["recoup.scan, levels"] = lambda f, h, xs: recoup.scan(f, h, xs, method="levels")
    peer = peer_scan(SLOTS)
    if peer is not None:
        scans[f"equinox, {SLOTS} states"] = peer
    print(f"Value and gradient through {len(values) - 1} steps:")
    forms = {name: (lambda p, scan=scan: loss(p, values, scan)) for name, scan in scans.items()}
    compare(forms, params, rounds=1)

    gradient = jax.jit(jax.value_and_grad(lambda p: loss(p, values, bounded)))
    state = None
    print(f"Training (predicting no change has error {jnp.mean((values[1:] - values[:-1]) ** 2):.4f}):")
    for k in range(21):
        value, g = gradient(params)
        params, state = adam(params, g, state, 0.01)
        if k % 5 == 0:
            print(f"  step {k:2d}: error {value:.4f}")


if __name__ == "__main__":
    main()
