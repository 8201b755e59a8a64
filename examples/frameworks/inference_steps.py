"""NumPyro: an SVI step of a Bayesian network, and the gradient of a log density (what HMC and NUTS call).

recoup fit examples/frameworks/inference_steps.py:make --budget 80%
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import initialize_model

ROWS, WIDTH = 512, 32


def model(x, y=None):
    h = x
    for layer in range(3):
        scale = jnp.full((h.shape[1], WIDTH), h.shape[1] ** -0.5)
        w = numpyro.sample(f"w{layer}", dist.Normal(jnp.zeros_like(scale), scale).to_event(2))
        h = jnp.tanh(jnp.sin(h @ w))
    v = numpyro.sample("v", dist.Normal(jnp.zeros(WIDTH), jnp.ones(WIDTH)).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(h @ v, noise), obs=y)


def _data():
    x = jax.random.normal(jax.random.key(1), (ROWS, 8))
    return x, jnp.sin(x.sum(1))


def make():
    """`svi.update`: sample, ELBO with 2 particles, gradient, Adam."""
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=2))
    x, y = _data()
    state = svi.init(jax.random.key(0), x, y)

    def train_step(state, x, y):
        return svi.update(state, x, y)

    return train_step, (state, x, y)


def make_log_density():
    """Value and gradient of the potential energy at a point."""
    x, y = _data()
    info = initialize_model(jax.random.key(0), model, model_args=(x, y), dynamic_args=True)

    def potential_and_grad(z, x, y):
        return jax.value_and_grad(info.potential_fn(x, y))(z)

    return potential_and_grad, (info.param_info.z, x, y)
