"""The memory model on small whole programs, against the compiler's own number."""

import jax
import jax.numpy as jnp
import pytest

from recoup import _compat
from recoup._memory import buffers, predict


def compiled_temporaries(step, *args):
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"} if _compat.BARRIERS_NEED_OPTION else None
    compiled = jax.jit(step).lower(*args).compile(compiler_options=options)
    return compiled.memory_analysis().temp_size_in_bytes


def mlp(remat):
    def block(w, x):
        h = jnp.tanh(x @ w[0])
        return x + jnp.tanh(h @ w[1])

    block = jax.checkpoint(block) if remat else block

    def step(params, x):
        def loss(params):
            h = x
            for w in params:
                h = block(w, h)
            return (h**2).sum()

        return jax.value_and_grad(loss)(params)

    square = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    return step, ([(square, square)] * 3, jax.ShapeDtypeStruct((512, 128), jnp.float32))


@pytest.mark.parametrize("remat", [False, True])
def test_mlp_arena_is_predicted(remat):
    step, args = mlp(remat)
    truth = compiled_temporaries(step, *args)
    got = predict(jax.make_jaxpr(step)(*args))
    assert abs(got.estimate.temporaries_bytes - truth) <= 0.02 * truth
    assert got.low.temporaries_bytes <= got.estimate.temporaries_bytes <= got.high.temporaries_bytes
    assert not got.opaque


def test_fused_values_have_no_buffer():
    def step(x, w):
        h = jnp.tanh(x @ w)
        return (h * 2 + 1) @ w

    x, w = jax.ShapeDtypeStruct((512, 128), jnp.float32), jax.ShapeDtypeStruct((128, 128), jnp.float32)
    jaxpr = jax.make_jaxpr(step)(x, w)
    written = {e.primitive.name: b for e, b in zip(jaxpr.jaxpr.eqns, buffers(jaxpr), strict=True)}
    assert written["tanh"] == (False,)
    assert written["mul"] == (False,)
    assert written["add"] == (True,)
    assert written["dot_general"] == (True,)
