"""Programs that once broke `fit`, and the forms a step may take: the same numbers, inside the budget."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import recoup

KEY = jax.random.key(0)
STACK = 0.1 * jax.random.normal(KEY, (8, 32, 32))
WEIGHTS = list(STACK[:4])
X = jax.random.normal(KEY, (128, 32))


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(jnp.tanh(x @ w) @ w)


def chain(weights: Any, x: Any) -> Any:
    for w in weights:
        x = layer(x, w)
    return jnp.mean(x * x)


def same(step: Any, *args: Any, budget: str, exact: bool = True, **options: Any) -> recoup.Fitted:
    """Fits, runs, compares with plain (dtype and weak type too), and returns the fitted step."""
    want = jax.jit(step)(*args)
    fitted = recoup.fit(step, *args, budget=budget, **options)
    got = fitted(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert bool(jnp.array_equal(a, b)) if exact else bool(jnp.allclose(a, b, rtol=1e-5, atol=1e-6))
    assert fitted.memory.total_bytes <= fitted.plan.budget_bytes
    return fitted


LOOPS = {
    "plain": lambda w, x: jax.lax.scan(lambda x, p: (layer(x, p), None), x, w)[0],
    "reversed": lambda w, x: jax.lax.scan(lambda x, p: (layer(x, p), None), x, w, reverse=True)[0],
    "unrolled": lambda w, x: jax.lax.scan(lambda x, p: (layer(x, p), None), x, w, unroll=3)[0],
    "without rows": lambda w, x: jax.lax.scan(lambda x, _: (layer(x, w[0]), None), x, None, length=8)[0],
    "fori": lambda w, x: jax.lax.fori_loop(0, 8, lambda i, x: layer(x, w[0]), x),
    "rows used twice": lambda w, x: sum(
        jnp.mean(y) for y in jax.lax.scan(lambda x, p: (layer(x, p), jnp.sin(x)), x, w)
    ),
    "nested": lambda w, x: jax.lax.scan(
        lambda x, p: jax.lax.scan(lambda x, _: (layer(x, p), None), x, None, length=3), x, w
    )[0],
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_traded_with_equal_gradients(name: str) -> None:
    grad = jax.value_and_grad(lambda w, x: jnp.mean(LOOPS[name](w, x) ** 2))
    fitted = same(grad, STACK, X, budget="80%")
    assert not fitted.plan.changes_nothing


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length: int) -> None:
    grad = jax.value_and_grad(lambda w, x: jnp.mean(LOOPS["plain"](w, x) ** 2))
    same(grad, STACK[:length], X, budget="100%")


def test_a_closed_over_array_in_a_loop_body_counts_once() -> None:
    table = jnp.ones((32, 32))

    def step(w: Any) -> Any:
        return jax.lax.scan(lambda x, p: (layer(x, p) @ table * X, None), X, w)[0]

    fitted = same(jax.grad(lambda w: jnp.mean(step(w))), STACK, budget="80%")
    assert fitted.memory.constants_bytes == table.nbytes + X.nbytes
    assert fitted.memory.arguments_bytes == STACK.nbytes


def test_every_form_of_result() -> None:
    table = jnp.arange(8.0)

    def step(w: Any, x: Any, n: Any) -> Any:
        value, grads = jax.value_and_grad(chain)(w, x)
        odd = {"none": None, "empty": {}, "literal": 3.0, "int": n, "zero": jnp.zeros((0, 3))}
        weak = 2.0 * jnp.asarray(1.0)
        return odd | {"argument": x, "twice": (value, value), "constant": table, "weak": weak, "grads": grads}

    same(step, WEIGHTS, X, 3, budget="80%")


def test_dropout_draws_the_same_mask_again() -> None:
    def dropped(w: Any, x: Any, key: Any) -> Any:
        for i, p in enumerate(w):
            key, sub = jax.random.split(key)
            mask = jax.random.bernoulli(jax.random.fold_in(sub, i), 0.8, x.shape)
            x = jnp.where(mask, layer(x, p), jnp.zeros_like(x))
        return jnp.mean(x * x), key

    grad = jax.value_and_grad(dropped, has_aux=True)
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        fitted = same(grad, WEIGHTS, X, key, budget="85%")
        assert not fitted.plan.changes_nothing


def test_effects_happen_once_and_in_order() -> None:
    seen: list[int] = []

    def noisy(w: Any, x: Any) -> Any:
        for i, p in enumerate(w):
            jax.debug.callback(lambda _, i=i: seen.append(i), x[0, 0], ordered=True)
            x = layer(x, p)
        return jnp.mean(x * x)

    fitted = recoup.fit(jax.value_and_grad(noisy), WEIGHTS, X, budget="80%")
    assert not fitted.plan.changes_nothing
    jax.block_until_ready(fitted(WEIGHTS, X))
    jax.effects_barrier()
    assert seen == [0, 1, 2, 3]


def test_references_are_written_once() -> None:
    def counted(w: Any, x: Any, total: Any) -> Any:
        value, grads = jax.value_and_grad(chain)(w, x)
        total[...] += value
        return grads, value

    total = jax.new_ref(jnp.zeros(()))
    fitted = recoup.fit(counted, WEIGHTS, X, total, budget="80%")
    assert not fitted.plan.changes_nothing
    _, value = fitted(WEIGHTS, X, total)
    fitted(WEIGHTS, X, total)
    assert float(total[...]) == 2 * float(value)


def test_the_rewritten_function_can_be_transformed() -> None:
    step = lambda w, x: jax.value_and_grad(chain)(w, x)
    fitted = recoup.fit(step, WEIGHTS, X, budget="80%")
    xs = jnp.stack([X, 2 * X])
    for fun in (jax.jit, lambda f: jax.vmap(f, (None, 0))):
        arg = X if fun is jax.jit else xs
        got, want = fun(fitted.fun)(WEIGHTS, arg), fun(step)(WEIGHTS, arg)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert bool(jnp.allclose(a, b, rtol=1e-5, atol=1e-7))


def test_a_gradient_inside_a_loop_body() -> None:
    """Accumulation over microbatches: the whole step is the body of a scan."""

    def accumulate(w: Any, x: Any) -> Any:
        def body(total: Any, part: Any) -> Any:
            value, grads = jax.value_and_grad(chain)(w, part)
            return jax.tree.map(jnp.add, total, grads), value

        return jax.lax.scan(body, jax.tree.map(jnp.zeros_like, w), x.reshape(4, 32, 32))

    same(accumulate, WEIGHTS, X, budget="100%")
