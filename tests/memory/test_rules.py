"""One small program for each rule found in random programs: predicted to the buffer.

Each fails without its rule by one array of the program or more. Differences of 4 KiB count as none.
"""

import re

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


def outer_product(x):
    """A constant factor goes to what is spread (where constants merge): no product of the whole is kept."""
    v = jnp.sum(x, 1)
    return squares(lambda v: jnp.outer(v, v))(v)


def rows_left(x, xs):
    """Five rows by twos: what the loop leaves is one part of what is concatenated, and read there."""

    def body(c, row):
        c = jnp.tanh(c + row)
        return c, c * row

    return squares(lambda x, xs: lax.scan(body, x, xs, unroll=2)[1])(x, xs)


def sum_of_parts(x, y):
    """A reduction over what is concatenated is one of each part: the whole is never there."""
    joined = jnp.concatenate([jnp.tanh(x @ x.T), jnp.tanh(y @ y.T)])
    return jnp.sum(joined, 0), jnp.sum(joined, 1)


def unknown_length(x, w, n):
    """What does not change in a loop of unknown length is moved out of it too."""

    def body(state):
        i, c = state
        for k in range(4):
            c = jnp.sin(c) * jnp.tanh(w @ (w + k))
        return i + 1, c

    return lax.while_loop(lambda state: state[0] < n, body, (0, x))[1]


def one_place(x, y, i):
    """A scatter to one place updates a slice, which a reader can do for itself."""
    once = (x @ x.T).at[i].set(y)
    return jnp.sum(jnp.sin(once) @ x, 0)


def handed_on(x, which):
    """What all branches return as it came needs no copy, and no buffer."""
    y = jnp.cos(x) * 2
    doubled = squares(
        lambda y: lax.cond(which > 0, lambda y: y * jnp.mean(jnp.sin(y)), lambda y: y * jnp.max(y), y)
    )
    return doubled(y), y


def many_keys(keys):
    """Keys are spread where they are read, inside the cipher's loop."""
    return jax.vmap(lambda key: jax.random.normal(key, (512,)))(keys) * 2


def transposed_operand(x):
    """A loop takes its operands in a tuple: on JAX 0.12 what is transposed is written before it is copied."""
    y = jnp.tanh(x @ x.T[:, :128])
    return lax.fori_loop(0, x[0, 0].astype(int), lambda i, c: jnp.sin(c) + y.T, y.T)


def fresh_carry(x, n):
    """A constant new value waits for nothing: it is moved over the old one when that has been read."""

    def body(state):
        i, a, b = state
        return i + 1, jnp.sin(a) + b, jnp.zeros_like(b)

    return lax.while_loop(lambda state: state[0] < n, body, (0, jnp.tanh(x), jnp.cos(x)))[1]


def behind_a_barrier(x):
    """Arithmetic on what comes through a barrier takes its buffer over where barriers are gone by then."""
    y, z = lax.optimization_barrier((jnp.tanh(x @ x.T), x @ (x + 1).T))
    w = jnp.sin(y) * z
    return jnp.sum(w @ w)


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
    "outer product": (outer_product, rows),
    "rows left": (rows_left, rows, array(5, 256, 64)),
    "sum of parts": (sum_of_parts, rows, array(256, 96)),
    "scan over more": (lambda x: jnp.cumprod(jnp.tanh(x), 2) * 2, array(32, 64, 64)),
    "handed on": (handed_on, rows, array(dtype=jnp.int32)),
    "transposed operand": (transposed_operand, tall),
    "many keys": (many_keys, array(64, 2, dtype=jnp.uint32)),
    "another order": (lambda x: lax.reshape(jnp.sin(x), (128, 512), (1, 0)) @ x, tall),
    "fresh carry": (fresh_carry, rows, array(dtype=jnp.int32)),
    "behind a barrier": (behind_a_barrier, rows),
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


def entry_of(fun, *args):
    """The compiled program's own instructions."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    return text[text.index("\nENTRY") :]


def operations(fun, *args):
    return [point.op for point in predict(jax.make_jaxpr(fun)(*args)).timeline]


def test_what_does_not_change_in_a_loop_of_unknown_length():
    square, n = array(128, 128), array(dtype=jnp.int32)
    args = (square, square, n)
    assert operations(unknown_length, *args).count("dot") == 4
    assert (
        len(re.findall(r"\[128,128\]\S* (?:dot|fusion)\(.*dot_general", entry_of(unknown_length, *args))) >= 4
    )


def test_a_scatter_to_one_place():
    args = (rows, array(256), array(dtype=jnp.int32))
    assert "scatter" not in operations(one_place, *args)
    assert not re.search(r"wrapped_scatter| scatter\(", entry_of(one_place, *args))


def test_a_draw_in_two_loops():
    """The compiler moves it out of the inner loop, and may or may not move it on: the interval takes both."""

    def step(x, key, n):
        def inner(i, c):
            return jnp.tanh(c) * jax.random.uniform(key, c.shape)

        return lax.fori_loop(0, n, lambda i, c: lax.fori_loop(0, i, inner, c) * 2, x)

    args = (rows, array(2, dtype=jnp.uint32), array(dtype=jnp.int32))
    got, true = predict(jax.make_jaxpr(step)(*args)), compiled(step, *args).temp_size_in_bytes
    assert got.low.temporaries_bytes - 4096 <= true <= got.high.temporaries_bytes + 4096


def test_merged_constants():
    text = jax.jit(lambda x: (x * 2.0) * 3.0).lower(rows).compile().as_text()
    assert ("constant(6)" in text) == tables(_compat.JAX_VERSION).merges_constants
