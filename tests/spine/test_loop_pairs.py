"""Loops that stack residuals for other loops: trades give the same results in less memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from recoup import _compat, _cost, _ladder, _loop_pairs
from recoup._compiling import to_function
from recoup._trace import trace

from .helpers import close, compiled, dropout, normal, sgd, temporaries


def lstm(steps=24, batch=16, width=16):
    def loss(p, xs):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((batch, width), jnp.float32)
        _, ys = lax.scan(cell, (zero, zero), xs)
        return jnp.mean(ys * ys)

    params = {"x": normal(0, width, 4 * width, scale=0.2), "h": normal(1, width, 4 * width, scale=0.2)}
    return sgd(loss), (params, normal(2, steps, batch, width))


def layers(depth=6, rows=128, width=32):
    def loss(params, x):
        def body(h, w):
            return h + jnp.tanh(jnp.tanh(h @ w["a"]) @ w["b"]), None

        h, _ = lax.scan(body, x, params)
        return jnp.mean(h * h)

    params = {k: normal(i, depth, width, width, scale=0.2) for i, k in enumerate("ab")}
    return sgd(loss), (params, normal(9, rows, width))


def time_stepping(steps=40, size=512):
    def loss(v, u):
        def body(t, u):
            return u + 0.01 * jnp.sin(v * jnp.roll(u, 1)) * jnp.cos(u + t.astype(jnp.float32))

        u = lax.fori_loop(0, steps, body, u)
        return jnp.mean(u * u)

    return sgd(loss), (normal(0, size), normal(1, size))


def dropout_by_key(depth=6, rows=128, width=32):
    """A key and an integer counter travel in the carry."""

    def loss(params, x, key):
        def body(carry, w):
            h, key, count = carry
            key, now = jax.random.split(key)
            h = h + dropout(now, jnp.tanh(jnp.tanh(h @ w) * (1.0 + count.astype(jnp.float32))))
            return (h, key, count + 1), count

        (h, _, _), counts = lax.scan(body, (x, key, jnp.int32(0)), params)
        return jnp.mean(h * h) + 0.0 * jnp.sum(counts).astype(jnp.float32)

    return sgd(loss), (normal(0, depth, width, width, scale=0.2), normal(1, rows, width), jax.random.key(7))


MAKES = [lstm, layers, time_stepping, dropout_by_key]


@functools.cache
def made(make):
    step, args = make()
    traced = trace(step, args)
    return step, args, traced, _ladder.build(traced), compiled(step, *args)


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_the_lowest_trade(make):
    _, args, traced, ladder, plain = made(make)
    rung = ladder.steps[ladder.lowest() or 0]
    assert any(which >= 0 for which in rung.variant.choice)
    rewritten = compiled(to_function(rung.flat, traced, "step"), *args)
    # XLA fuses a body in another way once operations move in; each iteration may round differently.
    close(plain(*args), rewritten(*args), 64)
    assert temporaries(rewritten) < 0.8 * temporaries(plain)
    assert rung.extra_flops > 0


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_recomputed_operations_are_marked_in_the_second_loop(make):
    _, _, traced, ladder, _ = made(make)
    (pair,) = ladder.pairs[:1]
    which = max(i for i, cut in enumerate(pair.cuts) if not getattr(cut, "segment", 0))
    flat = _loop_pairs.apply(traced.flat, ladder.pairs[:1], [which])
    marked = [
        eqn.primitive.name
        for eqn in equations(flat.closed())
        if _loop_pairs.RECOMPUTE_SCOPE in str(eqn.source_info.name_stack)
    ]
    assert marked and "scan" not in marked
    assert _cost.flops(flat.closed()) > _cost.flops(traced.flat.closed())


def equations(closed):
    for eqn in _compat.open_jaxpr(closed)[0].eqns:
        yield eqn
        for body in _cost.sub_jaxprs(eqn):
            yield from equations(body)


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_every_trade_keeps_the_forward_results(make):
    _, args, traced, ladder, _ = made(make)
    leaves = jax.tree.leaves(args)
    (pair,) = ladder.pairs[:1]
    assert len(pair.cuts) >= 2
    for a, b in zip(pair.cuts, pair.cuts[1:], strict=False):
        assert b.bytes < a.bytes and b.cost >= a.cost
    for which in (0, len(pair.cuts) - 1):
        flat = _loop_pairs.apply(traced.flat, ladder.pairs, [which, *[-1] * (len(ladder.pairs) - 1)])
        # Same arguments and results, types included.
        assert [v.aval for v in flat.outvars] == [v.aval for v in traced.flat.outvars]
        stacked = sum(int(np.prod(v.aval.shape)) for v in flat.eqns[pair.forward].outvars)
        before = sum(int(np.prod(v.aval.shape)) for v in traced.flat.eqns[pair.forward].outvars)
        assert stacked <= before if which else True
    assert len(leaves) == len(traced.flat.invars)


def test_a_row_that_something_else_reads_stays_stacked():
    def step(w, x):
        def loss(w):
            def body(h, _):
                h = jnp.tanh(h @ w)
                return h, h

            h, rows = lax.scan(body, x, None, length=8)
            return jnp.mean(h * h), rows

        (_, rows), grad = jax.value_and_grad(loss, has_aux=True)(w)
        return grad, rows

    args = (normal(0, 32, 32, scale=0.2), normal(1, 64, 32))
    traced = trace(step, args)
    rows = traced.flat.outvars[1]
    for pair in _loop_pairs.find_pairs(traced.flat):
        outs = traced.flat.eqns[pair.forward].outvars
        assert all(outs[p] is not rows for p in pair.residuals)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_short_and_prime_lengths(length):
    step, args = time_stepping(steps=length, size=64)
    traced = trace(step, args)
    ladder = _ladder.build(traced)
    fun = to_function(ladder.steps[ladder.lowest() or 0].flat, traced, "step")
    close(jax.jit(step)(*args), jax.jit(fun)(*args), 16)


def test_a_loop_without_a_backward_is_no_pair():
    def step(x):
        return lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=8)

    assert _loop_pairs.find_pairs(trace(step, (normal(0, 64),)).flat) == []


def test_a_loop_in_a_loop():
    def loss(w, x):
        def outer(h, w):
            h, _ = lax.scan(lambda c, _: (c + 0.1 * jnp.sin(c @ w), None), h, None, length=4)
            return h, None

        return jnp.mean(lax.scan(outer, x, w)[0] ** 2)

    step, args = sgd(loss), (normal(0, 4, 16, 16, scale=0.3), normal(1, 64, 16))
    traced = trace(step, args)
    ladder = _ladder.build(traced)
    low = compiled(to_function(ladder.steps[ladder.lowest() or 0].flat, traced, "step"), *args)
    plain = compiled(step, *args)
    close(plain(*args), low(*args), 64)
    assert temporaries(low) < temporaries(plain)
