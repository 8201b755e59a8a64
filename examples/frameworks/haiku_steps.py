"""Haiku: parameters and state in, parameters and state out; a layer as a `recoup.checkpoint` region.

recoup fit examples/frameworks/haiku_steps.py:make --budget 70%
"""

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def forward(x, is_training):
    for _ in range(3):
        x = hk.Linear(128)(x)
        x = hk.BatchNorm(True, True, 0.9)(x, is_training)
        x = jax.nn.gelu(x)
        x = hk.dropout(hk.next_rng_key(), 0.1, x) if is_training else x
    return hk.Linear(10)(x)


def make():
    """`hk.transform_with_state`: batch norm's state and dropout's key."""
    net = hk.transform_with_state(forward)
    x = jax.random.normal(jax.random.key(1), (512, 32))
    params, state = net.init(jax.random.key(0), x, True)
    tx = optax.adam(1e-3)

    def train_step(params, state, opt_state, key, x, y):
        def loss_fn(params):
            logits, changed = net.apply(params, state, key, x, True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), changed

        (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), changed, opt_state, loss

    return train_step, (params, state, tx.init(params), jax.random.key(2), x, jnp.arange(512) % 10)
