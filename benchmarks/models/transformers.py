"""Transformers: a GPT written as a Python loop and as a scan, a ViT with dropout, a mixture of experts.

All are pre-norm. Heads are split by reshape and attention is two einsums and a softmax, as in most JAX code,
so `dots_with_no_batch_dims_saveable` recomputes the attention products and keeps the projections.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models.common import (
    Array,
    Params,
    adamw,
    adamw_init,
    cross_entropy,
    dropout,
    experts_weight,
    layer_norm,
    region,
    stack,
    weight,
)

GPT_SIZES = {
    "bench": {"layers": 6, "batch": 4, "tokens": 256, "width": 256, "heads": 4, "vocab": 256},
    "large": {"layers": 6, "batch": 8, "tokens": 256, "width": 256, "heads": 4, "vocab": 256},
    "device": {"layers": 6, "batch": 4, "tokens": 1024, "width": 512, "heads": 8, "vocab": 4096},
    "small": {"layers": 3, "batch": 4, "tokens": 64, "width": 64, "heads": 4, "vocab": 64},
    "deep": {"layers": 24, "batch": 2, "tokens": 64, "width": 64, "heads": 4, "vocab": 64},
    "deepest": {"layers": 96, "batch": 2, "tokens": 64, "width": 64, "heads": 4, "vocab": 64},
}
VIT_SIZES = {
    "bench": {"layers": 6, "batch": 16, "image": 64, "patch": 8, "width": 192, "heads": 4, "classes": 10},
    "device": {"layers": 6, "batch": 32, "image": 128, "patch": 8, "width": 384, "heads": 6, "classes": 10},
    "small": {"layers": 3, "batch": 8, "image": 32, "patch": 8, "width": 64, "heads": 4, "classes": 10},
}
MOE_SIZES = {
    "bench": {"layers": 4, "batch": 4, "tokens": 256, "width": 192, "heads": 4, "vocab": 256, "experts": 8},
    "small": {"layers": 2, "batch": 4, "tokens": 64, "width": 64, "heads": 4, "vocab": 64, "experts": 4},
}


def attention_params(rng: np.random.Generator, width: int) -> Params:
    return {
        "ln_scale": np.ones(width, np.float32),
        "ln_bias": np.zeros(width, np.float32),
        "qkv": weight(rng, width, 3 * width),
        "out": weight(rng, width, width, gain=0.5),
    }


def mlp_params(rng: np.random.Generator, width: int) -> Params:
    return {
        "ln_scale": np.ones(width, np.float32),
        "ln_bias": np.zeros(width, np.float32),
        "up": weight(rng, width, 4 * width),
        "up_bias": np.zeros(4 * width, np.float32),
        "down": weight(rng, 4 * width, width, gain=0.5),
        "down_bias": np.zeros(width, np.float32),
    }


def attention(p: Params, x: Array, heads: int, causal: bool) -> Array:
    batch, tokens, width = x.shape
    h = layer_norm(x, p["ln_scale"], p["ln_bias"])
    q, k, v = jnp.split((h @ p["qkv"]).reshape(batch, tokens, heads, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads).item()
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return mixed.reshape(batch, tokens, width) @ p["out"]


def feed_forward(p: Params, x: Array) -> Array:
    h = layer_norm(x, p["ln_scale"], p["ln_bias"])
    return jax.nn.gelu(h @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def language_data(rng: np.random.Generator, s: dict[str, int]) -> Params:
    tokens = rng.integers(0, s["vocab"], (s["batch"], s["tokens"] + 1), dtype=np.int32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def language_params(rng: np.random.Generator, s: dict[str, int], layers: Params) -> Params:
    return {
        "embed": weight(rng, s["width"], s["vocab"]).T.copy(),
        "position": (0.1 * rng.standard_normal((s["tokens"], s["width"]))).astype(np.float32),
        "layers": layers,
        "ln_scale": np.ones(s["width"], np.float32),
        "ln_bias": np.zeros(s["width"], np.float32),
    }


def embed(params: Params, tokens: Array) -> Array:
    return params["embed"][tokens] + params["position"]


def unembed(params: Params, x: Array) -> Array:
    """Logits with the embedding's own weights."""
    return layer_norm(x, params["ln_scale"], params["ln_bias"]) @ params["embed"].T


