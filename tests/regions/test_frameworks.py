"""Layers of Equinox and Flax as regions, by the one-liners of the documentation."""

import jax
import jax.numpy as jnp
import pytest

from recoup import checkpoint

from .helpers import assert_same, region_eqns

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def test_equinox_modules_are_regions_as_they_are():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(3, 3, 8, 2, key=jax.random.key(0))

    def make(call):
        @eqx.filter_jit
        @eqx.filter_grad
        def grad(model, x):
            return (jax.vmap(call(model))(x) ** 2).sum()

        return grad(mlp, X)

    assert_same(make(checkpoint), make(lambda f: f), rtol=1e-5, atol=1e-6)
    params, static = eqx.partition(mlp, eqx.is_array)
    loss = lambda p, x: jax.vmap(checkpoint(eqx.combine(p, static)))(x).sum()
    assert len(region_eqns(jax.grad(loss), params, X)) == 1


def test_flax_linen_by_its_functional_form():
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(3)])
    variables = model.init(jax.random.key(0), X)

    def grad(call):
        f = call(lambda variables, x: model.apply(variables, x))
        return jax.jit(jax.grad(lambda v, x: (f(v, x) ** 2).sum()))(variables, X)

    assert_same(grad(checkpoint), grad(lambda f: f), rtol=1e-5, atol=1e-6)
    assert_same(grad(lambda f: checkpoint(model.apply)), grad(lambda f: f), rtol=1e-5, atol=1e-6)


def test_flax_nnx_split_first():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)

    def grad(call):
        f = call(lambda state, x: jnp.tanh(nnx.merge(graphdef, state)(x)))
        return jax.jit(jax.grad(lambda s, x: (f(s, x) ** 2).sum()))(state, X)

    assert_same(grad(checkpoint), grad(lambda f: f), rtol=1e-5, atol=1e-6)


def test_haiku_transformed_functions_are_regions_as_they_are():
    hk = pytest.importorskip("haiku")
    layer = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, jnp.tanh(hk.Linear(3)(x))))
    with jax.numpy_dtype_promotion("standard"):
        params, key = layer.init(jax.random.key(0), X), jax.random.key(1)

    def grad(call):
        f = call(layer.apply)
        return jax.jit(jax.grad(lambda p, x: (f(p, key, x) ** 2).sum()))(params, X)

    with jax.numpy_dtype_promotion("standard"):  # Haiku's dropout multiplies by a mask
        assert_same(grad(checkpoint), grad(lambda f: f), rtol=1e-5, atol=1e-6)
        assert len(region_eqns(jax.grad(lambda p: checkpoint(layer.apply)(p, key, X).sum()), params)) == 1
