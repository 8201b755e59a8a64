"""Rewritten steps: results equal to plain, fewer temporaries, recomputation that the compiler left alone."""

import re

import jax
import jax.numpy as jnp
import pytest

from recoup import _compat, _ladder
from recoup._compiling import to_function
from recoup._planner.layout import layout
from recoup._planner.machine import execute
from recoup._rewrite import RECOMPUTE_SCOPE, rewrite
from recoup._trace import trace

from .helpers import (
    again,
    block,
    close,
    compiled,
    convnet,
    gpt,
    mlp,
    normal,
    products,
    same,
    sgd,
    temporaries,
)


def rungs(step, args):
    traced = trace(step, args)
    return traced, _ladder.build(traced)


def at(step, args, which):
    """The plain and the rewritten step compiled, at a rung of the ladder."""
    traced, ladder = rungs(step, args)
    rung = ladder.steps[which]
    fun = to_function(rung.flat, traced, "step")
    return rung, compiled(step, *args), compiled(fun, *args)


# Elementwise chains before and after a barrier fuse into other loops, where XLA may contract a product and a
# sum; reductions of a normalisation are then vectorised differently. That is a few units in the last place.
@pytest.mark.parametrize(
    ("make", "ulps", "share"),
    [(mlp, 0, 0.75), (gpt, 64, 0.75), (convnet, 256, 0.8)],
    ids=["mlp", "transformer", "conv_batch_statistics"],
)
def test_a_low_rung(make, ulps, share):
    step, args = make()
    rung, plain, rewritten = at(step, args, -1)
    close(plain(*args), rewritten(*args), ulps)
    assert temporaries(rewritten) < share * temporaries(plain)
    # Products run again in the compiled program: it has more of them, and their names say which.
    more = products(rewritten)
    assert again(more) and not again(products(plain))
    assert len(more) - len(again(more)) == len(products(plain))
    repeated = len(rung.rung.schedule) - len(rung.variant.program.ops)
    assert 0 < len(again(more)) <= repeated


def test_a_cheap_rung_recomputes_no_product():
    step, args = gpt()
    _, plain, rewritten = at(step, args, 1)
    assert temporaries(rewritten) < temporaries(plain)
    assert len(products(rewritten)) == len(products(plain))
    close(plain(*args), rewritten(*args), 64)


def test_dropout_draws_the_same_mask_again():
    step, args = gpt(layers=2, drop=True)
    _, plain, rewritten = at(step, args, -1)
    assert temporaries(rewritten) < temporaries(plain)
    close(plain(*args), rewritten(*args), 64)


def test_every_operation_is_there_and_repeats_are_marked():
    step, args = mlp()
    traced, ladder = rungs(step, args)
    for rung in ladder.steps[1:]:
        eqns = [e for e in rung.flat.eqns if e.primitive.name != "recoup_barrier"]
        marked = [RECOMPUTE_SCOPE in str(e.source_info.name_stack) for e in eqns]
        assert len(eqns) - sum(marked) == len(traced.program.ops)
        assert len(eqns) == len(rung.rung.schedule)
        names = [traced.flat.eqns[i].primitive.name for i in rung.rung.schedule]
        assert [e.primitive.name for e in eqns] == names


def test_variables_are_assigned_once_and_before_use():
    step, args = gpt(layers=2)
    _, ladder = rungs(step, args)
    for rung in ladder.steps:
        known = {*rung.flat.constvars, *rung.flat.invars}
        for eqn in rung.flat.eqns:
            assert all(v in known for v in eqn.invars if not isinstance(v, _compat.Literal))
            assert not known & set(eqn.outvars)
            known |= set(eqn.outvars)


def test_what_stood_before_a_barrier_is_read_through_it():
    # A barrier's result that nobody reads is dropped by the compiler, and the recomputation slides back.
    step, args = mlp()
    _, ladder = rungs(step, args)
    eqns = ladder.steps[-1].flat.eqns
    readers = [v for eqn in eqns for v in eqn.invars if not isinstance(v, _compat.Literal)]
    windows = [e for e in eqns if e.primitive.name == "recoup_barrier" and e.params["triggers"]]
    assert windows
    for eqn in windows:
        assert eqn.outvars[-1] in readers  # the trigger
        assert any(v in readers for v in eqn.outvars[:-1])


def test_the_plain_schedule_changes_no_result():
    step, args = mlp()
    traced = trace(step, args)
    plan = layout(traced.program)
    flat = rewrite(traced.flat, traced.program, plan, range(len(traced.program.ops)))
    same(compiled(step, *args)(*args), compiled(to_function(flat, traced, "step"), *args)(*args))


def test_machine_and_compiler_agree_on_the_direction():
    step, args = mlp(layers=8)
    traced, ladder = rungs(step, args)
    first, last = ladder.steps[0], ladder.steps[-1]
    sizes = [
        temporaries(compiled(to_function(r.flat, traced, "s"), *args))
        for r in (first, ladder.steps[len(ladder.steps) // 2], last)
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    for rung in ladder.steps:
        run = execute(rung.variant.program, rung.rung.schedule, rung.variant.layout.window)
        assert run.peak_bytes == rung.peak_bytes


def test_the_rewritten_program_names_recomputed_operations():
    step, args = mlp()
    _, _, rewritten = at(step, args, -1)
    found = re.findall(rf'op_name="([^"]*{RECOMPUTE_SCOPE}[^"]*)"', rewritten.as_text())
    assert any("tanh" in name for name in found)


def test_higher_derivatives_of_a_rewritten_step():
    weights = [normal(i, 16, 16, scale=0.3) for i in range(4)]
    x = normal(9, 256, 16)

    def grad(params, x):
        def loss(params):
            h = x
            for w in params:
                h = jnp.tanh(jnp.tanh(h @ w) * 2.0)
            return jnp.mean(h * h)

        return jax.grad(loss)(params)

    traced, ladder = rungs(grad, (weights, x))
    fun = to_function(ladder.steps[-1].flat, traced, "grad")

    def twice(g):
        return jax.jit(lambda p, x: jax.grad(lambda p: sum(jnp.sum(a * a) for a in g(p, x)))(p))

    close(twice(grad)(weights, x), twice(fun)(weights, x), 64)
    mapped = lambda g: jax.jit(jax.vmap(g, in_axes=(None, 0)))
    xs = jnp.stack([x, x * 0.5])
    close(mapped(grad)(weights, xs), mapped(fun)(weights, xs), 64)


def test_half_precision_keeps_its_rounding():
    params = [normal(i, 32, 32, scale=0.2, dtype=jnp.bfloat16) for i in range(6)]
    x = normal(9, 512, 32, dtype=jnp.bfloat16)

    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(params, x):
        return jax.grad(loss)(params, x)

    _, plain, rewritten = at(step, (params, x), -1)
    for a, b in zip(plain(params, x), rewritten(params, x), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        scale = float(jnp.max(jnp.abs(a.astype(jnp.float32))))
        assert float(jnp.max(jnp.abs((a - b).astype(jnp.float32)))) <= 2**-7 * scale


def test_a_block_shared_by_two_places():
    from .helpers import block_params

    def loss(p, x):
        for _ in range(4):
            x = block(p, x)
        return jnp.mean(x * x)

    args = (block_params(0), normal(1, 2, 64, 32))
    _, plain, rewritten = at(sgd(loss), args, -1)
    assert temporaries(rewritten) < temporaries(plain)
    close(plain(*args), rewritten(*args), 64)
