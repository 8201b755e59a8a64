"""Convolutions: a residual net with batch statistics, and a U-Net that learns to remove noise drawn by key.

The U-Net's skip connections make it no chain: the way up and its gradient read what the way down produced.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models.common import Array, Params, adamw, adamw_init, cross_entropy, momentum, region, weight

RESNET_SIZES = {
    "bench": {"batch": 16, "image": 32, "channels": (32, 64, 128), "blocks": 2, "classes": 10},
    "device": {"batch": 256, "image": 64, "channels": (64, 128, 256), "blocks": 2, "classes": 10},
    "small": {"batch": 8, "image": 16, "channels": (16, 32), "blocks": 2, "classes": 10},
}
UNET_SIZES = {
    "bench": {"batch": 4, "image": 64, "channels": (32, 64, 128)},
    "device": {"batch": 16, "image": 128, "channels": (64, 128, 256)},
    "small": {"batch": 4, "image": 32, "channels": (8, 16)},
}


def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(p: Params, running: Params, x: Array) -> tuple[Array, Params]:
    """Normalise with the batch's own statistics; the running ones advance by a tenth, without a gradient."""
    mean = x.mean((0, 1, 2))
    var = jnp.square(x - mean).mean((0, 1, 2))
    y = (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"]
    batch = jax.lax.stop_gradient({"mean": mean, "var": var})
    return y, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, batch)


def norm_params(width: int) -> Params:
    return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def running_stats(width: int) -> Params:
    return {"mean": np.zeros(width, np.float32), "var": np.ones(width, np.float32)}


def resnet(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, velocity, stats, batch) -> (params, velocity, stats, loss)`, trained with momentum."""
    s, rng = RESNET_SIZES[scale], np.random.default_rng(4)
    first = s["channels"][0]
    blocks, stats, strides, width = [], [], [], first
    for stage, channels in enumerate(s["channels"]):
        for i in range(s["blocks"]):
            p = {
                "conv1": weight(rng, 3, 3, width, channels),
                "norm1": norm_params(channels),
                "conv2": weight(rng, 3, 3, channels, channels, gain=0.5),
                "norm2": norm_params(channels),
            }
            if width != channels:
                p["project"] = weight(rng, 1, 1, width, channels)
            blocks.append(p)
            stats.append({"norm1": running_stats(channels), "norm2": running_stats(channels)})
            strides.append(2 if stage > 0 and i == 0 else 1)
            width = channels
    params = {"stem": weight(rng, 3, 3, 3, first), "blocks": blocks, "head": weight(rng, width, s["classes"])}
    batch = {
        "image": rng.standard_normal((s["batch"], s["image"], s["image"], 3)).astype(np.float32),
        "label": rng.integers(0, s["classes"], s["batch"], dtype=np.int32),
    }

    def block(p: Params, stats: Params, x: Array, stride: int) -> tuple[Array, Params]:
        y, norm1 = batch_norm(p["norm1"], stats["norm1"], conv(x, p["conv1"], stride))
        y, norm2 = batch_norm(p["norm2"], stats["norm2"], conv(jax.nn.relu(y), p["conv2"]))
        if "project" in p:
            x = conv(x, p["project"], stride)
        return jax.nn.relu(x + y), {"norm1": norm1, "norm2": norm2}

    def loss_fn(params: Params, stats: Params, batch: Params) -> tuple[Array, Params]:
        x, new_stats = conv(batch["image"], params["stem"]), []
        for p, st, stride in zip(params["blocks"], stats, strides, strict=True):
            x, st = region(lambda p, st, x, stride=stride: block(p, st, x, stride), policy)(p, st, x)
            new_stats.append(st)
        return cross_entropy(x.mean((1, 2)) @ params["head"], batch["label"]), new_stats

    def step(params: Params, velocity: Params, stats: Params, batch: Params) -> Any:
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, batch)
        params, velocity = momentum(params, velocity, grads)
        return params, velocity, stats, loss

    return step, (params, jax.tree.map(np.zeros_like, params), stats, batch)


def group_norm(p: Params, x: Array, groups: int = 8) -> Array:
    shape = x.shape
    x = x.reshape(*shape[:3], groups, -1)
    mean = x.mean((1, 2, 4), keepdims=True)
    var = jnp.square(x - mean).mean((1, 2, 4), keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(shape) * p["scale"] + p["bias"]


def unet(scale: str, policy: str | None) -> tuple[Any, tuple[Any, ...]]:
    """`step(params, opt_state, images, key) -> (params, opt_state, loss)`: predict the noise added, AdamW."""
    s, rng = UNET_SIZES[scale], np.random.default_rng(5)

    def double_params(fan_in: int, fan_out: int) -> Params:
        return {
            "conv1": weight(rng, 3, 3, fan_in, fan_out),
            "norm1": norm_params(fan_out),
            "conv2": weight(rng, 3, 3, fan_out, fan_out),
            "norm2": norm_params(fan_out),
        }

    widths = s["channels"]
    params = {
        "stem": weight(rng, 3, 3, 3, widths[0]),
        "down": [double_params(a, b) for a, b in zip((widths[0], *widths), widths, strict=False)],
        "middle": double_params(widths[-1], widths[-1]),
        "up": [
            double_params(a + b, b) for a, b in zip((widths[-1], *widths[:0:-1]), widths[::-1], strict=True)
        ],
        "head": weight(rng, 3, 3, widths[0], 3),
    }
    images = rng.standard_normal((s["batch"], s["image"], s["image"], 3)).astype(np.float32)

    def double(p: Params, x: Array) -> Array:
        x = jax.nn.silu(group_norm(p["norm1"], conv(x, p["conv1"])))
        return jax.nn.silu(group_norm(p["norm2"], conv(x, p["conv2"])))

    def pool(x: Array) -> Array:
        b, h, w, c = x.shape
        return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))

    def loss_fn(params: Params, images: Array, noise: Array) -> Array:
        block, skips = region(double, policy), []
        x = conv(0.7 * images + 0.7 * noise, params["stem"])
        for p in params["down"]:
            x = block(p, x)
            skips.append(x)
            x = pool(x)
        x = block(params["middle"], x)
        for p, skip in zip(params["up"], reversed(skips), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = block(p, jnp.concatenate([x, skip], axis=-1))
        return jnp.square(conv(x, params["head"]) - noise).mean()

    def step(params: Params, opt_state: Params, images: Array, key: Array) -> Any:
        noise = jax.random.normal(key, images.shape, np.float32).astype(images.dtype)
        loss, grads = jax.value_and_grad(loss_fn)(params, images, noise)
        params, opt_state = adamw(params, opt_state, grads)
        return params, opt_state, loss

    return step, (params, adamw_init(params), images, jax.random.key(0))
