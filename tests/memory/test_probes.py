"""The compiler's tables and thresholds: tiny programs that notice when one moves.

If one fails on a new JAX, measure what changed and give that version its own entry in `_memory/_tables.py`.
"""

import jax
import jax.numpy as jnp
import pytest

from recoup import _compat
from recoup._memory import predict
from recoup._memory._rules import LIBRARY_MIN_ELEMENTS
from recoup._memory._tables import tables

from .programs import array, temporaries

lax = jax.lax
T = tables(_compat.JAX_VERSION)
x = array(256, 256)

UNARY = {
    "abs": jnp.abs, "ceil": jnp.ceil, "cosine": jnp.cos, "erf": lax.erf, "exponential": jnp.exp,
    "expm1": jnp.expm1, "floor": jnp.floor, "log": jnp.log, "log1p": jnp.log1p, "negate": jnp.negative,
    "rsqrt": lax.rsqrt, "sign": jnp.sign, "sine": jnp.sin, "sqrt": jnp.sqrt, "tan": jnp.tan, "tanh": jnp.tanh,
    "cbrt": jnp.cbrt,
}  # fmt: skip
BINARY = {
    "add": lax.add, "divide": lax.div, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul,
    "power": lax.pow, "subtract": lax.sub, "atan2": lax.atan2, "remainder": lax.rem,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_library_reductions_take_in_unary(name):
    held = temporaries(lambda x: (UNARY[name](x) * x).sum(0), x)
    assert (held < x.size) == (name in T.library_ops)


@pytest.mark.parametrize("name", BINARY)
def test_library_reductions_take_in_binary(name):
    held = temporaries(lambda x, y: BINARY[name](x, y).sum(0), x, x)
    assert (held < x.size) == (name in T.library_ops)


def test_small_reductions_are_not_a_librarys():
    rows = LIBRARY_MIN_ELEMENTS // 64
    at = temporaries(lambda x: (x * 2).sum(0), array(rows, 64))
    below = temporaries(lambda x: (x * 2).sum(0), array(rows - 1, 64))
    assert at < LIBRARY_MIN_ELEMENTS <= below


def test_narrow_concatenations_are_fused():
    def joined(columns):
        half = array(64, columns // 2)
        return temporaries(lambda a, b: jnp.sin(jnp.concatenate([a * 2, b * 3], 1)), half, half)

    narrow = 8 if T.concatenate_row_bytes else T.concatenate_columns // 2
    wide = max(T.concatenate_columns, T.concatenate_row_bytes // 4) * 2
    assert joined(narrow) == 0
    assert joined(wide) > 0


def test_expensive_operations_are_not_repeated():
    """A sine is computed again by a late reader; an exponential is kept for it."""

    def late_reader(f):
        def fun(x, v):
            first = jnp.tanh((f(x) * 2) @ v).sum()
            return (f(x) * 3 + first) @ v

        return temporaries(fun, x, array(256, 8))

    assert late_reader(jnp.exp) >= late_reader(jnp.sin) + 4 * x.size - 16384


def test_weight_gradients_run_as_soon_as_they_can():
    """The order is breadth first: a transposed product's operand is not kept for later than its level."""

    def step(w, x):
        h = x
        for _ in range(4):
            h = jnp.tanh(h @ w)
        return h

    level = array(256, 256)
    assert temporaries(step, level, level) <= 2 * 256 * 256 * 4 + 4096


def test_checkpoint_barriers_hold():
    from .programs import gradient

    plain, args = gradient("mlp")
    saved, _ = gradient("mlp", remat=True)
    assert temporaries(saved, *args) < 0.7 * temporaries(plain, *args)


def test_transposed_results_of_convolutions():
    """A kernel's gradient leaves transposed: renamed and copied, or (from JAX 0.12 on) written and copied."""

    def gradient(x, w):
        conv = lambda w: lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return jax.grad(lambda w: (conv(w) ** 2).sum())(w), x.sum()

    shapes = array(2, 64, 128), array(3, 128, 128)
    truth = temporaries(gradient, *shapes)
    got = predict(jax.make_jaxpr(gradient)(*shapes)).estimate.temporaries_bytes
    assert abs(got - truth) <= 4096
