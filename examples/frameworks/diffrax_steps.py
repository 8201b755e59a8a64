"""Diffrax: a latent ODE solved by `diffeqsolve` and decoded at many times, by each way of differentiating it.

recoup fit examples/frameworks/diffrax_steps.py:make --budget 70%

The solver's own loops stay as Diffrax wrote them (they are checkpointed already); what the decoder keeps is
planned.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class LatentODE(eqx.Module):
    field: eqx.nn.MLP
    decoder: eqx.nn.MLP

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.field = eqx.nn.MLP(4, 4, 16, 1, activation=jnp.tanh, key=a)
        self.decoder = eqx.nn.MLP(4, 8, 64, 3, activation=jax.nn.gelu, key=b)

    def __call__(self, y0, times, adjoint):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, field: field(y)),
            diffrax.Heun(),
            t0=0.0,
            t1=1.0,
            dt0=1 / 16,
            y0=y0,
            args=self.field,
            saveat=diffrax.SaveAt(ts=times),
            adjoint=adjoint,
            max_steps=16,
        )
        return jax.vmap(self.decoder)(solution.ys)


@eqx.filter_jit
def train_step(model, opt_state, y0, times, target, tx, adjoint):
    def loss_fn(model):
        return jnp.mean((jax.vmap(lambda y: model(y, times, adjoint))(y0) - target) ** 2)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = tx.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


def _make(adjoint):
    model = LatentODE(jax.random.key(0))
    tx = optax.adam(1e-3)
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    y0 = jax.random.normal(jax.random.key(1), (32, 4))
    target = jax.random.normal(jax.random.key(2), (32, 16, 8))
    return train_step, (model, opt_state, y0, jnp.linspace(0.0, 1.0, 16), target, tx, adjoint)


def make():
    """Backpropagation through a bounded solve: `DirectAdjoint`."""
    return _make(diffrax.DirectAdjoint())


def make_recursive():
    """Diffrax's default: its own checkpointed loop."""
    return _make(diffrax.RecursiveCheckpointAdjoint(checkpoints=8))


def make_backsolve():
    """The continuous adjoint: an ODE solved backwards."""
    return _make(diffrax.BacksolveAdjoint())
