"""Flax NNX: a convolutional classifier with dropout and batch norm; a transformer with `nnx.remat` inside.

recoup fit examples/frameworks/nnx_steps.py:make --budget 70%

The steps are written as NNX users write them: they update the model, the optimizer and the metrics in place.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Classifier(nnx.Module):
    def __init__(self, width, rngs):
        self.convs = nnx.List(
            [
                nnx.Conv(i, o, (3, 3), use_bias=False, rngs=rngs)
                for i, o in ((1, width), (width, width), (width, width))
            ]
        )
        self.norms = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in self.convs])
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.relu(norm(conv(x)))
        return self.head(self.dropout(x.mean((1, 2))))


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(x)

    @nnx.remat  # the user's own region: recoup leaves it as it is unless regions="replan"
    def feed(self, x):
        return self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    def __init__(self, width, rngs):
        self.embed = nnx.Embed(64, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(2)])
        self.head = nnx.Linear(width, 64, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train_step(model, optimizer, metrics, x, y):
    def loss_fn(model):
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    metrics.update(loss=loss, logits=logits, labels=y)
    optimizer.update(model, grads)
    return loss


def _with_optimizer(model):
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    return model, optimizer, metrics


def make():
    """Convolutions, batch norm, dropout; the model's, optimizer's and metrics' state change in place."""
    objects = _with_optimizer(Classifier(16, nnx.Rngs(0, dropout=1)))
    x = jax.random.normal(jax.random.key(1), (64, 16, 16, 1))
    return train_step, (*objects, x, jnp.arange(64) % 10)


def make_remat():
    """Attention and `nnx.remat`, under the library's own `nnx.jit`."""
    objects = _with_optimizer(Transformer(32, nnx.Rngs(0)))
    tokens = jax.random.randint(jax.random.key(1), (16, 64), 0, 64)
    return nnx.jit(train_step), (*objects, tokens, jnp.roll(tokens, -1, 1))


def make_functional():
    """The same by NNX's functional form: state in, state out, as any JAX function."""
    graphdef, state = nnx.split(_with_optimizer(Classifier(16, nnx.Rngs(0, dropout=1))))

    def step(state, x, y):
        objects = nnx.merge(graphdef, state)
        loss = train_step(*objects, x, y)
        return nnx.state(objects), loss

    x = jax.random.normal(jax.random.key(1), (64, 16, 16, 1))
    return step, (state, x, jnp.arange(64) % 10)
