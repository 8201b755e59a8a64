"""Steps whose shape is unusual: two encoders, two losses, gradients inside the loss, attention in a region.

recoup fit examples/frameworks/shapes_of_training.py:make_contrastive --budget 70%
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def _mlp(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (i, o)) * i**-0.5, "b": jnp.zeros(o)}
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _apply(params, x, act=jax.nn.gelu):
    for p in params[:-1]:
        x = act(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def make_contrastive():
    """CLIP's loss: two encoders meet in one matrix of similarities."""
    params = {
        "image": _mlp(jax.random.key(0), (64, 128, 128, 128, 32)),
        "text": _mlp(jax.random.key(1), (48, 128, 128, 128, 32)),
        "temperature": jnp.float32(0.0),
    }
    tx = optax.adamw(1e-3)

    def loss_fn(params, images, texts):
        unit = lambda v: v / jnp.linalg.norm(v, axis=1, keepdims=True)
        a, b = unit(_apply(params["image"], images)), unit(_apply(params["text"], texts))
        logits = a @ b.T * jnp.exp(params["temperature"])
        labels = jnp.arange(len(logits))
        cross = optax.softmax_cross_entropy_with_integer_labels
        return (cross(logits, labels).mean() + cross(logits.T, labels).mean()) / 2

    def train_step(params, opt_state, images, texts):
        loss, grads = jax.value_and_grad(loss_fn)(params, images, texts)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    images = jax.random.normal(jax.random.key(2), (512, 64))
    texts = jax.random.normal(jax.random.key(3), (512, 48))
    return train_step, (params, tx.init(params), images, texts)


def make_gan():
    """A generator and a discriminator, each with a loss and an optimizer, in one step."""
    generator = _mlp(jax.random.key(0), (16, 128, 128, 128, 64))
    critic = _mlp(jax.random.key(1), (64, 128, 128, 128, 1))
    tx = optax.adam(1e-3)

    def critic_loss(critic, generator, real, noise):
        fake = _apply(generator, noise)
        return jnp.mean(jax.nn.softplus(-_apply(critic, real)) + jax.nn.softplus(_apply(critic, fake)))

    def generator_loss(generator, critic, noise):
        return jnp.mean(jax.nn.softplus(-_apply(critic, _apply(generator, noise))))

    def train_step(generator, critic, states, real, key):
        noise = jax.random.normal(key, (len(real), 16))
        c_loss, grads = jax.value_and_grad(critic_loss)(critic, generator, real, noise)
        updates, c_state = tx.update(grads, states[0])
        critic = optax.apply_updates(critic, updates)
        g_loss, grads = jax.value_and_grad(generator_loss)(generator, critic, noise)
        updates, g_state = tx.update(grads, states[1])
        return optax.apply_updates(generator, updates), critic, (c_state, g_state), (c_loss, g_loss)

    real = jax.random.normal(jax.random.key(2), (512, 64))
    return train_step, (generator, critic, (tx.init(critic), tx.init(generator)), real, jax.random.key(3))


def make_meta():
    """MAML: two inner gradient steps per task, and a gradient through them."""
    params = _mlp(jax.random.key(0), (1, 32, 32, 1))
    tx = optax.adam(1e-3)

    def task_loss(params, x, y):
        return jnp.mean((_apply(params, x, jnp.tanh) - y) ** 2)

    def adapted_loss(params, task):
        (x, y), (x_test, y_test) = task
        inner = params
        for _ in range(2):
            grads = jax.grad(task_loss)(inner, x, y)
            inner = jax.tree.map(lambda p, g: p - 0.01 * g, inner, grads)
        return task_loss(inner, x_test, y_test)

    def meta_loss(params, tasks):
        return jnp.mean(jax.vmap(adapted_loss, in_axes=(None, 0))(params, tasks))

    def train_step(params, opt_state, tasks):
        loss, grads = jax.value_and_grad(meta_loss)(params, tasks)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    x = jax.random.uniform(jax.random.key(1), (2, 8, 128, 1), minval=-3.0, maxval=3.0)
    phase = jnp.linspace(0.0, 3.0, 8)[:, None, None]
    support, query = ((part, jnp.sin(part + phase)) for part in x)
    return train_step, (params, tx.init(params), (support, query))


def make_physics():
    """A physics-informed network for u_t = u_xx: second derivatives inside the loss."""
    params = _mlp(jax.random.key(0), (2, 64, 64, 64, 1))
    tx = optax.adam(1e-3)

    def u(params, point):
        return _apply(params, point, jnp.tanh)[0]

    def residual(params, point):
        u_t = jax.grad(u, 1)(params, point)[0]
        u_xx = jax.hessian(u, 1)(params, point)[1, 1]
        return u_t - u_xx

    def loss_fn(params, points, initial):
        inside = jax.vmap(residual, (None, 0))(params, points)
        start = jax.vmap(u, (None, 0))(params, initial) - jnp.sin(jnp.pi * initial[:, 1])
        return jnp.mean(inside**2) + jnp.mean(start**2)

    def train_step(params, opt_state, points, initial):
        loss, grads = jax.value_and_grad(loss_fn)(params, points, initial)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    points = jax.random.uniform(jax.random.key(1), (256, 2))
    return train_step, (params, tx.init(params), points, points.at[:, 0].set(0.0))


def make_attention():
    """Attention of a library (Equinox) inside `jax.checkpoint`, which recoup respects."""
    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.MultiheadAttention(4, 32, key=k) for k in keys]
    params, static = eqx.partition(layers, eqx.is_inexact_array)
    tx = optax.adam(1e-3)

    def loss_fn(params, x):
        h = x
        for attend in eqx.combine(params, static):
            h = h + jax.checkpoint(jax.vmap(lambda s, attend=attend: attend(s, s, s)))(h)
            h = jnp.tanh(jnp.sin(h) * h)
        return jnp.mean((h - x) ** 2)

    def train_step(params, opt_state, x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, tx.init(params), jax.random.normal(jax.random.key(1), (32, 64, 32)))
