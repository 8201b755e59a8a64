"""What random programs broke once (`python -m benchmarks.fuzz`), each as a few lines."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import recoup

CONSTANT = jax.random.normal(jax.random.key(2), (384, 64))
X = jax.random.normal(jax.random.key(0), (384, 64))


def fits(step: Any, *args: Any, share: float, **options: Any) -> recoup.Fitted:
    """Fitted at a share of what the compiler says of plain, the result equal to plain's."""
    plain = recoup.fit(step, *args, budget="1GiB")
    budget = int(share * plain.memory.total_bytes)
    fitted = recoup.fit(step, *args, budget=budget, **options)
    assert fitted.memory.total_bytes <= budget
    assert recoup.check(step, fitted, *args)
    return fitted


def test_a_budget_that_plain_meets_is_met_where_the_prediction_is_too_high() -> None:
    """The memory model took sin(constant) for an array that waits; the compiler computes it beforehand."""

    def step(x: Any) -> Any:
        return jnp.mean((x + jnp.sin(CONSTANT)) ** 2), x

    assert fits(step, X, share=1.0).plan.changes_nothing


def test_the_lowest_rung_may_need_no_temporaries() -> None:
    def step(x: Any, m: Any, s: Any) -> Any:
        grad = jax.grad(lambda x: jnp.mean(x) ** 2)(x)
        m = 0.9 * m + grad
        s = 0.99 * s * s + grad * grad
        return m, s, x - 0.1 * m / (jnp.sqrt(s) + 1e-3)

    fits(step, X, X, X, share=1.0)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (40, 0, 64)])
def test_reductions_of_empty_arrays(shape: tuple[int, ...]) -> None:
    def step(x: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x)))(x)

    fits(step, jnp.zeros(shape), share=1.0)


SMALL_LOOP = """
import jax, jax.numpy as jnp, recoup
body = jax.checkpoint(lambda c, _: (jnp.sin(jnp.sin(c)), None))
step = jax.grad(lambda x: jnp.sum(jax.lax.scan(body, x, None, length=3)[0]))
x = jnp.ones((3, 1))
assert recoup.check(step, recoup.fit(step, x, budget="100%"), x)
"""


def test_a_barrier_in_a_loop_of_a_few_bytes() -> None:
    """XLA under JAX 0.10 aborted the process: it has no code for a barrier in a loop that it makes a call."""
    found = subprocess.run([sys.executable, "-c", SMALL_LOOP], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("wrap", "share"), [(lambda f: f, 0.8), (jax.checkpoint, 1.0)], ids=["plain", "region"]
)
def test_a_loop_that_hands_its_carry_on_unchanged(wrap: Any, share: float) -> None:
    """The rebuilt loop's carry was an argument of it, which no equation writes."""
    stack = jnp.stack([0.1 * CONSTANT[:64]] * 8)

    def loss(x: Any) -> Any:
        body = wrap(lambda c, w: (c, jnp.tanh(jnp.tanh(c @ w) @ w)))
        c, ys = jax.lax.scan(body, x, stack)
        return jnp.sum(jnp.sin(c)) + jnp.sum(ys * ys)

    fits(jax.value_and_grad(loss), X, share=share)


def test_two_loops_cut_into_segments_with_rows_of_their_own() -> None:
    """The first loop became several equations, and the second one was looked for at its old place."""
    weights, x = [0.2 * CONSTANT[:16, :16], 0.2 * CONSTANT[16:32, :16]], X[:64, :16]

    def loss(weights: Any) -> Any:
        h = x
        for w, n in zip(weights, (36, 49), strict=True):
            rows = jnp.linspace(0.5, 1.0, n).astype(jnp.float32) * w[0, 0]
            h = jax.lax.scan(lambda c, a, w=w: (c + jnp.tanh(jnp.tanh(c @ w) @ w) * a, None), h, rows)[0]
        return jnp.mean(h * h)

    step = jax.value_and_grad(loss)
    fitted = fits(step, weights, share=0.15)
    assert all(trade.segment for trade in fitted.plan.loops) and len(fitted.plan.loops) == 2
    again = recoup.fit(step, weights, plan=fitted.plan, budget=fitted.plan.budget_bytes)
    assert recoup.check(step, again, weights)


def test_parts_of_a_step_between_which_nothing_waits() -> None:
    """Every value was read by the next operation only, so the last part of the step had no window of its own:
    what it recomputes came before what it was first computed by."""

    def loss(x: Any, n: Any) -> Any:
        again = lambda c: (c[0] + 1, jnp.expm1(c[1] / 4))
        y = jax.lax.stop_gradient(jnp.sort(x, axis=1))
        y = jax.lax.while_loop(lambda c: c[0] < n, again, (0, y))[1]
        return jnp.mean(y**2)

    def step(x: Any, n: Any) -> Any:
        value, grad = jax.value_and_grad(loss)(x, n)
        return value, x - 0.1 * grad

    fits(step, X[:64, :64], jnp.int32(3), share=1.0)
