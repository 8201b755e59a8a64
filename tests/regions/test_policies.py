"""Policies are data; they keep what they say, and say what they did not find."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import recoup
from recoup import checkpoint, keep, policies
from recoup.errors import RegionWarning

from .helpers import assert_same, products, region_eqns

X = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
U = jnp.linspace(-0.5, 0.7, 24).reshape(4, 6)
D = jnp.linspace(0.5, -0.7, 24).reshape(6, 4)


def mlp(x, up, down):
    h = jax.nn.gelu(keep(x @ up, "up"))
    return x + jnp.tanh(keep(h @ down, "down"))


def grad_of(f):
    return jax.grad(lambda x, up, down: (f(x, up, down) ** 2).sum(), (0, 1, 2))


def recomputed(f):
    return products(grad_of(f), X, U, D) - products(grad_of(mlp), X, U, D)


def kept_shapes(f):
    (backward,) = region_eqns(grad_of(f), X, U, D)
    operands = backward.invars[: len(backward.invars) - 1]
    return sorted(v.aval.shape for v in operands)[:]


def test_keep_alone_keeps_every_name():
    f = checkpoint(mlp)
    assert recomputed(f) == 0
    assert_same(jax.jit(grad_of(f))(X, U, D), jax.jit(grad_of(mlp))(X, U, D), rtol=1e-5, atol=1e-6)


def test_a_policy_by_name_chooses_among_the_names():
    assert recomputed(checkpoint(mlp, policy=policies.names("up"))) == 1
    assert recomputed(checkpoint(mlp, policy=policies.names("up", "down"))) == 0
    assert recomputed(checkpoint(mlp, policy=policies.nothing)) == 0  # keep still keeps


def test_keep_is_the_identity_outside_a_region():
    tree = keep({"a": X, "b": None, "c": "text"}, "tree")
    assert tree["c"] == "text" and tree["b"] is None
    assert_same(jax.jit(grad_of(mlp))(X, U, D), jax.jit(grad_of(_plain))(X, U, D))
    with pytest.raises(TypeError, match="string"):
        keep(X, 3)


def _plain(x, up, down):
    return x + jnp.tanh(jax.nn.gelu(x @ up) @ down)


@pytest.mark.parametrize(
    ("policy", "count"),
    [
        (policies.products, 0),
        (policies.unbatched_products, 0),
        (policies.operations("dot_general"), 0),
        (policies.costly(1.0), 0),
        (policies.at_least(8 * 6 * 4), 1),
        (policies.at_most(8 * 4 * 4), 1),
        (policies.at_most(8 * 4 * 4) & policies.products, 1),
        (policies.at_most(8 * 4 * 4) | policies.at_least("192B"), 0),
        (policies.everything, 0),
    ],
)
def test_policies_by_operation_size_and_cost(policy, count):
    f = checkpoint(_plain, policy=policy)
    assert recomputed(f) == count
    assert_same(jax.jit(grad_of(f))(X, U, D), jax.jit(grad_of(_plain))(X, U, D), rtol=1e-5, atol=1e-6)


def test_unbatched_products_leaves_attention_scores_out():
    q = jnp.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)

    def attend(q, w):
        q = jnp.sin(q @ w)
        return jnp.sin(jnp.einsum("bij,bkj->bik", q, q)).sum()

    def count(policy):
        f = checkpoint(attend, policy=policy)
        (backward,) = region_eqns(jax.grad(f, (0, 1)), q, jnp.eye(4))
        return sum(e.primitive.name == "dot_general" for e in backward.params["jaxpr"].eqns)

    assert count(policies.unbatched_products) == count(policies.products) + 1


def test_a_policy_is_data():
    a = policies.names("b", "a") | ~policies.at_most("1KiB")
    b = policies.names("a", "b") | ~policies.at_most(1024)
    assert a == b and hash(a) == hash(b)
    assert repr(a) == "(policies.names('a', 'b') | ~policies.at_most(1024))"
    assert repr(policies.products) == "policies.products"
    assert eval(repr(a), {"policies": policies}) == a
    assert policies.names("a") != policies.names("b")


def test_a_name_that_matches_nothing_is_reported_with_the_nearest():
    with pytest.warns(RegionWarning, match=r"no value named 'upp'; did you mean 'up'\?") as caught:
        jax.make_jaxpr(grad_of(checkpoint(mlp, policy=policies.names("upp"))))(X, U, D)
    assert caught[0].filename == __file__
    with pytest.warns(RegionWarning, match="its names are 'down', 'up'"):
        jax.make_jaxpr(grad_of(checkpoint(mlp, policy=policies.names("zzzzzz"))))(X, U, D)
    with pytest.warns(RegionWarning, match="it has no names"):
        jax.make_jaxpr(grad_of(checkpoint(_plain, policy=policies.names("up"))))(X, U, D)


def test_a_policy_that_keeps_nothing_is_reported():
    with pytest.warns(RegionWarning, match=r"operations\('fft'\) keeps no value of region '_plain'"):
        jax.make_jaxpr(grad_of(checkpoint(_plain, policy=policies.operations("fft"))))(X, U, D)


def test_a_name_after_the_activation_is_reported_and_the_product_recomputed():
    def late(x, up, down):
        return x + keep(jax.nn.gelu(x @ up), "act") @ down

    f = checkpoint(late)
    message = (
        r"'act' is kept, and the dot_general \(.*test_policies.py:\d+\) that it is computed from is still"
    )
    with pytest.warns(RegionWarning, match=message):
        assert products(grad_of(f), X, U, D) - products(grad_of(late), X, U, D) == 1


def test_a_name_after_tanh_saves_the_product_as_its_derivative_reads_the_result():
    def late(x, up, down):
        return x + keep(jnp.tanh(x @ up), "act") @ down

    f = checkpoint(late)
    assert products(grad_of(f), X, U, D) == products(grad_of(late), X, U, D)


def test_names_inside_scans_and_calls_are_kept_per_step():
    def stack(x, up, down):
        body = jax.jit(lambda c: _named(c, up, down))
        return jax.lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]

    def _named(c, up, down):
        return c + jnp.sin(keep(c @ up, "up")) @ down

    f = checkpoint(stack)
    (backward,) = region_eqns(grad_of(f), X, U, D)
    assert (3, 8, 6) in [v.aval.shape for v in backward.invars]
    assert_same(jax.jit(grad_of(f))(X, U, D), jax.jit(grad_of(stack))(X, U, D), rtol=1e-5)


def test_jax_names_are_kept_if_a_policy_asks():
    def f(x, up, down):
        return x + jnp.sin(checkpoint_name(x @ up, "up")) @ down

    counts = [products(grad_of(checkpoint(f, policy=p)), X, U, D) for p in (policies.names("up"), None)]
    assert counts[1] - counts[0] == 1


@pytest.mark.parametrize("remat3", [False, True])
def test_policies_do_not_depend_on_remat3(remat3):
    if not hasattr(jax.config, "jax_remat3"):
        pytest.skip("this JAX has one remat")
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", remat3)
    try:
        assert recomputed(checkpoint(mlp)) == 0
        assert recomputed(checkpoint(mlp, policy=policies.names("up"))) == 1
        assert recomputed(checkpoint(_plain, policy=policies.products)) == 0
    finally:
        jax.config.update("jax_remat3", before)


def test_wrong_policies_are_refused():
    with pytest.raises(TypeError, match=re.escape("policies.products")):
        checkpoint(mlp, policy=jax.checkpoint_policies.dots_saveable)
    with pytest.raises(TypeError, match="strings"):
        policies.names(1)
    with pytest.raises(ValueError, match="size"):
        policies.at_most("50%")
    assert functools.partial(checkpoint, policy=None)(mlp) is not None
    assert recoup.policies is policies
