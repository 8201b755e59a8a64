"""Optax: AdamW with clipping and a schedule; accumulated gradients; microbatches; frozen weights; bf16.

recoup fit examples/frameworks/optax_steps.py:make --budget 70%
"""

import jax
import jax.numpy as jnp
import optax

ROWS, WIDTH = 512, 64


def init(key, layers=4):
    keys = jax.random.split(key, layers)
    return [{"w": jax.random.normal(k, (WIDTH, WIDTH)) / 8, "b": jnp.zeros(WIDTH)} for k in keys]


def model(params, x):
    for p in params:
        x = x + jnp.tanh(jax.nn.gelu(x @ p["w"] + p["b"]))
    return x


def loss_fn(params, x, y):
    return jnp.mean((model(params, x) - y) ** 2)


def _step(tx, loss_fn=loss_fn):
    def train_step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step


def _data(rows=ROWS):
    x = jax.random.normal(jax.random.key(1), (rows, WIDTH))
    return x, jnp.roll(x, 1, axis=0)


def make():
    """AdamW, global-norm clipping, warmup and cosine decay."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    params = init(jax.random.key(0))
    return _step(tx), (params, tx.init(params), *_data())


def make_multisteps():
    """Gradients accumulated over four calls; the update is a branch inside the step."""
    tx = optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4)
    params = init(jax.random.key(0))
    return _step(tx), (params, tx.init(params), *_data())


def make_microbatch():
    """`optax.microbatch`: the batch in four parts inside one step."""
    tx = optax.adamw(1e-3)
    params = init(jax.random.key(0))
    grad = optax.microbatch(
        jax.value_and_grad(loss_fn),
        argnums=(1, 2),
        microbatch_size=ROWS,
        accumulator=optax.microbatching.AccumulationType.MEAN,
    )

    def train_step(params, opt_state, x, y):
        loss, grads = grad(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, tx.init(params), *_data(4 * ROWS))


def make_lora():
    """Low-rank adapters on frozen weights: only the adapters have gradients and optimizer state."""
    frozen = init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(3), len(frozen))
    adapters = [{"a": jax.random.normal(k, (WIDTH, 4)) / 8, "b": jnp.zeros((4, WIDTH))} for k in keys]
    tx = optax.adam(1e-2)

    def loss_fn(adapters, frozen, x, y):
        for p, a in zip(frozen, adapters, strict=True):
            x = x + jnp.tanh(jax.nn.gelu(x @ p["w"] + (x @ a["a"]) @ a["b"] + p["b"]))
        return jnp.mean((x - y) ** 2)

    def train_step(adapters, opt_state, frozen, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(adapters, frozen, x, y)
        updates, opt_state = tx.update(grads, opt_state, adapters)
        return optax.apply_updates(adapters, updates), opt_state, loss

    return train_step, (adapters, tx.init(adapters), frozen, *_data())


def make_mixed_precision():
    """bf16 compute, f32 weights and optimizer state, dynamic loss scaling that skips overflowing steps."""
    tx = optax.adamw(1e-3)
    params = init(jax.random.key(0))

    def scaled_loss(params, scale, x, y):
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        out = model(half, x.astype(jnp.bfloat16)).astype(jnp.float32)
        loss = jnp.mean((out - y) ** 2)
        return loss * scale, loss

    def train_step(params, opt_state, scale, x, y):
        grads, loss = jax.grad(scaled_loss, has_aux=True)(params, scale, x, y)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        updates, stepped = tx.update(grads, opt_state, params)
        keep = lambda new, old: jnp.where(finite, new, old)
        params = jax.tree.map(keep, optax.apply_updates(params, updates), params)
        opt_state = jax.tree.map(keep, stepped, opt_state)
        return params, opt_state, jnp.where(finite, scale, scale / 2), loss

    return train_step, (params, tx.init(params), jnp.float32(2.0**10), *_data())
