"""A budget is for each device: a step over eight of them is planned by what one of them holds."""

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, recoup
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
rows, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
w = jax.device_put(0.1 * jax.random.normal(jax.random.key(0), (8, 32, 32)), whole)
x = jax.device_put(jax.random.normal(jax.random.key(1), (2048, 32)), rows)
body = lambda x, p: (x + jnp.tanh(jnp.tanh(x @ p) @ p), None)
scanned = jax.value_and_grad(lambda w, x: jnp.mean(jax.lax.scan(body, x, w)[0] ** 2))
def loss(w, x):
    for p in w:
        x = body(x, p)[0]
    return jnp.mean(x * x)
for step in (scanned, jax.value_and_grad(loss)):
    fitted = recoup.fit(step, w, x, budget="70%")
    assert fitted.memory.arguments_bytes == w.nbytes + x.nbytes // 8, fitted.memory
    assert fitted.memory.total_bytes <= 0.7 * fitted.unplanned_memory.total_bytes
    assert fitted.plan.peak_bytes < 2 * fitted.memory.total_bytes
    assert not fitted.plan.changes_nothing
    for a, b in zip(jax.tree.leaves(fitted(w, x)), jax.tree.leaves(jax.jit(step)(w, x)), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)
    try:
        recoup.fit(step, w, x, budget="5%")
        raise SystemExit("5% fits?")
    except recoup.BudgetError as error:
        assert "on each device" in str(error), error
"""


def test_eight_devices() -> None:
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stderr[-3000:]
