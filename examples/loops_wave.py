"""A wave equation inverted for its velocity field, over 10,000 time steps.

A source shakes one end of a string whose wave speed changes along it; receivers record the surface. Starting
from a uniform speed, gradient descent through all the steps finds the slow stretch. Plain reverse mode would
hold every wave field; here 100 are held.

Run: python examples/loops_wave.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from loops_compare import adam, compare, peer_scan

import recoup

POINTS, STEPS, SLOTS = 200, 10_000, 100
DT = 0.2  # in units of one grid spacing at speed 1
RECEIVERS = jnp.arange(10, POINTS, 10)


def simulate(speed: jax.Array, scan: Callable[..., Any]) -> jax.Array:
    """Recordings (STEPS, receivers) of a pulse sent from the left; the ends are fixed."""

    def step(fields: tuple[jax.Array, jax.Array], t: jax.Array) -> Any:
        before, now = fields
        bend = jnp.roll(now, 1) - 2 * now + jnp.roll(now, -1)
        pulse = jnp.exp(-(((t - 300.0) / 80.0) ** 2))
        after = (2 * now - before + (DT * speed) ** 2 * bend).at[3].add(0.01 * pulse)
        after = (after * 0.9999).at[0].set(0.0).at[-1].set(0.0)
        return (now, after), after[RECEIVERS]

    still = jnp.zeros(POINTS)
    return scan(step, (still, still), jnp.arange(STEPS, dtype=jnp.float32))[1]


def main() -> None:
    x = jnp.arange(POINTS)
    true_speed = 1.0 - 0.3 * jnp.exp(-(((x - 120) / 15.0) ** 2))
    recorded = jax.jit(lambda s: simulate(s, jax.lax.scan))(true_speed)

    def loss(scan: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda speed: jnp.mean((simulate(speed, scan) - recorded) ** 2) * 1e4

    def bounded(f: Any, init: Any, xs: Any) -> Any:
        return recoup.scan(f, init, xs, checkpoints=SLOTS)

    guess = jnp.ones(POINTS)
    forms = {"plain lax.scan": loss(jax.lax.scan), f"recoup.scan, {SLOTS} states": loss(bounded)}
    forms["recoup.scan, budget 512 KiB"] = loss(lambda f, i, xs: recoup.scan(f, i, xs, budget="512KiB"))
    peer = peer_scan(SLOTS)
    if peer is not None:
        forms[f"equinox, {SLOTS} states"] = loss(peer)
    print(f"Value and gradient of {STEPS} wave steps:")
    compare(forms, guess, rounds=1)

    gradient = jax.jit(jax.value_and_grad(forms[f"recoup.scan, {SLOTS} states"]))
    speed, state = guess, None
    print("Inversion:")
    for k in range(16):
        value, g = gradient(speed)
        speed, state = adam(speed, g, state, 0.03)
        if k % 5 == 0:
            wrong = jnp.abs(speed - true_speed).mean()
            print(f"  iteration {k:2d}: misfit {value:.4f}, error of the speed {wrong:.4f}")
    print(f"  slowest point found at {int(jnp.argmin(speed[20:180])) + 20}, true 120")


if __name__ == "__main__":
    main()
