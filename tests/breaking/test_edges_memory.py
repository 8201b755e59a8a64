"""Predicted against compiled for operations at their edges: odd shapes, rare primitives, nothing to do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import recoup
from recoup._memory import predict
from tests.memory.programs import array, compiled

SQUARE, TALL, IMAGE, ROW = array(128, 128), array(512, 64), array(4, 16, 16, 16), array(128)
KEY = array(2, dtype=jnp.uint32)
KEYS = array(64, 2, dtype=jnp.uint32)


def key(data: Any, impl: str = "threefry2x32") -> Any:
    return jax.random.wrap_key_data(data, impl=impl)


def padded(x: Any, w: Any) -> Any:
    x = jnp.pad(jnp.sin(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pooled(x: Any) -> Any:
    total = lax.reduce_window(jnp.sin(x), 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    least = lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return total.sum(), least * 2


def solved(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(
        lambda v: a @ v, jnp.cos(b), lambda _, v: jax.scipy.linalg.solve_triangular(a, v), symmetric=False
    )


def summed(op: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda x: op(jnp.sin(x), axis=0, **options) @ x.T


EDGES: dict[str, tuple[Any, ...]] = {
    "erfc": (lambda x: jax.scipy.special.erfc(x) @ x, SQUARE),
    "erfc of a scalar": (lambda x, s: jax.scipy.special.erfc(s) * (x @ x), SQUARE, array()),
    "erfc in half precision": (lambda x: jax.scipy.special.erfc(x) @ x, array(128, 128, dtype=jnp.bfloat16)),
    "the power 0": (lambda x: (lax.integer_pow(x, 0) + x) @ x, SQUARE),
    "a negative power": (lambda x: lax.integer_pow(x, -3) @ x, SQUARE),
    "complex exponential": (lambda x: jnp.real(jnp.exp(lax.complex(x, x * 2)) * 2) @ x, SQUARE),
    "complex gradient": (
        lambda x: jax.grad(lambda x: jnp.abs(jnp.fft.fft(lax.complex(x, x))).sum())(x),
        TALL,
    ),
    "bits of floats": (
        lambda x: lax.bitcast_convert_type(x, jnp.int32) * 2,
        TALL,
    ),
    "bytes of floats": (lambda x: lax.bitcast_convert_type(jnp.sin(x), jnp.uint8) + jnp.uint8(1), TALL),
    "gamma draws": (lambda k: jax.random.gamma(key(k), 2.0, (512,)) * 2, KEY),
    "narrow draws": (lambda k: jax.random.bits(key(k), (4096,), jnp.uint8) + jnp.uint8(1), KEY),
    "one draw": (lambda k, x: (x @ x) * jax.random.normal(key(k), ()), KEY, SQUARE),
    "draws of many keys": (lambda k: jax.vmap(lambda k: jax.random.normal(key(k), (64,)))(k) * 2, KEYS),
    "many keys from one": (
        lambda k, i: jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key(k), i), (64,)))(i),
        KEY,
        array(64, dtype=jnp.int32),
    ),
    "keys of keys": (lambda k: jax.random.key_data(jax.vmap(jax.random.split)(key(k))).sum(0), KEYS),
    "a seed": (lambda s: jax.random.normal(jax.random.key(s), (4096,)) * 2, array(dtype=jnp.int32)),
    "the block itself": (
        lambda k, x: jax.extend.random.threefry_2x32(k, x),
        KEY,
        array(4096, dtype=jnp.uint32),
    ),
    "rbg draws": (lambda k: jax.random.bits(key(k, "rbg"), (63, 65)) * 2, array(4, dtype=jnp.uint32)),
    "an rbg draw": (lambda k: jax.random.bits(key(k, "rbg"), (2,)) * 2, array(4, dtype=jnp.uint32)),
    "permutation": (lambda k, x: jax.random.permutation(key(k), x) * 2, KEY, TALL),
    "reshape in another order": (lambda x: lax.reshape(jnp.sin(x), (64, 512), (1, 0)) @ x, TALL),
    "reshape of a spread row": (
        lambda r, x: jnp.broadcast_to(r, (128, 128)).reshape(-1, 64) + x,
        ROW,
        array(256, 64),
    ),
    "reshape of a spread column": (
        lambda r, x: jnp.broadcast_to(jnp.sin(r)[:, None], (128, 128)).reshape(-1, 64) @ x,
        ROW,
        array(64, 64),
    ),
    "reshape across a spread": (
        lambda r, x: jnp.broadcast_to(jnp.sin(r)[:, None], (128, 96)).reshape(96, 128) @ x,
        ROW,
        array(128, 128),
    ),
    "transpose of a spread": (
        lambda r, x: jnp.broadcast_to(jnp.sin(r)[:, None], (128, 128)).T @ x,
        ROW,
        SQUARE,
    ),
    "largest of one": (lambda x: jnp.argmax(jnp.sin(x[:, :1]), axis=1) + jnp.argmax(x, axis=1), TALL),
    "padding by nothing": (lambda x: lax.pad(jnp.sin(x), 0.0, ((0, 0, 0), (0, 0, 0))) @ x, SQUARE),
    "padding of nothing": (lambda x: lax.pad(x[:0], 1.0, ((64, 64, 0), (0, 0, 0))) @ x, SQUARE),
    "padding inside and off": (lambda x: lax.pad(jnp.sin(x), 0.0, ((-2, 1, 1), (0, 0, 0))) * 2, TALL),
    "stack of one": (lambda x: jnp.stack([jnp.sin(x)]) @ x, SQUARE),
    "stack and unstack": (lambda x: sum(jnp.unstack(jnp.stack([jnp.sin(x) @ x, x]))), SQUARE),
    "unstack of one": (lambda x: jnp.unstack(jnp.sin(x)[None])[0] @ x, SQUARE),
    "split": (lambda x: [jnp.sin(p) @ p.T for p in jnp.split(x, (100, 300))], TALL),
    "cumulative sum of one": (lambda x: jnp.cumsum(jnp.sin(x)[None], axis=0)[0] @ x, SQUARE),
    "cumulative sum of many": (summed(lax.cumsum), array(1000, 32)),
    "cumulative product backward": (summed(lax.cumprod, reverse=True), array(300, 64)),
    "cumulative maximum": (summed(lax.cummax), array(256, 64)),
    "cumulative log-sum-exp": (summed(lax.cumlogsumexp), array(256, 64)),
    "associative scan": (lambda x: lax.associative_scan(jnp.multiply, jnp.sin(x)) * 2, array(256, 64)),
    "convolution of what is padded": (padded, IMAGE, array(3, 3, 16, 16)),
    "pools": (pooled, IMAGE),
    "pool of what is padded": (
        lambda x: lax.reduce_window(
            jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "VALID"
        ),
        IMAGE,
    ),
    "scatter of nothing": (lambda x, i: jnp.sin(x).at[i].add(1.0) @ x, SQUARE, array(0, dtype=jnp.int32)),
    "update by nothing": (lambda x: lax.dynamic_update_slice(jnp.sin(x), x[:0], (0, 0)) @ x, SQUARE),
    "scatters": (
        lambda x, i: jnp.sin(x).at[i].mul(x[: i.size]).at[i, 0].max(1.0).at[i[:4]].set(0.0),
        TALL,
        array(100, dtype=jnp.int32),
    ),
    "scatter in half precision": (
        lambda x, i: jnp.sin(x).at[i].add(x[: i.size]),
        array(512, 64, dtype=jnp.bfloat16),
        array(100, dtype=jnp.int32),
    ),
    "rows out of range": (lambda x, i: x.at[i].get(mode="fill") * 2, TALL, array(1000, dtype=jnp.int32)),
    "elements out of range": (
        lambda x, i, j: x.at[i, j].get(mode="fill") * 2,
        TALL,
        array(1000, dtype=jnp.int32),
        array(1000, dtype=jnp.int32),
    ),
    "solve by hand": (solved, SQUARE, array(128, 8)),
    "factors": (lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(128)), SQUARE),
    "sorted pairs": (lambda x: lax.sort((jnp.sin(x), x), dimension=0)[1] * 2, TALL),
    "one of several": (
        lambda i, x: lax.switch(i, [jnp.sin, lambda x: x @ x, jnp.cos], x) * 2,
        array(dtype=jnp.int32),
        SQUARE,
    ),
    "choice among three": (
        lambda w, x: lax.select_n(w, x, jnp.sin(x), x * 2) @ x,
        array(128, 128, dtype=jnp.int32),
        SQUARE,
    ),
    "the same either way": (lambda m, x: jnp.where(m, x, x) @ x, array(128, 128, dtype=jnp.bool_), SQUARE),
    "sums of sums": (lambda x: (-jnp.sin(x)).sum(0).sum() + x.sum(1).max(), TALL),
    "nothing at all": (lambda x: x, TALL),
    "no elements": (lambda x: (x @ x.T).sum(), array(0, 64)),
}

# Where the model is known to be off, by what share of all bytes at most; everywhere else it is within 5 %.
MISSES = {
    "gamma draws": 0.95,  # a loop inside that the model does not see
    "keys of keys": 0.3,  # a kilobyte
    "an rbg draw": 0.5,  # 16 bytes
    "solve by hand": 0.5,  # a library call, named as opaque
}


@pytest.mark.parametrize("name", EDGES)
def test_predicted_and_compiled(name: str) -> None:
    fun, *args = EDGES[name]
    truth = compiled(fun, *args)
    got = predict(jax.make_jaxpr(fun)(*args))
    whole = truth.temp_size_in_bytes + truth.argument_size_in_bytes + truth.output_size_in_bytes
    off = abs(got.estimate.temporaries_bytes - truth.temp_size_in_bytes)
    assert off <= MISSES.get(name, 0.05) * whole, (got.estimate.temporaries_bytes, truth.temp_size_in_bytes)
    assert got.estimate.outputs_bytes == truth.output_size_in_bytes


@pytest.mark.parametrize(
    "name", ["erfc", "reshape across a spread", "scatters", "one of several", "no elements"]
)
def test_planned_at_the_edges(name: str) -> None:
    """A plan of any of them says at least what must be there, and changes nothing at its own total."""
    fun, *args = EDGES[name]
    plan = recoup.plan(fun, *args, budget="100%")
    shapes = jax.tree.leaves([args, jax.eval_shape(fun, *args)])
    assert plan.peak_bytes >= sum(np.dtype(s.dtype).itemsize * s.size for s in shapes)
    assert plan.changes_nothing
