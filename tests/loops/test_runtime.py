"""The compiled loop computes the same splits as the schedules, and executes exactly as many steps as they
count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup._loops import runtime, schedules
from tests.loops.taped import taped


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


@pytest.mark.parametrize(("n", "slots", "steps"), [(61, 4, 5), (60, 3, 4), (9, 9, 20), (40, 1, 7)])
def test_tapes_execute_what_is_counted(n, slots, steps):
    counter = Counter()

    def loop(u):
        return recoup.scan(lambda u, _: (counter.step(u), None), u, None, n)[0]

    with taped(slots, steps):
        jax.block_until_ready(jax.jit(jax.value_and_grad(loop))(jnp.float32(0.0)))
    assert (counter.advances, counter.reverses) == (schedules.taped_advances(n, slots, steps), n)


def temporaries(fun, *args):
    return jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("n", "slots", "steps"), [(1000, 30, 25), (1003, 12, 17), (1000, 40, 25)])
def test_tapes_hold_what_is_predicted(n, slots, steps):
    """(slots + 3) states, the tape's residuals (2 states a step here), and one gradient of the weight."""
    v, u = jnp.linspace(0, 1, 4096), jnp.ones(4096)

    def loss(v, u):
        step = lambda u, _: (u + jnp.float32(0.01) * jnp.sin(v * jnp.roll(u, 1)), None)
        return jnp.sum(recoup.scan(step, u, None, n)[0] ** 2)

    with taped(slots, steps):
        got = temporaries(jax.grad(loss, (0, 1)), v, u)
    state = 4 * 4096
    assert got <= (slots + 3 + 2 * steps + 1) * state + 4096


@pytest.mark.parametrize("unknown", [False, True])
def test_slots_hold_three_states_more(unknown):
    v, u, slots = jnp.linspace(0, 1, 4096), jnp.ones(4096), 12

    def loss(v, u):
        step = lambda u: u + jnp.float32(0.01) * jnp.sin(v * jnp.roll(u, 1))
        if unknown:
            going, more = lambda c: c[1] < 1000, lambda c: (step(c[0]), c[1] + 1)
            return jnp.sum(recoup.while_loop(going, more, (u, jnp.int32(0)), checkpoints=slots)[0] ** 2)
        return jnp.sum(recoup.scan(lambda u, _: (step(u), None), u, None, 1000, checkpoints=slots)[0] ** 2)

    assert temporaries(jax.grad(loss, (0, 1)), v, u) <= (slots + 3) * u.nbytes + 4096


def test_a_captured_weight_costs_one_accumulator_on_a_tape_too():
    w, u = jnp.ones((256, 256)) / 256, jnp.ones(256)

    def loss(w, u):
        return jnp.sum(recoup.scan(lambda u, _: (jnp.tanh(w @ u), None), u, None, 100)[0] ** 2)

    with taped(5, 10):
        got = temporaries(jax.grad(loss, (0, 1)), w, u)
    assert got < w.nbytes / 2  # the one accumulator is the result itself


def test_a_budget_takes_a_tape_where_it_evaluates_less():
    step = lambda u, _: (u + jnp.float32(0.01) * jnp.sin(jnp.roll(u, 1)), None)
    u = jnp.ones(4096)
    plan = recoup.loop_plan(step, u, length=1000, budget=68 * u.nbytes)
    assert plan.chosen.tape_steps > 1 and plan.states_held == plan.slots
    assert "tapes of" in str(plan)
    assert plan.evaluations < 2.2 * 1000  # nested scans of carries: 3, binomial over single steps: 2.9
    loss = lambda u: jnp.sum(recoup.scan(step, u, None, 1000, budget=68 * u.nbytes)[0] ** 2)
    assert temporaries(jax.grad(loss), u) <= plan.predicted_bytes
