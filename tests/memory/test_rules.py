"""One small program for each rule found in random programs: predicted to the buffer.

Each fails without its rule by one array of the program or more. Differences of 4 KiB count as none.
"""

import jax
import jax.numpy as jnp
import pytest

from recoup import _compat
from recoup._memory import predict
from recoup._memory._tables import tables

from .programs import array, compiled

lax = jax.lax
rows, tall, stack = array(256, 64), array(512, 128), array(6, 256, 64)
half = array(384, 128, dtype=jnp.bfloat16)


def squares(fun):
    """The gradient of the mean of squares of what `fun` returns, and the mean."""
    return jax.value_and_grad(lambda *args: jnp.mean(fun(*args).astype(jnp.float32) ** 2))


def noise_in_a_loop(x, xs, key):
    """The draw is the same in each trip: it is made before the loop."""

    def body(c, row):
        noise = row * jax.random.gumbel(key, row.shape)
        return jnp.tanh(c + row), noise

    return lax.scan(body, x, xs)


def slice_and_rest(x, w, i):
    """The slice's cotangent is added in place to that of the rest."""
    return squares(lambda x: jnp.tanh(x @ w) @ w + jnp.sum(lax.dynamic_slice_in_dim(x, i, 256, 0)))(x)


def spread_alike(x, y):
    """Arithmetic on two values that are spread alike happens before they are spread."""
    wide = [jnp.broadcast_to(v, (32, *v.shape)) for v in (x, y)]
    return jnp.mean((wide[0] / (2 + wide[1])) ** 2)


def transposed_sum(x):
    """A reduction of arithmetic on a transposed value: the transpose is written, and reduced by windows."""
    return jnp.mean(jnp.moveaxis(x, 0, -1) ** 2)


def loop_before_the_loss(x):
    """A loop comes first in the module, since nothing reads its counter: so does all that it needs."""
    doubled = squares(lambda x: lax.fori_loop(0, 6, lambda i, c: -c, x))
    return doubled(x)


def tuples_take_turns(x, w, n):
    """A loop starts one turn after its operands are there."""

    def loss(x, w):
        v = x / (2 + x)
        last = lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * c[1]), (0, lax.stop_gradient(v))
        )[1]
        return jnp.mean(jnp.tanh(v @ w) ** 2) + jnp.mean((last - last.mean(-1, keepdims=True)) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(x, w)


def unchanged(x, xs):
    """A carry that no trip changes is what it was before the loop: zeros add nothing."""

    def body(c, row):
        return (c[0], jnp.sin(c[1] + row)), None

    zeros, last = lax.scan(body, (jnp.zeros_like(x), x), xs)[0]
    return jnp.tanh(zeros + x) @ last.T


RULES = {
    "invariant loop": (noise_in_a_loop, rows, stack, array(2, dtype=jnp.uint32)),
    "slice and rest": (slice_and_rest, tall, array(128, 128), array(dtype=jnp.int32)),
    "short cumulative sum": (squares(lambda x: jnp.cumsum(jnp.sin(x), 0)), stack),
    "exact half precision": (lambda x: jnp.hypot(jnp.sin(x), 1 + x * x), half),
    "half precision largest": (lambda x: jnp.max(jnp.sin(x), 0), half),
    "spread alike": (spread_alike, rows, rows),
    "sum of a multiple": (lambda x: jnp.sum(jnp.broadcast_to(jnp.sin(x), (32, 256, 64)), 0), rows),
    "transposed sum": (transposed_sum, rows),
    "parallel prefix": (squares(lambda x: lax.associative_scan(jnp.add, x, axis=0)), array(256, 128)),
    "spread paddings": (
        lambda x, y: (lax.pad(x, 0.0, ((1, 1, 1), (0, 0, 0))) + y).sum(0),
        array(64, 128),
        array(129, 128),
    ),
    "sorted in place": (squares(lambda x: jnp.sort(jnp.floor(x) + x, axis=1)), rows),
    "gathered twice": (squares(lambda x, i: -x[i] * 2 + x[i[::-1]]), tall, array(512, dtype=jnp.int32)),
    "loop before the loss": (loop_before_the_loss, tall),
    "tuples take turns": (tuples_take_turns, tall, array(128, 128), array(dtype=jnp.int32)),
    "unchanged carry": (unchanged, rows, stack),
}


def off(fun, *args, donate=()):
    donated = [i in donate for i in range(len(args))]
    got = predict(jax.make_jaxpr(fun)(*args), donated=donated)
    assert not got.opaque
    return got.estimate.temporaries_bytes - compiled(fun, *args, donate=donate).temp_size_in_bytes


@pytest.mark.parametrize("name", RULES)
def test_rule(name):
    fun, *args = RULES[name]
    assert abs(off(fun, *args)) <= 4096


def test_a_donated_argument_that_is_also_a_result():
    """It is copied once, and all its readers read the copy."""

    def step(x, s):
        return jnp.sum(jnp.sin(x) * s), x - 0.1 * s, x

    assert abs(off(step, tall, tall, donate=(0,))) <= 4096


def test_merged_constants():
    text = jax.jit(lambda x: (x * 2.0) * 3.0).lower(rows).compile().as_text()
    assert ("constant(6)" in text) == tables(_compat.JAX_VERSION).merges_constants
