"""Diagnostics come out of regions, scans and gradients, evaluated once."""

import jax
import jax.numpy as jnp
import pytest

from recoup import checkpoint, collect, diagnostic
from recoup.errors import DiagnosticError

from .helpers import assert_same, names, products, region_eqns

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
W = jnp.linspace(-0.5, 0.7, 9).reshape(3, 3)


def layer(x, w):
    h = diagnostic(jnp.tanh(x @ w), "h")
    return x + h @ w


def loss(x, w):
    return (checkpoint(layer)(x, w) ** 2).sum()


def test_out_of_a_region_and_a_gradient_around_it():
    out, found = jax.jit(collect(loss))(X, W)
    assert_same(out, loss(X, W), rtol=1e-5, atol=1e-6)
    assert_same(found, {"h": jnp.tanh(X @ W)}, rtol=1e-5, atol=1e-6)
    (value, grads), found = jax.jit(collect(jax.value_and_grad(loss, (0, 1))))(X, W)
    assert_same((value, grads), jax.value_and_grad(loss, (0, 1))(X, W), rtol=1e-5)
    assert_same(found, {"h": jnp.tanh(X @ W)}, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_a_collecting_loss():
    grads, found = jax.jit(jax.grad(lambda x, w: collect(loss)(x, w), has_aux=True))(X, W)
    assert_same(grads, jax.grad(loss)(X, W), rtol=1e-5)
    assert_same(found["h"], jnp.tanh(X @ W), rtol=1e-5, atol=1e-6)


def test_it_is_kept_and_evaluated_once():
    plain = products(jax.value_and_grad(lambda x, w: (layer(x, w) ** 2).sum(), (0, 1)), X, W)
    assert products(jax.value_and_grad(loss, (0, 1)), X, W) == plain
    assert products(collect(jax.value_and_grad(loss, (0, 1))), X, W) == plain
    assert names(jax.grad(loss, (0, 1)), X, W).count("recoup_diagnostic") == 1
    (backward,) = region_eqns(jax.grad(loss, (0, 1)), X, W)
    assert len(backward.invars) == 4  # x, w, h, the gradient


def test_a_diagnostic_that_nothing_reads():
    def f(x):
        diagnostic(jnp.cos(x).sum(), "unread")
        return jnp.sin(x)

    (_, found) = jax.jit(collect(jax.grad(lambda x: checkpoint(f)(x).sum())))(X)
    assert_same(found, {"unread": jnp.cos(X).sum()}, rtol=1e-5, atol=1e-6)


def test_stacked_over_a_scan_of_regions():
    def stack(x, w):
        def step(c, i):
            return checkpoint(layer)(c, w) * 0.5, i

        c, _ = jax.lax.scan(step, x, jnp.arange(5.0))
        return (c**2).sum()

    out, found = jax.jit(collect(stack))(X, W)
    assert found["h"].shape == (5, 4, 3)
    assert_same(found["h"][0], jnp.tanh(X @ W), rtol=1e-5, atol=1e-6)
    assert_same(out, stack(X, W), rtol=1e-5, atol=1e-6)
    (value, grad), found = jax.jit(collect(jax.value_and_grad(stack)))(X, W)
    assert found["h"].shape == (5, 4, 3)
    assert_same(grad, jax.grad(stack)(X, W), rtol=1e-5)
    assert_same(value, out, rtol=1e-5, atol=1e-6)


def test_a_name_used_twice_gives_a_list_and_a_tree_gives_paths():
    def f(x):
        x = diagnostic(x * 2.0, "x")
        x = diagnostic(x * 3.0, "x")
        return diagnostic({"a": x, "b": (x, "text")}, "tree")

    out, found = collect(f)(X)
    assert out["b"][1] == "text"
    assert_same(found["x"], [X * 2.0, X * 6.0], rtol=1e-5, atol=1e-6)
    assert set(found) == {"x", "tree['a']", "tree['b'][0]"}


def test_vmap_and_jit_around_and_inside():
    f = jax.vmap(jax.jit(lambda x: checkpoint(lambda x: diagnostic(jnp.sin(x), "s") * 2.0)(x)))
    out, found = jax.jit(collect(f))(X)
    assert_same(found["s"], jnp.sin(X), rtol=1e-5, atol=1e-6)
    assert_same(out, 2.0 * jnp.sin(X), rtol=1e-5, atol=1e-6)


def test_nothing_to_collect_and_static_arguments():
    out, found = collect(lambda x, mode: (jnp.sin(x), mode))(X, "train")
    assert out[1] == "train" and found == {}


def test_refused_where_it_cannot_return():
    def f(x):
        return jax.lax.cond(x.sum() > 0, lambda x: diagnostic(jnp.sin(x), "branch"), jnp.cos, x)

    with pytest.raises(
        DiagnosticError, match=r"E-DIAG-001.*'branch' \(.*test_collect.py:\d+\) is inside a cond"
    ):
        collect(f)(X)
    with pytest.raises(TypeError, match="string"):
        diagnostic(X, 1)
