"""Every buffer's life adds up to the timeline, loops included."""

import jax
import jax.numpy as jnp
import pytest

from recoup import _memory


def _loss(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def _scanned(w, x):
    def body(h, _):
        h = jnp.tanh(h @ w)
        return h, jnp.sum(jnp.sin(h))

    h, sums = jax.lax.scan(body, x, None, length=5)
    return jnp.sum(h**2) + jnp.sum(sums)


@pytest.mark.parametrize("fun", [_loss, _scanned])
def test_lives_add_up_to_the_timeline(fun):
    array = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = _memory.predict(jax.make_jaxpr(jax.value_and_grad(fun))(array, array))
    totals = [0] * len(found.timeline)
    for life in found.lives:
        assert 0 <= life.first <= life.last < len(totals)
        for at in range(life.first, life.last + 1):
            totals[at] += life.nbytes
    assert totals == [point.live_bytes for point in found.timeline]
    assert max(totals) > 0
    if fun is _scanned:
        assert any(life.inside for life in found.lives)
