"""Real images: scikit-learn's handwritten digits, a convolutional network plain and fitted, side by side.

python examples/digits.py                 # needs recoup[examples]; prints one screen, writes digits.png
recoup fit examples/digits.py:make --budget 60%
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import recoup

BATCH, WIDTH, LAYERS, STEPS = 256, 16, 6, 60


def load():
    """1797 images of 8 by 8, upsampled to 16 by 16, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32).repeat(2, 1).repeat(2, 2)[..., None]
    return images, digits.target.astype(np.int32)


def init(key):
    keys = jax.random.split(key, LAYERS + 1)
    inputs = [1] + [WIDTH] * (LAYERS - 1)
    convs = [
        jax.random.normal(k, (3, 3, i, WIDTH)) * (2 / (9 * i)) ** 0.5
        for k, i in zip(keys, inputs, strict=False)
    ]
    return {"convs": convs, "head": jax.random.normal(keys[-1], (WIDTH, 10)) * WIDTH**-0.5}


def logits(params, x):
    for w in params["convs"]:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = (y - y.mean((1, 2), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2), keepdims=True) + 1e-5)
        x = jax.nn.gelu(y)
    return x.mean((1, 2)) @ params["head"]


TX = optax.adamw(3e-3)


def train_step(params, opt_state, x, y):
    def loss_fn(params):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def make():
    params = init(jax.random.key(0))
    x = jax.ShapeDtypeStruct((BATCH, 16, 16, 1), jnp.float32)
    return train_step, (params, TX.init(params), x, jax.ShapeDtypeStruct((BATCH,), jnp.int32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--picture", default="digits.png")
    options = parser.parse_args()
    images, labels = load()
    step, args = make()
    fitted = recoup.fit(step, *args, budget=options.budget)
    plain = jax.jit(step)
    before, after = fitted.unplanned_memory, fitted.memory
    print(f"{step.__name__}: {LAYERS} convolutions, {BATCH} digits a step")
    print(f"plain   {before.total_bytes / 2**20:6.1f} MiB  ({before.instrument})")
    print(f"fitted  {after.total_bytes / 2**20:6.1f} MiB  ({after.instrument})")
    print(f"price   {fitted.plan.overhead:+.1%} FLOPs (counted)\n")
    runs = {"plain": (plain, *args[:2]), "fitted": (fitted, *args[:2])}
    losses = {name: [] for name in runs}
    draw = np.random.default_rng(0)
    for i in range(options.steps):
        rows = draw.integers(0, 1500, BATCH)
        for name, (run, params, state) in runs.items():
            params, state, loss = run(params, state, images[rows], labels[rows])
            runs[name] = (run, params, state)
            losses[name].append(float(loss))
        if i % max(1, options.steps // 6) == 0:
            print(f"step {i:3}  loss {losses['plain'][-1]:.5f} plain, {losses['fitted'][-1]:.5f} fitted")
    for name, (_, params, _) in runs.items():
        right = float(jnp.mean(jnp.argmax(logits(params, images[1500:]), 1) == labels[1500:]))
        print(f"{name:6} {right:.1%} of 297 unseen digits right")
    draw_picture(options.picture, losses, before, after)


def draw_picture(path, losses, before, after):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(losses["plain"], lw=4, alpha=0.4, label="plain")
    left.plot(losses["fitted"], lw=1, color="black", label="fitted")
    left.set(xlabel="step", ylabel="loss", yscale="log")
    left.legend()
    sizes = [m.total_bytes / 2**20 for m in (before, after)]
    right.bar_label(right.bar(["plain", "fitted"], sizes), fmt="%.1f")
    right.set(ylabel="MiB, by the compiler")
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
