"""The demo's training step: a character-level GPT and Optax AdamW, as a user would write it.

A Python loop over pre-norm blocks, causal attention by einsum and softmax, a GELU feed-forward, logits by the
embedding's own weights. `make_step` is the whole step: loss, gradient and update in one function.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from recoup._demo.settings import Settings

Params = dict[str, Any]
Array = jax.Array


def init_params(settings: Settings, vocabulary: int) -> Params:
    """Float32 parameters, normal with a deviation of one over the square root of the fan-in."""
    width, rng = settings.width, np.random.default_rng(settings.seed)

    def normal(*shape: int) -> Array:
        return jnp.asarray(rng.standard_normal(shape) / float(shape[0]) ** 0.5, jnp.float32)

    return {
        "embed": normal(width, vocabulary).T,
        "position": normal(width, settings.tokens).T,
        "layers": [
            {
                "norm1": jnp.ones(width),
                "qkv": normal(width, 3 * width),
                "out": normal(width, width),
                "norm2": jnp.ones(width),
                "up": normal(width, 4 * width),
                "down": normal(4 * width, width),
            }
            for _ in range(settings.layers)
        ],
        "norm": jnp.ones(width),
    }


def rms_norm(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attention(x: Array, qkv: Array, out: Array, heads: int) -> Array:
    batch, tokens, width = x.shape
    q, k, v = jnp.split((x @ qkv).reshape(batch, tokens, heads, 3 * width // heads), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / float(width // heads) ** 0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, tokens, width) @ out


def block(p: Params, x: Array, heads: int) -> Array:
    x = x + attention(rms_norm(x, p["norm1"]), p["qkv"], p["out"], heads)
    hidden = jax.nn.gelu(rms_norm(x, p["norm2"]) @ p["up"])
    result: Array = x + hidden @ p["down"]
    return result


def loss_fn(params: Params, batch: Params, heads: int) -> Array:
    x = params["embed"][batch["tokens"]] + params["position"]
    for p in params["layers"]:
        x = block(p, x, heads)
    logits = rms_norm(x, params["norm"]) @ params["embed"].T
    loss: Array = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()
    return loss


def make_step(settings: Settings, vocabulary: int) -> tuple[Callable[..., Any], Params, Any]:
    """`step(params, opt_state, batch) -> (params, opt_state, loss)`, and the first two of its arguments."""
    params = init_params(settings, vocabulary)
    optimizer = optax.adamw(1e-3)

    def train_step(params: Params, opt_state: Any, batch: Params) -> tuple[Params, Any, Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, settings.heads)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, params, optimizer.init(params)
