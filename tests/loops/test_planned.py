"""A step whose residuals are large is planned together with the slots: it meets budgets that slots alone do
not, with the same gradients, and runs again what the plan says."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import recoup
from recoup._loops import choose, planned
from recoup._loops.prepare import sizes_of, trace_scan, trades_of
from recoup.errors import BudgetError
from tests.loops.taped import planned_tape

LAYERS, WIDTH, ROWS, STEPS = 6, 16, 64, 30
KIB = 1024


def body(ws, u):
    for w in ws:
        u = u + jnp.float32(0.1) * jnp.tanh(jnp.tanh(u @ w) @ w.T)
    return u


def step(ws):
    return lambda u, x: (body(ws, u) * x, jnp.sum(u))


def inputs():
    keys = jax.random.split(jax.random.key(0), LAYERS)
    ws = [jax.random.normal(k, (WIDTH, 2 * WIDTH)) / 5 for k in keys]
    return ws, jax.random.normal(jax.random.key(1), (ROWS, WIDTH)), jnp.linspace(0.9, 1, STEPS)


def loss(scan, **options):
    def f(ws, u, xs):
        u, ys = scan(step(ws), u, xs, **options)
        return jnp.sum(u**2) + jnp.sum(ys**2)

    return f


@cache
def unplanned_bytes(slots=1):
    """What the engine takes with a step as it is: exact where the memory model is."""
    ws, u, xs = inputs()
    traced = trace_scan(step(ws), u, xs, STEPS)
    as_it_is, *_ = trades_of(traced.body, traced.init, traced.xs)(1)
    return choose.planned_bytes(sizes_of(traced.body, traced.init, traced.xs), slots, as_it_is)


def close(a, b, rtol=1e-5):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * float(abs(y).max())), a, b
    )


def executions(compiled):
    """How often a step's layers are evaluated in the program's loops: each has two tanh."""
    return len(re.findall(r" tanh\(", compiled.as_text())) / (2 * LAYERS)


def temporaries(fun, *args):
    return jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.fixture(scope="module")
def plain():
    return jax.jit(jax.grad(loss(jax.lax.scan), (0, 1, 2)))(*inputs())


@pytest.mark.parametrize("share", [0.8, pytest.param(0.75, marks=pytest.mark.slow)])
def test_meets_a_budget_that_slots_alone_do_not(share, plain):
    ws, u, xs = inputs()
    budget = int(share * unplanned_bytes())
    plan = recoup.loop_plan(step(ws), u, xs, budget=budget)
    assert plan.chosen.planned and plan.predicted_bytes <= budget
    with pytest.raises(BudgetError, match="smallest"):
        choose.choose(STEPS, plan.sizes, budget_bytes=budget)  # without the planner
    grad = jax.jit(jax.grad(loss(recoup.scan, budget=budget), (0, 1, 2)))
    compiled = grad.lower(*inputs()).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= budget
    close(compiled(*inputs()), plain)
    # two loops that advance, one that differentiates, and in this what the plan runs again
    assert executions(compiled) == pytest.approx(3 + plan.chosen.trade.extra, rel=0.15)
    assert executions(compiled) > 3
    text = str(plan)
    assert "planned steps" in text and "differentiating a step is planned to take" in text
    assert re.search(r"recompute +\d+ +f32\[", text) and "test_planned.py" in text
    assert plan.step_plan.repeats


def test_as_it_is_where_the_budget_allows(plain):
    budget = int(1.02 * unplanned_bytes(STEPS))
    compiled = jax.jit(jax.grad(loss(recoup.scan, budget=budget))).lower(*inputs()).compile()
    assert 0.9 * budget <= compiled.memory_analysis().temp_size_in_bytes <= budget
    assert executions(compiled) == 3


def test_the_planner_is_asked_only_where_residuals_are_large(monkeypatch):
    monkeypatch.setattr(planned, "trades", lambda *_: pytest.fail("the planner was asked"))
    ws, u, xs = inputs()
    small = lambda u, x: (jnp.sin(u) * x, None)
    recoup.loop_plan(small, u, xs, budget=40 * KIB)
    recoup.loop_plan(step(ws), u, xs, checkpoints=3)
    recoup.loop_plan(step(ws), u, xs)
    recoup.loop_plan(step(ws), u, xs, budget="1GiB")
    recoup.loop_plan(step(ws), u, jnp.ones(100_000), budget="100MiB")  # room for many tapes
    with pytest.raises(BaseException, match="the planner was asked"):
        recoup.loop_plan(step(ws), u, xs, budget=150 * KIB)


def test_the_smallest_is_named():
    ws, u, xs = inputs()
    with pytest.raises(BudgetError, match="1 slots, planned steps"):
        recoup.loop_plan(step(ws), u, xs, budget=20 * KIB)


def test_a_loop_of_unknown_length():
    ws, u, _ = inputs()
    budget = int(0.85 * unplanned_bytes())

    def run(loop, **options):
        def f(ws, u):
            more, more_of = lambda c: c[1] < 7, lambda c: (body(ws, c[0]), c[1] + 1)
            return jnp.sum(loop(more, more_of, (u, jnp.int32(0)), **options)[0] ** 2)

        return jax.jit(jax.grad(f, (0, 1)))

    fixed = lambda more, more_of, c: jax.lax.fori_loop(0, 7, lambda _, c: more_of(c), c)
    close(run(recoup.while_loop, budget=budget)(ws, u), run(fixed)(ws, u))
    plan = recoup.loop_plan(lambda u, _: (body(ws, u), None), u, budget=budget)
    assert plan.chosen.planned and plan.method == "online" and plan.evaluations is None


def test_another_program_is_planned_again(plain):
    """Fewer operands are differentiated than the plan was made for."""
    ws, u, xs = inputs()
    budget = int(0.8 * unplanned_bytes())
    compiled = jax.jit(jax.grad(loss(recoup.scan, budget=budget), 1)).lower(ws, u, xs).compile()
    assert executions(compiled) > 3
    assert compiled.memory_analysis().temp_size_in_bytes <= budget
    close(compiled(ws, u, xs), plain[1])


@pytest.mark.slow
def test_derivatives_of_higher_order_and_batches():
    ws, u, xs = inputs()
    xs = xs[:5]
    budget = int(0.8 * unplanned_bytes())
    f, g = loss(recoup.scan, budget=budget), loss(jax.lax.scan)
    assert recoup.loop_plan(step(ws), u, xs, budget=budget).chosen.planned
    hvp = lambda f: jax.jit(lambda u: jax.jvp(jax.grad(lambda u: f(ws, u, xs)), (u,), (jnp.sin(u),))[1])(u)
    close(hvp(f), hvp(g), 1e-4)
    many = lambda f: jax.jit(jax.vmap(jax.grad(f, 1), (None, 0, None)))(ws, jnp.stack([u, u * 2]), xs)
    close(many(f), many(g))


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map(check_vma):
    ws, u, xs = inputs()
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    budget = int(0.8 * unplanned_bytes())
    assert recoup.loop_plan(step(ws), u, xs, budget=budget).chosen.planned

    def run(scan, **options):
        local = lambda ws, u: scan(step(ws), u, xs, **options)[0]
        f = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), check_vma=check_vma)
        return jax.jit(jax.grad(lambda ws, u: jnp.sum(f(ws, u) ** 2), (0, 1)))(ws, u)

    close(run(recoup.scan, budget=budget), run(jax.lax.scan))


@pytest.mark.slow
def test_fit_and_timeline_know_planned_steps():
    ws, u, xs = inputs()
    budget = int(0.8 * unplanned_bytes())
    grad = lambda ws, u: jax.grad(lambda ws: loss(recoup.scan, budget=budget)(ws, u, xs))(ws)
    predicted = recoup.timeline(grad, ws, u).predicted
    got = temporaries(grad, ws, u)
    assert 0.95 * predicted.low.temporaries_bytes <= got <= 1.05 * predicted.high.temporaries_bytes
    fitted = recoup.fit(grad, ws, u, budget="2MiB")
    jax.tree.map(np.testing.assert_array_equal, fitted(ws, u), jax.jit(grad)(ws, u))


def test_a_tape_of_planned_steps():
    """Trades of a piece of several steps: less is stacked, and the gradients are the same."""
    ws, u, xs = inputs()
    traced = trace_scan(step(ws), u, xs, STEPS)
    with planned_tape(traced, 3, 4) as plan:
        grad = jax.jit(jax.grad(loss(recoup.scan), (0, 1, 2)))
        compiled = grad.lower(*inputs()).compile()
    assert plan.chosen.planned and plan.step_plan.loops
    assert "4 steps together" in str(plan)
    assert compiled.memory_analysis().temp_size_in_bytes <= plan.predicted_bytes
    close(compiled(*inputs()), jax.jit(jax.grad(loss(jax.lax.scan), (0, 1, 2)))(*inputs()))
