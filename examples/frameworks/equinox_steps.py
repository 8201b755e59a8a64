"""Equinox: `eqx.filter_jit`ed steps; models with functions and flags as leaves; stateful batch norm.

recoup fit examples/frameworks/equinox_steps.py:make --budget 70%
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


@eqx.filter_jit
def train_step(model, opt_state, x, y, tx):
    @eqx.filter_value_and_grad
    def loss_fn(model):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    loss, grads = loss_fn(model)
    updates, opt_state = tx.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def make():
    """An MLP whose activation is a leaf of the model, and an optimizer whose functions are leaves, too."""
    model = eqx.nn.MLP(32, 8, 128, 4, activation=jax.nn.gelu, key=jax.random.key(0))
    tx = optax.adam(1e-3)
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    x = jax.random.normal(jax.random.key(1), (512, 32))
    return train_step, (model, opt_state, x, x[:, :8], tx)


class Normed(eqx.Module):
    layers: list
    norms: list
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Linear(i, o, key=k) for i, o, k in zip((32, 128, 128), (128, 128, 8), keys, strict=True)
        ]
        self.norms = [eqx.nn.BatchNorm(128, axis_name="batch", mode="batch") for _ in range(2)]
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, state, key):
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            x, state = norm(layer(x), state)
            x = self.dropout(jax.nn.gelu(x), key=key)
        return self.layers[-1](x), state


@eqx.filter_jit
def stateful_step(model, state, opt_state, x, y, key, tx):
    @eqx.filter_value_and_grad(has_aux=True)
    def loss_fn(model, state):
        keys = jax.random.split(key, x.shape[0])
        batched = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        out, state = batched(x, state, keys)
        return jnp.mean((out - y) ** 2), state

    (loss, state), grads = loss_fn(model, state)
    updates, opt_state = tx.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, opt_state, loss


def make_stateful():
    """Batch norm that threads `eqx.nn.State`, and dropout."""
    model, state = eqx.nn.make_with_state(Normed)(jax.random.key(0))
    tx = optax.sgd(0.1)
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    x = jax.random.normal(jax.random.key(1), (512, 32))
    return stateful_step, (model, state, opt_state, x, x[:, :8], jax.random.key(2), tx)
