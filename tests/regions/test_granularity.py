"""`regions` says which split is smallest before anything runs, and is right about it."""

import functools

import jax
import jax.numpy as jnp
import pytest

from recoup import checkpoint, regions

from .helpers import assert_same, temporaries

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (512, 64))
PARAMS = [
    tuple(
        0.1 * jax.random.normal(jax.random.fold_in(KEY, 2 * i + j), s)
        for j, s in enumerate([(64, 128), (128, 64)])
    )
    for i in range(6)
]


def block(x, up, down):
    h = jnp.tanh(x @ up)
    return x + jnp.tanh(jnp.tanh(h * h) @ down)


def loss(params, x, f):
    for up, down in params:
        x = f(x, up, down)
    return (x**2).sum()


def flat_args():
    return [*jax.tree.leaves(PARAMS), X]


@pytest.mark.parametrize("wrap", [checkpoint, jax.checkpoint])
def test_a7_the_smallest_candidate_is_told_before_anything_runs(wrap):
    choices = regions(functools.partial(loss, f=wrap(block)), PARAMS, X)
    assert [c.label for c in choices.candidates][:3] == ["none", "each region", "every 2 regions"]
    args = flat_args()
    measured = {
        c.label: temporaries(jax.grad(c.fun, tuple(range(len(args)))), *args)
        for c in choices.candidates
        if c.label in ("none", choices.smallest.label, "one region around everything")
    }
    assert min(measured, key=measured.get) == choices.smallest.label
    for c in choices.candidates:
        if c.label in measured:
            assert abs(c.estimate_bytes - measured[c.label]) < 0.2 * measured[c.label]
    assert choices.smallest.flops < 1.4 * choices.candidates[0].flops


def test_candidates_compute_the_same():
    choices = regions(functools.partial(loss, f=checkpoint(block)), PARAMS, X)
    args = flat_args()
    grads = [jax.jit(jax.grad(c.fun, (0, len(args) - 1)))(*args) for c in choices.candidates[:3]]
    for got in grads[1:]:
        assert_same(got, grads[0])


def test_case_11_one_region_around_everything_and_a_split_that_saves():
    whole = checkpoint(functools.partial(loss, f=block))
    choices = regions(whole, PARAMS, X)
    text = str(choices)
    assert "One region around everything saves nothing" in text
    assert "A split that does save: cut into" in text
    plain = choices.candidates[0]
    assert choices.smallest.estimate_bytes < 0.6 * plain.estimate_bytes
    args = flat_args()
    wrt = tuple(range(len(args)))
    assert temporaries(jax.grad(choices.smallest.fun, wrt), *args) < 0.7 * temporaries(
        jax.grad(plain.fun, wrt), *args
    )


def test_shapes_are_enough_and_gradients_are_refused():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (PARAMS, X))
    assert regions(functools.partial(loss, f=checkpoint(block)), *shapes).smallest.count > 1
    with pytest.raises(ValueError, match="takes a gradient itself"):
        regions(jax.grad(functools.partial(loss, f=block)), PARAMS, X)
    with pytest.raises(ValueError, match="differentiated"):
        regions(lambda x: (x > 0).sum(), X)
