"""One flat jaxpr from a step: calls inlined, duplicates merged, dead code gone, names and lines kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from recoup import _compat
from recoup._inline import flatten
from recoup._trace import trace

from .helpers import mlp, normal, same, sgd

X = normal(0, 8, 4)
W = normal(1, 4, 4)


def flat(fun, *args, **options):
    return flatten(_compat.make_jaxpr(fun)(*args)[0], **options)


def ops(program):
    return [eqn.primitive.name for eqn in program.eqns]


def agrees(fun, *args, **options):
    """The flat program gives what the function gives; returns it."""
    program = flat(fun, *args, **options)
    leaves = jax.tree.leaves(args)
    same(_compat.eval_jaxpr(program.closed(), *leaves), jax.tree.leaves(fun(*args)))
    return program


def test_calls_are_inlined():
    inner = jax.jit(lambda x: jnp.sin(jax.jit(jnp.cos)(x)))
    program = agrees(lambda x: jax.nn.relu(inner(x) * 2.0), X)
    assert not {"jit", "pjit", "closed_call", "custom_jvp_call"} & set(ops(program))
    assert {"sin", "cos", "max"} <= set(ops(program))


def test_a_call_used_twice_has_variables_of_its_own_each_time():
    inner = jax.jit(lambda x, w: jnp.tanh(x @ w))
    program = agrees(lambda x, w, v: inner(inner(x, w), v), X, W, W + 1.0)
    assert ops(program).count("dot_general") == 2
    made = [v for eqn in program.eqns for v in eqn.outvars]
    assert len(made) == len(set(made))


def test_duplicates_are_merged():
    program = agrees(lambda x, w: jnp.sin(x @ w) + jnp.cos(x @ w) * (x @ w), X, W)
    assert ops(program).count("dot_general") == 1


def test_what_differs_in_a_parameter_or_literal_is_not_merged():
    program = agrees(lambda x: (x * 2.0 + x * 3.0, jnp.sum(x, 0), jnp.sum(x, 1)), X)
    assert ops(program).count("mul") == 2 and ops(program).count("reduce_sum") == 2


def test_literals_of_different_types_are_not_merged():
    program = agrees(lambda x: (x.astype(jnp.int32) * 2, (x * 2.0)), X)
    assert ops(program).count("mul") == 2


def test_draws_from_one_key_are_one_draw_and_from_two_are_two():
    def two(key):
        a, b = jax.random.split(key)
        return jax.random.normal(a, (4,)) + jax.random.normal(a, (4,)) * jax.random.normal(b, (4,))

    program = flat(two, jax.random.key(0))
    assert ops(program).count("random_bits") == 2


def test_dead_code_goes():
    def fun(x, w):
        unused = jnp.exp(x @ w)
        del unused
        return jnp.sin(x)

    assert ops(agrees(fun, X, W)) == ["sin"]


def test_dead_code_inside_a_scan_goes():
    def fun(x):
        def body(c, _):
            return c + 1.0, jnp.sin(c)

        return lax.scan(body, x, None, length=3)[0]

    (scan,) = agrees(fun, X).eqns
    assert "sin" not in str(_compat.scan_parts(scan).body)


def test_effects_stay_and_are_not_merged():
    def fun(x):
        jax.debug.print("{}", x[0, 0])
        jax.debug.print("{}", x[0, 0])
        return x

    assert sum(bool(eqn.effects) for eqn in flat(fun, X).eqns) == 2


def test_a_name_inside_a_call_is_relative_to_the_call():
    @jax.jit
    def inner(x):
        with jax.named_scope("inner"):
            return jnp.sin(x)

    def fun(x):
        with jax.named_scope("outer"):
            return inner(x)

    (eqn,) = flat(fun, X).eqns
    scope = str(eqn.source_info.name_stack)
    assert "outer" in scope and "inner" in scope and scope.index("outer") < scope.index("inner")


def test_the_backward_of_a_call_is_known_as_backward():
    inner = jax.jit(lambda x, w: jnp.tanh(x @ w))
    program = flat(jax.grad(lambda w: jnp.sum(inner(X, w))), W)
    scopes = [str(e.source_info.name_stack) for e in program.eqns if e.primitive.name == "dot_general"]
    assert len(scopes) == 2 and sum("transpose(" in s for s in scopes) == 1


def test_lines_are_the_users():
    traced = trace(*_with_args(mlp(2, 4, 8)))
    sources = {op.source for op in traced.program.ops if op.name == "tanh"}
    assert all("helpers.py" in source and "mlp_loss" in source for source in sources)


def _with_args(made):
    step, args = made
    return step, args


def test_arrays_closed_over_are_constants_once():
    big = np.ones((64, 64), np.float32)
    program = agrees(lambda x: x @ jnp.asarray(big) @ jnp.asarray(big), normal(0, 8, 64))
    assert sum(c.nbytes for c in map(np.asarray, program.consts)) in (big.nbytes, 2 * big.nbytes)
    held = jnp.asarray(big)
    program = agrees(lambda x: jax.jit(lambda y: y @ held)(x @ held), normal(0, 8, 64))
    assert sum(c.nbytes for c in program.consts) == big.nbytes


def test_a_constant_that_nobody_reads_is_left_out():
    held = jnp.ones((64, 64))
    program = agrees(lambda x: (jnp.sum(held) * 0.0, x)[1], X)
    assert not program.consts


def test_results_that_are_arguments_literals_or_repeated():
    program = agrees(lambda x: (x, x, jnp.float32(3.0), x + 1.0), X)
    assert len(program.outvars) == 4


def region_step():
    def block(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    return jax.grad(lambda w, x: jnp.sum(jax.checkpoint(block)(x, w))), (W, X)


def test_regions_stay_unless_asked():
    step, args = region_step()
    names = ops(agrees(step, *args))
    assert any(name in names for name in ("remat2", "checkpoint", "remat"))


def test_dissolving_a_region_merges_its_recomputation():
    step, args = region_step()
    program = agrees(step, *args, dissolve_regions=True)
    plain = flat(jax.grad(lambda w, x: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))), *args)
    assert not {"remat2", "checkpoint", "remat"} & set(ops(program))
    assert ops(program).count("dot_general") == ops(plain).count("dot_general")
    assert ops(program).count("tanh") == ops(plain).count("tanh") == 2


def test_custom_derivatives_that_were_used_are_inlined():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 2.0,))
    step = sgd(lambda w, x: jnp.sum(f(x @ w)))
    program = flat(step, W, X)
    assert not any("custom" in name for name in ops(program))
    same(_compat.eval_jaxpr(program.closed(), W, X), jax.tree.leaves(step(W, X)))


def test_a_call_with_shardings_stays_a_call():
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    inner = jax.jit(lambda x: jnp.sin(x), out_shardings=here)
    assert any(name in ("jit", "pjit") for name in ops(flat(lambda x: inner(x) + 1.0, X)))


def test_loops_and_branches_stay_one_operation():
    def fun(x):
        x = lax.while_loop(lambda c: jnp.sum(c) < 10.0, lambda c: c + 1.0, x)
        return lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, lax.fori_loop(0, 3, lambda i, c: c * 2.0, x))

    names = ops(agrees(fun, X))
    assert {"while", "cond", "scan"} <= set(names) and "sin" not in names


@pytest.mark.parametrize("remat3", [False, True])
def test_a_dissolved_region_leaves_what_plain_has(remat3):
    """Both of JAX's regions: the same operations as without, in an order that shows what waits."""

    def loss(wrap):
        def run(w, x):
            (x,) = lax.optimization_barrier((jnp.sin(x),))  # the user's own: it stays
            return (wrap(lambda w, x: jnp.sin(jnp.tanh(x @ w) @ w))(w, x) ** 2).sum()

        return jax.grad(run)

    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", remat3)
    try:
        kept = trace(loss(jax.checkpoint), (W, X)).program
        dissolved = ops(agrees(loss(jax.checkpoint), W, X, dissolve_regions=True))
    finally:
        jax.config.update("jax_remat3", before)
    plain = trace(loss(lambda f: f), (W, X)).program
    assert kept.flops > plain.flops
    assert sorted(dissolved) == sorted(op.name for op in plain.ops)
    # The factor of the derivative is made where it would be without a region, and waits from there on.
    second_product = [i for i, name in enumerate(dissolved) if name == "dot_general"][1]
    assert dissolved[second_product + 1] == "cos"
