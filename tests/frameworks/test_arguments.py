"""Arguments that are more than trees of arrays: what fit and jit take, keep, give back and refuse."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup._arguments import Fixed

W = 0.1 * jax.random.normal(jax.random.key(0), (6, 32, 32))
X = jax.random.normal(jax.random.key(1), (512, 32))


class Tools(NamedTuple):
    act: Any
    scale: Any


def step(w, x, tools):
    def loss(w):
        h = x
        for p in w:
            h = h + jnp.tanh(tools.act(h @ p))
        return jnp.mean(h * h) * tools.scale

    value, grads = jax.value_and_grad(loss)(w)
    return w - grads, tools, value


def test_functions_as_leaves_go_in_and_come_out() -> None:
    tools = Tools(jnp.sin, jnp.float32(2.0))
    fitted = recoup.fit(step, W, X, tools, budget="70%")
    assert not fitted.plan.changes_nothing
    _, back, value = fitted(W, X, tools)
    assert back.act is jnp.sin
    plain = jax.jit(lambda w, x, s: step(w, x, Tools(jnp.sin, s))[2])(W, X, jnp.float32(2.0))
    assert jnp.array_equal(value, plain)


def test_another_function_is_another_signature() -> None:
    fitted = recoup.fit(step, W, X, Tools(jnp.sin, jnp.float32(2.0)), budget="70%")
    with pytest.raises(recoup.RecoupError, match="fitted for other arguments"):
        fitted(W, X, Tools(jnp.cos, jnp.float32(2.0)))
    run = recoup.jit(step, budget="70%", quiet=True)
    a = run(W, X, Tools(jnp.sin, jnp.float32(2.0)))[2]
    b = run(W, X, Tools(jnp.cos, jnp.float32(2.0)))[2]
    run(W, X, Tools(jnp.cos, jnp.float32(3.0)))
    assert a != b and len(run.fitted) == 2


def test_fixed_values_compare_by_value_and_hash_even_when_unhashable() -> None:
    assert Fixed([1]) == Fixed([1]) and hash(Fixed([1])) == hash(Fixed([1]))
    assert Fixed(1) != Fixed(True) and Fixed("a") != "a"


def test_equinox_numbers_and_flags_are_not_traced() -> None:
    eqx = pytest.importorskip("equinox")
    first, last = (eqx.nn.Linear(i, o, key=jax.random.key(i)) for i, o in ((32, 512), (512, 8)))
    model = eqx.nn.Sequential([first, eqx.nn.Dropout(0.5, inference=True), last])

    def step(model, x):
        loss = lambda m: jnp.mean(jax.vmap(lambda row: jnp.tanh(m(row)))(x) ** 2)
        value, grads = eqx.filter_value_and_grad(loss)(model)
        return eqx.apply_updates(model, grads), value

    fitted = recoup.fit(step, model, X, budget="100%")
    new, value = fitted(model, X)
    assert new.layers[1].inference is True and new.layers[1].p == 0.5
    want, plain = eqx.filter_jit(step)(model, X)
    assert jnp.array_equal(value, plain)
    assert jax.tree.structure(new) == jax.tree.structure(want)
    switched = eqx.nn.inference_mode(model, value=False)
    with pytest.raises(recoup.RecoupError, match="fitted for other arguments"):
        fitted(switched, X)


class TestNNX:
    """Objects that a step changes in place."""

    @pytest.fixture
    def nnx(self) -> Any:
        return pytest.importorskip("flax.nnx")

    def pair(self, nnx: Any) -> Any:
        class Count(nnx.Variable):
            pass

        class Model(nnx.Module):
            def __init__(self, rngs):
                self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(4)])
                self.seen = Count(jnp.int32(0))
                self.training = True

            def __call__(self, x):
                self.seen[...] += 1
                for layer in self.layers:
                    x = x + jnp.tanh(jnp.sin(layer(x)))
                return x

        def step(model, x):
            loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
            params = nnx.state(model, nnx.Param)
            nnx.update(model, jax.tree.map(lambda p, g: p - g, params, grads))
            return loss

        return Model, step

    def test_state_is_written_back(self, nnx: Any) -> None:
        Model, step = self.pair(nnx)
        model, other = Model(nnx.Rngs(0)), Model(nnx.Rngs(0))
        first = model.layers[0]
        fitted = recoup.fit(step, model, X, budget="75%")
        assert model.seen[...] == 0, "fitting does not run the step"
        plain = nnx.jit(step)
        losses = [(fitted(model, X), plain(other, X)) for _ in range(3)]
        assert all(jnp.allclose(a, b, rtol=1e-6) for a, b in losses) and losses[0][0] != losses[2][0]
        assert model.seen[...] == 3 and model.layers[0] is first
        for a, b in zip(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(other)), strict=True):
            assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)

    def test_jit_donation_and_keywords(self, nnx: Any) -> None:
        Model, step = self.pair(nnx)
        model = Model(nnx.Rngs(0))
        run = recoup.jit(step, budget="75%", quiet=True, donate_argnums=0)
        old = model.layers[0].kernel[...]
        run(model, X)
        run(model, X)
        assert len(run.fitted) == 1 and old.is_deleted()
        assert next(iter(run.fitted.values())).memory.aliased_bytes > 0
        by_name = recoup.fit(
            lambda *, model, x: step(model, x), budget="80%", kwargs={"model": model, "x": X}
        )
        by_name(model=model, x=X)
        assert model.seen[...] == 3

    def test_shared_objects_stay_shared(self, nnx: Any) -> None:
        Model, _ = self.pair(nnx)
        model = Model(nnx.Rngs(0))

        def step(a, pair, x):
            assert a is pair["b"]
            loss = jnp.mean(a(x) ** 2)
            pair["b"].seen[...] += 1
            return loss

        fitted = recoup.fit(step, model, {"b": model}, X, budget="100%")
        fitted(model, {"b": model}, X)
        assert model.seen[...] == 2

    def test_a_change_of_structure_is_refused(self, nnx: Any) -> None:
        Model, _ = self.pair(nnx)

        def step(model, x):
            model.training = False
            return jnp.mean(model(x) ** 2)

        with pytest.raises(recoup.RecoupError, match=r"E-EFFECT-001.*step changes the structure"):
            recoup.fit(step, Model(nnx.Rngs(0)), X, budget="100%")
