"""The compiled loop computes the same splits as the schedules, and executes exactly as many steps as they
count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup._loops import runtime, schedules


def test_split_is_the_schedules_split():
    reaches = runtime.table(20)
    split = jax.jit(jax.vmap(lambda n, s: runtime.split(n, s, reaches)))
    n, s = (jnp.asarray(a.ravel(), jnp.int32) for a in np.meshgrid(np.arange(1, 251), np.arange(1, 21)))
    expected = [max(schedules.split(int(a), int(b)), 1) for a, b in zip(n, s, strict=True)]
    assert split(n, s).tolist() == expected


@pytest.mark.parametrize(
    ("n", "slots"), [(10**6, 200), (10**6, 3), (10**7, 500), (10**8, 64), (2**30, 64), (2**30, 2)]
)
def test_split_of_long_loops(n, slots):
    got = int(jax.jit(lambda n, s: runtime.split(n, s, runtime.table(slots)))(jnp.int32(n), jnp.int32(slots)))
    assert 1 <= got < n
    if slots > 2 and n < runtime.LIMIT:
        assert got == pytest.approx(schedules.split(n, slots), rel=0.01)


class Counter:
    """Counts executions of the step: those that are not differentiated, and the differentiated ones."""

    def __init__(self):
        self.advances = 0
        self.reverses = 0

    def step(self, u):
        @jax.custom_vjp
        def tick(u):
            return jax.pure_callback(self._advance, jax.ShapeDtypeStruct(u.shape, u.dtype), u)

        def fwd(u):
            out = jax.pure_callback(self._reverse, jax.ShapeDtypeStruct(u.shape, u.dtype), u)
            return out, out

        # the cotangent reads what the callback returned, so that no execution is dead code
        tick.defvjp(fwd, lambda out, ct: (ct * jnp.cos(out),))
        return tick(u) + 1

    def _advance(self, u):
        self.advances += 1
        return u

    def _reverse(self, u):
        self.reverses += 1
        return u


@pytest.fixture(scope="module")
def counted():
    """Compiled once per number of slots; the trip count is data, so that every length is really executed."""
    counter = Counter()

    def make(slots, unknown):
        def loop(u, n):
            if unknown:
                cond = lambda c: c[1] < n
                body = lambda c: (counter.step(c[0]), c[1] + 1)
                return recoup.while_loop(cond, body, (u, jnp.int32(0)), checkpoints=slots)[0]
            return recoup.fori_loop(0, n, lambda _, u: counter.step(u), u, checkpoints=slots)

        return jax.jit(jax.value_and_grad(loop))

    def run(fun, n):
        counter.advances = counter.reverses = 0
        jax.block_until_ready(fun(jnp.float32(0.0), jnp.int32(n)))
        return counter.advances, counter.reverses

    return make, run


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 20])
def test_executions_are_the_optimum(counted, slots):
    make, run = counted
    fun = make(slots, unknown=False)
    lengths = range(0, 41, 3 if slots > 1 else 8)
    for n in [*lengths, *([97, 250] if slots > 2 else [])]:
        assert run(fun, n) == (schedules.optimal_advances(n, slots), n)


@pytest.mark.slow
@pytest.mark.parametrize("slots", range(1, 21))
def test_executions_are_the_optimum_everywhere(counted, slots):
    make, run = counted
    fun = make(slots, unknown=False)
    for n in range(251):
        assert run(fun, n) == (schedules.optimal_advances(n, slots), n)


@pytest.mark.parametrize("slots", [1, 2, 3, 10])
def test_executions_of_unknown_length(counted, slots):
    make, run = counted
    fun = make(slots, unknown=True)
    for n in [0, 1, 2, 3, 5, 8, 11, 23, 50, *([200] if slots > 2 else [])]:
        assert run(fun, n) == (schedules.online_advances(n, slots), n)


def test_static_length_executes_the_optimum():
    counter = Counter()

    def loop(u):
        return recoup.scan(lambda u, _: (counter.step(u), None), u, None, 61, checkpoints=4)[0]

    jax.block_until_ready(jax.jit(jax.value_and_grad(loop))(jnp.float32(0.0)))
    assert (counter.advances, counter.reverses) == (schedules.optimal_advances(61, 4), 61)
