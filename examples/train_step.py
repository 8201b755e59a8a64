"""A training step in plain JAX, as a target for the command line, or fitted here.

python examples/train_step.py             # prints one screen, writes train_step.html
recoup residuals examples/train_step.py:make
recoup plan examples/train_step.py:make --budget 60%
recoup fit examples/train_step.py:make --budget 60%
"""

import jax
import jax.numpy as jnp

BLOCKS, BATCH, WIDTH, HIDDEN = 8, 2048, 128, 512


def block(p, x):
    h = jnp.tanh(x @ p["w1"])
    h = jnp.tanh(h * h)
    return x + jnp.tanh(h @ p["w2"])


def loss_fn(params, x, y):
    for p in params:
        x = block(p, x)
    return jnp.mean((x - y) ** 2)


def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def make():
    """The step and its arguments: shapes are enough, nothing has to be allocated."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = [{"w1": array(WIDTH, HIDDEN), "w2": array(HIDDEN, WIDTH)} for _ in range(BLOCKS)]
    return train_step, (params, array(BATCH, WIDTH), array(BATCH, WIDTH))


def main():
    import recoup

    step, args = make()
    fitted = recoup.fit(step, *args, budget="60%")
    print(fitted.plan)
    print(f"\n{fitted}")
    fitted.report("train_step.html", force=True)
    print("wrote train_step.html: memory over the step, every decision, who occupies the compiled arena")


if __name__ == "__main__":
    main()