def _gpt_loss(scale: str, policy: str | None, scanned: bool) -> tuple[Any, Params, Params]:
    """The loss, parameters and a batch of a decoder-only language model."""
    s, rng = dict(GPT_SIZES[scale]), np.random.default_rng(1)
    if scanned:
        s["layers"] = s["layers"] * 4 // 3
    layers = [
        {"attention": attention_params(rng, s["width"]), "mlp": mlp_params(rng, s["width"])}
        for _ in range(s["layers"])
    ]
    params = language_params(rng, s, stack(layers) if scanned else layers)

    def block(p: Params, x: Array) -> Array:
        x = x + attention(p["attention"], x, s["heads"], causal=True)
        return x + feed_forward(p["mlp"], x)

    def loss_fn(params: Params, batch: Params) -> Array:
        x = embed(params, batch["tokens"])
        if scanned:
            body = region(block, policy)
            x, _ = jax.lax.scan(lambda x, p: (body(p, x), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = region(block, policy)(p, x)
        return cross_entropy(unembed(params, x), batch["targets"])

    return loss_fn, params, language_data(rng, s)


def gpt(scale: str, policy: str | None, scanned: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, opt_state, batch) -> (params, opt_state, loss)`: a decoder-only language model, AdamW."""
    loss_fn, params, batch = _gpt_loss(scale, policy, scanned)

    def step(params: Params, opt_state: Params, batch: Params) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        params, opt_state = adamw(params, opt_state, grads)
        return params, opt_state, loss

    return step, (params, adamw_init(params), batch)


def gpt_sgd(scale: str) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, batch) -> (params, loss)`: the same model, a step of gradient descent."""
    loss_fn, params, batch = _gpt_loss(scale, None, False)

    def step(params: Params, batch: Params) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), loss

    return step, (params, batch)


def vit(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, opt_state, batch, key) -> (params, opt_state, loss)`: patches, dropout by key, AdamW."""
    s, rng = VIT_SIZES[scale], np.random.default_rng(2)
    side = s["image"] // s["patch"]
    params = {
        "embed": weight(rng, s["patch"] ** 2 * 3, s["width"]),
        "position": (0.1 * rng.standard_normal((side * side, s["width"]))).astype(np.float32),
        "layers": [
            {"attention": attention_params(rng, s["width"]), "mlp": mlp_params(rng, s["width"])}
            for _ in range(s["layers"])
        ],
        "head": weight(rng, s["width"], s["classes"]),
    }
    batch = {
        "image": rng.standard_normal((s["batch"], s["image"], s["image"], 3)).astype(np.float32),
        "label": rng.integers(0, s["classes"], s["batch"], dtype=np.int32),
    }

    def block(p: Params, x: Array, key: Array) -> Array:
        key_attention, key_mlp = jax.random.split(key)
        x = x + dropout(attention(p["attention"], x, s["heads"], causal=False), key_attention, 0.1)
        return x + dropout(feed_forward(p["mlp"], x), key_mlp, 0.1)

    def loss_fn(params: Params, batch: Params, key: Array) -> Array:
        x = batch["image"].reshape(s["batch"], side, s["patch"], side, s["patch"], 3)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(s["batch"], side * side, -1)
        x = x @ params["embed"] + params["position"]
        for i, p in enumerate(params["layers"]):
            x = region(block, policy)(p, x, jax.random.fold_in(key, i))
        return cross_entropy(x.mean(1) @ params["head"], batch["label"])

    def step(params: Params, opt_state: Params, batch: Params, key: Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, key)
        params, opt_state = adamw(params, opt_state, grads)
        return params, opt_state, loss

    return step, (params, adamw_init(params), batch, jax.random.key(0))


def moe(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, opt_state, batch) -> (params, opt_state, loss)`: experts in place of the feed-forward.

    Routing as in Switch Transformers (Fedus et al. 2022): one expert a token, a fixed capacity for each
    expert and sequence, tokens over it pass through unchanged, and an auxiliary loss that balances the load.
    """
    s, rng = MOE_SIZES[scale], np.random.default_rng(3)
    capacity = s["tokens"] * 5 // (4 * s["experts"])
    layers = [
        {
            "attention": attention_params(rng, s["width"]),
            "router": weight(rng, s["width"], s["experts"]),
            "up": experts_weight(rng, s["experts"], s["width"], 4 * s["width"]),
            "down": experts_weight(rng, s["experts"], 4 * s["width"], s["width"]),
        }
        for _ in range(s["layers"])
    ]
    params = language_params(rng, s, layers)

    def experts(p: Params, x: Array) -> tuple[Array, Array]:
        h = layer_norm(x, jnp.ones_like(x[0, 0]), jnp.zeros_like(x[0, 0]))
        probs = jax.nn.softmax(h @ p["router"], axis=-1)
        chosen = jax.nn.one_hot(probs.argmax(-1), s["experts"], dtype=x.dtype)
        place = (jnp.cumsum(chosen, axis=1) * chosen).sum(-1) - 1.0
        slot = jax.nn.one_hot(place.astype(np.int32), capacity, dtype=x.dtype)
        dispatch = jnp.einsum("bte,btc->btec", chosen, slot)
        queued = jnp.einsum("btec,btd->ebcd", dispatch, h)
        hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", queued, p["up"]))
        result = jnp.einsum("ebcf,efd->ebcd", hidden, p["down"])
        combine = dispatch * probs.max(-1)[..., None, None]
        balance = s["experts"] * jnp.sum(chosen.mean((0, 1)) * probs.mean((0, 1)))
        return jnp.einsum("btec,ebcd->btd", combine, result), balance

    def block(p: Params, x: Array) -> tuple[Array, Array]:
        x = x + attention(p["attention"], x, s["heads"], causal=True)
        mixed, balance = experts(p, x)
        return x + mixed, balance

    def loss_fn(params: Params, batch: Params) -> Array:
        x, total = embed(params, batch["tokens"]), 0.0
        for p in params["layers"]:
            x, balance = region(block, policy)(p, x)
            total = total + balance
        return cross_entropy(unembed(params, x), batch["targets"]) + 0.01 * total

    def step(params: Params, opt_state: Params, batch: Params) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        params, opt_state = adamw(params, opt_state, grads)
        return params, opt_state, loss

    return step, (params, adamw_init(params), language_data(rng, s))
