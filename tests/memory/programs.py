"""Small programs and the compiler's own number for them."""

import jax
import jax.numpy as jnp

from recoup import _compat
from recoup._barrier import FENCE_OPTIONS


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def compiled(fun, *args, donate=()):
    """The compiler's memory analysis, with barriers kept."""
    options = FENCE_OPTIONS if _compat.BARRIERS_NEED_OPTION else None
    step = jax.jit(fun, donate_argnums=donate)
    return step.lower(*args).compile(compiler_options=options).memory_analysis()


def temporaries(fun, *args, donate=()):
    return compiled(fun, *args, donate=donate).temp_size_in_bytes


def mlp(remat=False, width=128, batch=512, layers=3):
    def block(w, x):
        h = jnp.tanh(x @ w[0])
        return x + jnp.tanh(h @ w[1])

    block = jax.checkpoint(block) if remat else block

    def loss(params, x):
        for w in params:
            x = block(w, x)
        return (x**2).sum()

    square = array(width, width)
    return loss, [(square, square)] * layers, array(batch, width)


def attention(remat=False, batch=2, tokens=64, width=64, heads=2, layers=2):
    def block(p, x):
        m = x.mean(-1, keepdims=True)
        v = ((x - m) ** 2).mean(-1, keepdims=True)
        h = (x - m) * jax.lax.rsqrt(v + 1e-5) * p["scale"]
        q, k, v = jnp.split((h @ p["qkv"]).reshape(batch, tokens, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        x = x + mixed.reshape(batch, tokens, width) @ p["out"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    block = jax.checkpoint(block) if remat else block

    def loss(params, x):
        for p in params:
            x = block(p, x)
        return (x**2).mean()

    params = {
        "scale": array(width),
        "qkv": array(width, 3 * width),
        "out": array(width, width),
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    return loss, [params] * layers, array(batch, tokens, width)


def recurrent(remat=False, steps=24, batch=16, width=64):
    def cell(w, h, x):
        h = jnp.tanh(h @ w[0] + x @ w[1])
        return h, h

    cell = jax.checkpoint(cell, prevent_cse=False) if remat else cell

    def loss(w, xs):
        _, hs = jax.lax.scan(lambda h, x: cell(w, h, x), jnp.zeros((batch, width), xs.dtype), xs)
        return (hs**2).sum()

    return loss, (array(width, width), array(width, width)), array(steps, batch, width)


def convolutional(remat=False, batch=4, side=16, width=16, blocks=2):
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def block(p, x):
        h = conv(x, p["a"])
        mean = h.mean((0, 1, 2))
        h = jax.nn.relu((h - mean) * jax.lax.rsqrt(((h - mean) ** 2).mean((0, 1, 2)) + 1e-5) * p["scale"])
        return jax.nn.relu(x + conv(h, p["b"]))

    block = jax.checkpoint(block) if remat else block

    def loss(params, x):
        for p in params:
            x = block(p, x)
        pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (pooled**2).mean()

    params = {"a": array(3, 3, width, width), "b": array(3, 3, width, width), "scale": array(width)}
    return loss, [params] * blocks, array(batch, side, side, width)


MODELS = {"mlp": mlp, "attention": attention, "recurrent": recurrent, "convolutional": convolutional}


def gradient(name, remat=False):
    loss, params, data = MODELS[name](remat)
    return (lambda p, x: jax.value_and_grad(loss)(p, x)), (params, data)


def training_step(name):
    """Gradient and an Adam-like update."""
    loss, params, data = MODELS[name]()

    def step(p, m, v, x):
        value, g = jax.value_and_grad(loss)(p, x)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        p = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v)
        return p, m, v, value

    return step, (params, params, params, data)


def mixed_precision(name):
    """The gradient with float32 parameters and bfloat16 arithmetic."""
    loss, params, data = MODELS[name]()

    def half(tree):
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)

    def step(p, x):
        return jax.value_and_grad(lambda p: loss(half(p), half(x)).astype(jnp.float32))(p)

    return step, (params, data)
