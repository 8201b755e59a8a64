"""An ODE with adaptive steps: a loop whose length nobody knows before it ends, differentiated in reverse.

The Van der Pol oscillator, solved by an embedded pair of second and third order (Bogacki and Shampine, 1989)
that picks its own step sizes. `jax.lax.while_loop` cannot be differentiated in reverse; `recoup.while_loop`
can, with 32 states whatever the number of steps, also for a batch of oscillators that need different numbers
of steps.

Run: python examples/loops_ode.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from loops_compare import compare

import recoup

SLOTS = 32
END, TOLERANCE = 20.0, 1e-4


def field(y: jax.Array, mu: jax.Array) -> jax.Array:
    """Van der Pol: x'' = mu (1 - x^2) x' - x."""
    return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


def solve(mu: jax.Array, y: jax.Array, loop: Callable[..., Any]) -> tuple[jax.Array, jax.Array]:
    """State at END and the number of attempted steps."""

    def attempt(c: tuple[Any, ...]) -> tuple[Any, ...]:
        y, t, h, n = c
        h = jnp.minimum(h, END - t)
        k1 = field(y, mu)
        k2 = field(y + h * k1 / 2, mu)
        k3 = field(y + 3 * h * k2 / 4, mu)
        new = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = field(new, mu)
        wrong = h * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
        ratio = jnp.sqrt(jnp.mean((wrong / (TOLERANCE * (1 + jnp.abs(y)))) ** 2)) + 1e-10
        accept = ratio <= 1
        h_next = h * jnp.clip(0.9 * ratio ** (-1 / 3), 0.2, 5.0)
        return jnp.where(accept, new, y), jnp.where(accept, t + h, t), h_next, n + 1

    y, _, _, n = loop(
        lambda c: c[1] < END - 1e-5, attempt, (y, jnp.float32(0), jnp.float32(1e-3), jnp.int32(0))
    )
    return y, n


def bounded(cond: Any, body: Any, init: Any) -> Any:
    return recoup.while_loop(cond, body, init, checkpoints=SLOTS, max_steps=100_000)


def diffrax_loss(start: jax.Array) -> Callable[[jax.Array], jax.Array] | None:
    """The same equation by Diffrax's form of this pair of methods, where Diffrax is installed.

    It controls its steps in its own way, so their number and the last digits differ.
    """
    try:
        import diffrax
    except ImportError:
        return None

    def loss(mu: jax.Array) -> jax.Array:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, mu: field(y, mu)), diffrax.Bosh3(), 0.0, END, 1e-3, start, mu,
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE), max_steps=100_000,
            adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=SLOTS),
        )  # fmt: skip
        return jnp.sum(found.ys[-1] ** 2)

    return loss


def main() -> None:
    start = jnp.array([2.0, 0.0])

    def loss(loop: Callable[..., Any]) -> Callable[..., Any]:
        return lambda mu: jnp.sum(solve(mu, start, loop)[0] ** 2)

    forms = {f"recoup.while_loop, {SLOTS} states": loss(bounded), "lax.while_loop": loss(jax.lax.while_loop)}
    try:
        import equinox.internal as eqxi
    except ImportError:
        pass
    else:
        forms[f"equinox, {SLOTS} states"] = loss(
            lambda c, b, i: eqxi.while_loop(
                c, b, i, kind="checkpointed", checkpoints=SLOTS, max_steps=100_000
            )
        )
    theirs = diffrax_loss(start)
    if theirs is not None:
        forms[f"diffrax, {SLOTS} states (own control)"] = theirs
    mu = jnp.float32(3.0)
    _, steps = jax.jit(lambda mu: solve(mu, start, bounded))(mu)
    print(f"Value and gradient of an adaptive solve of {int(steps)} steps:")
    compare(forms, mu)
    print(recoup.loop_plan(lambda y, _: (y, None), (start, mu, mu, jnp.int32(0)), checkpoints=SLOTS))

    damping = jnp.linspace(0.5, 8.0, 6)
    ends, counts = jax.jit(jax.vmap(lambda mu: solve(mu, start, bounded)))(damping)
    gradients = jax.jit(jax.vmap(jax.grad(loss(bounded))))(damping)
    print("A batch that stops at different times (mu, steps, gradient):")
    for m, n, g in zip(damping, counts, gradients, strict=True):
        print(f"  {m:4.1f}  {int(n):5d}  {g:+.4f}")
    curvature = jax.jit(jax.grad(jax.grad(loss(bounded))))(mu)
    print(f"Second derivative at mu = 3: {curvature:+.4f}; ends {ends.shape}")


if __name__ == "__main__":
    main()
