"""Predicted against compiled, one construct at a time."""

import jax
import jax.numpy as jnp
import pytest

from recoup._memory import predict

from .programs import array, compiled

lax = jax.lax
square, tall, cube, image = array(256, 256), array(512, 256), array(64, 32, 32), array(8, 32, 32, 16)


def nested_loops(xs, w):
    def outer(c, x):
        c, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), c + x, None, length=8)
        return c, c.sum()

    return jax.grad(lambda xs: lax.scan(outer, xs[0], xs)[0].sum())(xs)


def dropout(key, x):
    a, b = jax.random.split(jax.random.wrap_key_data(key))
    return jax.random.normal(a, x.shape) + x * jax.random.bernoulli(b, 0.5, x.shape).astype(x.dtype)


def pool_gradient(x):
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    return jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID") ** 2).sum())(
        x
    )


def branches(p, x):
    return lax.cond(p > 0, lambda x: jnp.sin(x) @ x, lambda x: x @ x, x).sum()


FEATURES = {
    "branches": (branches, array(), square),
    "while": (
        lambda x, w: lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))[1],
        square,
        square,
    ),
    "counted loop": (lambda x, w: lax.fori_loop(0, 10, lambda i, x: x + jnp.sin(x @ w), x), square, square),
    "nested loops": (nested_loops, array(16, 64, 64), array(64, 64)),
    "mapped loop": (
        lambda xs, w: jax.vmap(lambda x: lax.scan(lambda c, v: (jnp.tanh(c @ w + v), None), x[0], x)[0])(xs),
        array(16, 32, 64),
        array(64, 64),
    ),
    "sort": (lambda x: jnp.sort(x, axis=-1) * 2, tall),
    "largest": (lambda x: lax.top_k(x, 8), tall),
    "cumulative sum": (lambda x: jnp.cumsum(x * 2, axis=0) @ x.T, tall),
    "rows": (lambda x, i: jnp.sin(x)[i] * 2, array(1024, 64), array(2048, dtype=jnp.int32)),
    "segments": (
        lambda x, i: jax.ops.segment_sum(jnp.sin(x), i, num_segments=128),
        array(2048, 64),
        array(2048, dtype=jnp.int32),
    ),
    "update": (
        lambda x, i: lax.dynamic_update_slice(x, jnp.sin(x[:64]), (i, 0)) @ x.T,
        tall,
        array(dtype=jnp.int32),
    ),
    "random draws": (dropout, array(2, dtype=jnp.uint32), tall),
    "max pool": (pool_gradient, image),
    "log-sum-exp": (lambda x: jax.grad(lambda x: jax.nn.logsumexp(x @ x.T, axis=-1).sum())(x), tall),
    "standard deviation": (lambda x: jax.grad(lambda x: jnp.std(x @ x, axis=0).sum())(x), square),
    "integers": (lambda x: ((x * 3 + 1) % 7) @ x, array(256, 256, dtype=jnp.int32)),
    "masks": (lambda x, y: jnp.where((x > 0) & (y < 1) | (x == y), x @ y, y), square, square),
    "transposes": (lambda x: jnp.sin(x.transpose(2, 0, 1)).reshape(32, -1) @ jnp.ones((2048, 8)), cube),
    "shapes": (lambda x: jnp.concatenate([x[::2], x[1::2]], 0) * jnp.flip(x, 1), array(512, 512)),
    "products": (lambda x: jnp.einsum("bij,bkj,bkl->il", x, x, x), array(8, 64, 64)),
    "reductions": (lambda x: ((jnp.sin(x) * 2).sum(0), x.max(0), (x**2).mean()), array(4096, 64)),
    "half precision": (
        lambda x, w: jnp.tanh(x @ w).astype(jnp.float32).sum(),
        array(512, 256, dtype=jnp.bfloat16),
        array(256, 256, dtype=jnp.bfloat16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_feature(name):
    fun, *args = FEATURES[name]
    truth = compiled(fun, *args)
    got = predict(jax.make_jaxpr(fun)(*args))
    whole = truth.temp_size_in_bytes + truth.argument_size_in_bytes + truth.output_size_in_bytes
    assert abs(got.estimate.temporaries_bytes - truth.temp_size_in_bytes) <= 0.05 * whole
    assert got.estimate.outputs_bytes == truth.output_size_in_bytes
    assert not got.opaque
