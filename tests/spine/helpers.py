"""What the spine's tests share: small steps, comparing results, compiled programs, programs made by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from recoup import _barrier
from recoup._program import ARGUMENT, Op, Program, Value
from recoup._rewrite import RECOMPUTE_SCOPE


def sgd(loss):
    """A whole training step from a loss: value, gradient, update."""

    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def normal(seed, *shape, scale=1.0, dtype=jnp.float32):
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return jnp.asarray(values.astype(np.float32), dtype)


def mlp_loss(params, x):
    h = x
    for w in params:
        h = jnp.tanh(jnp.tanh(h @ w) * 2.0)
    return jnp.mean(h * h)


def mlp(layers=6, width=32, rows=512):
    """A step and its arguments: activations of rows x width floats dominate."""
    return sgd(mlp_loss), (
        [normal(i, width, width, scale=0.2) for i in range(layers)],
        normal(99, rows, width),
    )


def same(a, b):
    """Equal trees, equal to the bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def close(a, b, ulps):
    """Equal trees within `ulps` units in the last place of the largest element of each array."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        unit = np.finfo(np.float32).eps * max(float(np.max(np.abs(x), initial=0.0)), 1e-30)
        assert float(np.max(np.abs(x - y), initial=0.0)) <= ulps * unit


def compiled(fun, *args):
    """The program as `fit` compiles it: barriers kept."""
    # a GPU's compiler removes them itself, last of all, and fails where it must not
    options = dict(_barrier.FENCE_OPTIONS) if jax.default_backend() == "cpu" else None
    return jax.jit(fun).lower(*args).compile(compiler_options=options)


def temporaries(program):
    return program.memory_analysis().temp_size_in_bytes


_PRODUCT = re.compile(r" (dot|convolution|custom-call)\(.*op_name=\"([^\"]*)\"")


def products(program):
    """The op_names of the matrix products and convolutions in the optimized program."""
    return [match[2] for match in map(_PRODUCT.search, program.as_text().splitlines()) if match]


def again(names):
    return [name for name in names if RECOMPUTE_SCOPE in name]


def chain(spec, *, tail=True):
    """A program made by hand: `spec` lists (name, reads, bytes, options) of operations with one result each.

    Value 0 is the argument, value i + 1 the result of operation i; the last one is the program's result.
    """
    values = [Value(64, ARGUMENT, "f32[16]", "args[0]")]
    ops = []
    for i, (name, reads, size, options) in enumerate(spec):
        defaults = {"flops": 1.0, "cost": 1.0, "pure": True, "fusible": False, "heavy": True}
        ops.append(Op(name=name, reads=tuple(reads), writes=(i + 1,), **(defaults | options)))
        values.append(Value(size, i, f"u8[{size}]"))
    return Program(tuple(ops), tuple(values), (0,), (), (len(ops),) if tail else ())


def block(p, x):
    """A small transformer block: attention and a feed-forward part, each behind a normalisation."""

    def norm(x):
        mean = jnp.mean(x, -1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-5)

    h = norm(x)
    q, k, v = (jnp.einsum("btd,dhk->bhtk", h, w) for w in (p["q"], p["k"], p["v"]))
    scores = jnp.einsum("bhtk,bhsk->bhts", q, k) * (q.shape[-1] ** -0.5)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    x = x + jnp.einsum("bhtk,hkd->btd", jnp.einsum("bhts,bhsk->bhtk", weights, v), p["o"])
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def block_params(seed, width=32, heads=2):
    head = width // heads
    shapes = {
        "q": (width, heads, head),
        "k": (width, heads, head),
        "v": (width, heads, head),
        "o": (heads, head, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    return {name: normal(seed + i, *s, scale=0.1) for i, (name, s) in enumerate(shapes.items())}


def dropout(key, x, rate=0.1):
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def gpt(layers=2, drop=False, batch=2, time=64, width=32):
    """A step of a stack of blocks written as a Python loop, with dropout by key if asked."""

    def loss(params, x, *key):
        for i, p in enumerate(params):
            y = block(p, x)
            x = x + dropout(jax.random.fold_in(key[0], i), y - x) if drop else y
        return jnp.mean(x * x)

    params = [block_params(10 * i, width) for i in range(layers)]
    keys = (jax.random.key(3),) if drop else ()
    return sgd(loss), (params, normal(77, batch, time, width), *keys)


def convnet(blocks=2, batch=4, side=12, channels=8):
    """Residual convolutions with batch statistics."""

    def norm(x, scale):
        mean = jnp.mean(x, (0, 1, 2), keepdims=True)
        var = jnp.mean((x - mean) ** 2, (0, 1, 2), keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale

    def conv(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params, x):
        for p in params:
            h = jax.nn.relu(norm(conv(x, p["a"]), p["scale"]))
            x = jax.nn.relu(x + norm(conv(h, p["b"]), p["scale"]))
        return jnp.mean(x * x)

    params = [
        {
            "a": normal(3 * i, 3, 3, channels, channels, scale=0.2),
            "b": normal(3 * i + 1, 3, 3, channels, channels, scale=0.2),
            "scale": jnp.ones(channels, jnp.float32),
        }
        for i in range(blocks)
    ]
    return sgd(loss), (params, normal(88, batch, side, side, channels))
