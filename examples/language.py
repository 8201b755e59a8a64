"""Real text: a character transformer on the standard library's own source, plain and fitted, side by side.

python examples/language.py               # needs recoup[examples]; prints one screen, writes language.png
recoup fit examples/language.py:make --budget 60%
"""

import argparse
import inspect
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax

import recoup

BATCH, LENGTH, WIDTH, HEADS, LAYERS, STEPS = 16, 128, 64, 4, 4, 40


def load():
    """Characters of a module's source as small integers."""
    text = inspect.getsource(textwrap) + inspect.getsource(argparse)
    letters = sorted(set(text))
    return np.array([letters.index(c) for c in text], np.int32), len(letters)


def init(key, letters):
    def matrix(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) * rows**-0.5

    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))
    blocks = [
        {
            "qkv": matrix(next(keys), WIDTH, 3 * WIDTH),
            "out": matrix(next(keys), WIDTH, WIDTH),
            "up": matrix(next(keys), WIDTH, 4 * WIDTH),
            "down": matrix(next(keys), 4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {
        "letters": matrix(next(keys), letters, WIDTH),
        "places": matrix(next(keys), LENGTH, WIDTH),
        "blocks": blocks,
        "head": matrix(next(keys), WIDTH, letters),
    }


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def logits(params, tokens):
    x = params["letters"][tokens] + params["places"]
    for p in params["blocks"]:
        split = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        q, k, v = jnp.moveaxis((norm(x) @ p["qkv"]).reshape(split), 2, 0)
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
    return norm(x) @ params["head"]


TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


def train_step(params, opt_state, tokens):
    def loss_fn(params):
        found = logits(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def make():
    params = init(jax.random.key(0), load()[1])
    return train_step, (params, TX.init(params), jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--picture", default="language.png")
    options = parser.parse_args()
    text, letters = load()
    step, (params, state, tokens) = make()
    fitted = recoup.fit(step, params, state, tokens, budget=options.budget)
    before, after = fitted.unplanned_memory, fitted.memory
    print(f"{LAYERS} layers, {BATCH} x {LENGTH} of {len(text)} characters ({letters} letters) a step")
    print(f"plain   {before.total_bytes / 2**20:6.1f} MiB  ({before.instrument})")
    print(f"fitted  {after.total_bytes / 2**20:6.1f} MiB  ({after.instrument})")
    print(f"price   {fitted.plan.overhead:+.1%} FLOPs (counted)\n")
    runs = {"plain": (jax.jit(step), params, state), "fitted": (fitted, params, state)}
    losses = {name: [] for name in runs}
    draw = np.random.default_rng(0)
    for i in range(options.steps):
        starts = draw.integers(0, len(text) - LENGTH - 1, BATCH)
        rows = np.stack([text[s : s + LENGTH + 1] for s in starts])
        for name, (run, params, state) in runs.items():
            params, state, loss = run(params, state, rows)
            runs[name] = (run, params, state)
            losses[name].append(float(loss))
        if i % max(1, options.steps // 6) == 0:
            print(f"step {i:3}  loss {losses['plain'][-1]:.5f} plain, {losses['fitted'][-1]:.5f} fitted")
    draw_picture(options.picture, losses, before, after)


def draw_picture(path, losses, before, after):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(losses["plain"], lw=4, alpha=0.4, label="plain")
    left.plot(losses["fitted"], lw=1, color="black", label="fitted")
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    sizes = [m.total_bytes / 2**20 for m in (before, after)]
    right.bar_label(right.bar(["plain", "fitted"], sizes), fmt="%.1f")
    right.set(ylabel="MiB, by the compiler")
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
