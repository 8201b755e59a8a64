"""States beyond the slots in host memory or on disk: the same numbers, files that go away, errors that lose
nothing."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup.errors import PlanError


def step(w, c, x):
    u, key, n = c
    key, sub = jax.random.split(key)
    u = u + jnp.float32(0.1) * jnp.tanh(w * u) + x * jax.random.normal(sub, u.shape)
    return (u, key, n + 1), (u.sum(), n)


def loss(scan, **options):
    def f(w, u, xs):
        (u, _, n), (y, k) = scan(
            lambda c, x: step(w, c, x), (u, jax.random.key(1), jnp.int32(0)), xs, **options
        )
        return jnp.sum(u**2) + jnp.sum(jnp.sin(y)), (n, k)

    return jax.value_and_grad(f, (0, 1, 2), has_aux=True)


def inputs(n=23):
    return jnp.linspace(0, 1, 4), jnp.arange(4.0), jnp.linspace(-1, 1, n)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [5, 23])
def test_on_disk_as_in_memory(tmp_path, every, reverse):
    expected = jax.jit(loss(jax.lax.scan, reverse=reverse))(*inputs())
    with recoup.DiskStore(tmp_path) as store:
        fun = jax.jit(loss(recoup.scan, checkpoints=3, store=store, store_every=every, reverse=reverse))
        close(fun(*inputs()), expected)
        close(fun(*inputs()), expected)
        files = os.listdir(store.path)
        assert len(files) == (4 * 3 if every == 5 else 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_in_host_memory(reverse):
    expected = jax.jit(loss(jax.lax.scan, reverse=reverse))(*inputs())
    options = {"checkpoints": 3, "store": "host", "store_every": 5, "reverse": reverse}
    fun = jax.jit(loss(recoup.scan, **options))
    close(fun(*inputs()), expected)
    hvp = lambda scan, **o: jax.jit(
        lambda w, u, xs: jax.jvp(lambda w: loss(scan, **o)(w, u, xs)[1][0], (w,), (w,))[1]
    )(*inputs())
    close(hvp(recoup.scan, **options), hvp(jax.lax.scan, reverse=reverse))


def test_a_full_disk_raises_and_the_next_run_works(tmp_path, monkeypatch):
    with recoup.DiskStore(tmp_path) as store:
        fun = jax.jit(loss(recoup.scan, checkpoints=2, store=store, store_every=5))
        write = store.write

        def full(loop, run, piece, *arrays):
            if int(piece) == 2:
                raise OSError(28, "No space left on device")
            return write(loop, run, piece, *arrays)

        monkeypatch.setattr(store, "write", full)
        with pytest.raises(Exception, match="No space left"):
            jax.block_until_ready(fun(*inputs()))
        monkeypatch.setattr(store, "write", write)
        close(fun(*inputs()), jax.jit(loss(jax.lax.scan))(*inputs()))


def test_states_that_are_gone_are_not_read(tmp_path):
    store = recoup.DiskStore(tmp_path)
    f = jax.jit(
        lambda u: recoup.scan(
            lambda u, _: (jnp.sin(u), None), u, None, 20, checkpoints=2, store=store, store_every=5
        )[0]
    )
    _, pull = jax.vjp(f, jnp.float32(0.5))
    first = pull(jnp.float32(1))
    assert pull(jnp.float32(1)) == first
    jax.block_until_ready(jax.vjp(f, jnp.float32(0.7))[0])
    with pytest.raises(Exception, match="overwrote"):
        jax.block_until_ready(pull(jnp.float32(1)))
    store.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(PlanError, match="closed"):
        store.read(1, [], 1, 0)


def test_used_only_where_it_pays(tmp_path):
    with recoup.DiskStore(tmp_path, transfer_cost=1000.0) as store:
        jax.jit(loss(recoup.scan, checkpoints=10, store=store))(*inputs())
        assert os.listdir(store.path) == []


def test_arguments(tmp_path):
    with pytest.raises(NotADirectoryError, match="existing"):
        recoup.DiskStore(tmp_path / "none")
    f = lambda u, _: (u, None)
    for options in ({"store": "host"}, {"store_every": 3}, {"store": "tape", "checkpoints": 2}):
        with pytest.raises(ValueError, match="store"):
            recoup.scan(f, 1.0, None, 9, **options)
    with pytest.raises(ValueError, match="at least 1"):
        recoup.scan(f, 1.0, None, 9, checkpoints=2, store="host", store_every=0)
