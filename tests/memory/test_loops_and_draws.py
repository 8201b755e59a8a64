"""Predicted against compiled where a rule was missing once: loops, branches, draws, gathers, callbacks.

Each program holds one construct large enough to show in its arena.
"""

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup._memory import predict

from .programs import array, compiled

lax = jax.lax
square, tall, rows = array(256, 256), array(512, 256), array(6, 512, 64)
key = jax.eval_shape(lambda: jax.random.key(0))
rbg = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
ids = array(512, dtype=jnp.int32)


def dropout(key, x):
    def body(c, i):
        mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, c.shape)
        return jnp.tanh(jnp.where(mask, c / 0.8, jnp.zeros_like(c))), None

    return lax.scan(body, x, jnp.arange(8))[0].sum()


def dead_carry(x, w, xs):
    """A carry that nothing reads, computed by a product."""
    _, ys = lax.scan(lambda c, r: (jnp.tanh(c @ w), jnp.sin(r)), x, xs)
    return ys.sum()


def unrolled(x, xs):
    c, ys = lax.scan(lambda c, r: (jnp.tanh(c + r), c * 2), x, xs, unroll=2)
    return (ys @ c).sum()


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def conv_in_branch(p, x, w):
    gradient = jax.grad(lambda x, w: (jnp.tanh(conv(x, w)) ** 2).sum(), (0, 1))
    return lax.cond(p > 0, gradient, lambda x, w: (x * 2, w * 2), x, w)


def branches_with_residuals(p, x, w):
    def loss(w):
        y = lax.cond(p > 0, lambda x: jnp.tanh(x @ w), lambda x: jnp.sin(x) * 2, x)
        return (y**2).sum()

    return jax.grad(loss)(w)


def two_scatters(v, i):
    return jax.grad(lambda v: (jnp.sin(v[i])).sum() + (v[i[::-1]] ** 2).sum())(v)


def filled(v, i):
    return jax.grad(lambda v: (jnp.take(v, i, axis=0) ** 2).sum())(v)


def told(x, w):
    def body(c, _):
        jax.debug.callback(lambda v: None, c @ w)
        return jnp.tanh(c @ w), c.sum()

    c, s = lax.scan(body, x, None, length=8)
    return c.sum() + s.sum()


def told_outside(x, w):
    jax.debug.callback(lambda v: None, x @ w)
    return jnp.sin(x @ w.T) @ w


def asked(x, w):
    y = jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((512, 256), jnp.float32), jnp.sin(x @ w))
    return y @ w


def empty_parts(x, w):
    y = jnp.concatenate([x[:0], jnp.tanh(x @ w)], 0)
    return (y @ w).sum() + (x[:0] @ w).sum()


def padded(x, w):
    """A concatenation with zeros is padding, which both readers compute."""
    y = jnp.concatenate([jnp.tanh(x @ w), jnp.zeros((512, 256)), jnp.zeros((512, 256))], 1)
    return y.T @ x, y * 2


def bounded(x, xs):
    return jax.grad(
        lambda x: recoup.scan(lambda c, r: (jnp.tanh(c + r), None), x, xs, checkpoints=3)[0].sum()
    )(x)


PROGRAMS = {
    "dropout in a loop": (jax.grad(dropout, 1), key, tall),
    "dropout in a loop, rbg": (jax.grad(dropout, 1), rbg, tall),
    "dead carry": (dead_carry, tall, square, rows),
    "unrolled": (unrolled, square, array(7, 256, 256)),
    "convolution in a branch": (conv_in_branch, array(), rows, array(3, 64, 4)),
    "branches with residuals": (branches_with_residuals, array(), tall, square),
    "two scatters": (two_scatters, square, ids),
    "filled gather": (filled, square, ids),
    "callback in a loop": (told, tall, square),
    "callback": (told_outside, tall, square),
    "answer of the host": (asked, tall, square),
    "no elements": (empty_parts, tall, square),
    "concatenated zeros": (padded, tall, square),
    "recoup.scan": (bounded, square, array(24, 256, 256)),
    "complex exponential": (lambda x: jnp.imag(jnp.exp(lax.complex(x, jnp.sin(x)))) @ x, square),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fun, *args = PROGRAMS[name]
    truth = compiled(fun, *args).temp_size_in_bytes
    got = predict(jax.make_jaxpr(fun)(*args))
    assert not got.opaque
    assert abs(got.estimate.temporaries_bytes - truth) <= 0.03 * truth + 4096


def test_regions_under_plain_jit_are_ordered_by_data():
    """On a JAX whose compiler drops barriers a region's values pass through a select, which is predicted."""

    @recoup.checkpoint
    def block(x, w):
        return x + jnp.tanh(jnp.tanh(x @ w) @ w)

    fun = jax.grad(lambda w, x: (block(block(x, w), w) ** 2).sum())
    args = (square, tall)
    truth = jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes
    got = predict(jax.make_jaxpr(fun)(*args)).estimate.temporaries_bytes
    assert abs(got - truth) <= 0.03 * truth + 4096


def test_arguments_that_nothing_needs_are_not_counted():
    fun = lambda x, y, w: (jnp.sin(x) @ w, None if (y * 2).sum() is None else 0.0)
    args = (tall, tall, square)
    truth = compiled(fun, *args)
    got = predict(jax.make_jaxpr(fun)(*args))
    assert got.estimate.arguments_bytes == truth.argument_size_in_bytes == 4 * (512 * 256 + 256 * 256)


def test_donated_arguments_read_late():
    """An optimizer's state that the new state does not wait for: copied, and the result moved in."""

    def step(m, w, x):
        g = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
        return 0.9 * m, w - m, g

    args = (square, square, tall)
    truth = compiled(step, *args, donate=(0, 1))
    got = predict(jax.make_jaxpr(step)(*args), donated=[True, True, False])
    assert got.estimate.aliased_bytes == truth.alias_size_in_bytes
    assert got.low.temporaries_bytes - 4096 <= truth.temp_size_in_bytes <= got.high.temporaries_bytes + 4096


def test_a_program_of_constants_needs_nothing():
    table = jnp.ones((256, 256))
    got = predict(jax.make_jaxpr(lambda x: x + jnp.sin(table))(square))
    assert got.estimate.temporaries_bytes == 0
