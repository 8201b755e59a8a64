"""Flax Linen: mutable collections (batch statistics) with dropout; `nn.scan` over `nn.remat` blocks.

recoup fit examples/frameworks/linen_steps.py:make --budget 70%
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for _ in range(3):
            x = nn.Dense(128)(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.Dropout(0.1, deterministic=not train)(nn.gelu(x))
        return nn.Dense(10)(x)


class State(TrainState):
    batch_stats: dict
    key: jax.Array


def train_step(state, x, y):
    key = jax.random.fold_in(state.key, state.step)

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, changed = state.apply_fn(
            variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


def make():
    """A `TrainState` with batch statistics, a key for dropout, and static fields (`apply_fn`, `tx`)."""
    model = Net()
    x = jax.random.normal(jax.random.key(1), (512, 32))
    variables = model.init(jax.random.key(0), x, train=False)
    state = State.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adamw(1e-3),
        batch_stats=variables["batch_stats"],
        key=jax.random.key(2),
    )
    return train_step, (state, x, jnp.arange(512) % 10)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        h = nn.LayerNorm()(x)
        h = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(h)))
        return x + h, None


class Deep(nn.Module):
    depth: int
    remat: bool

    @nn.compact
    def __call__(self, x):
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        layers = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        return layers()(x, None)[0]


def _deep(depth, rows, remat):
    model = Deep(depth, remat)
    x = jax.random.normal(jax.random.key(1), (rows, 32))
    params = model.init(jax.random.key(0), x)
    tx = optax.sgd(0.1, momentum=0.9)

    def train_step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, tx.init(params), x, jnp.roll(x, 1, axis=0))


def make_scan():
    """Layers scanned by `nn.scan`."""
    return _deep(6, 512, remat=False)


def make_scan_remat():
    """`nn.remat` around each scanned layer already: their inputs are kept, and not all need be."""
    return _deep(36, 1024, remat=True)
