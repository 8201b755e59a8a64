"""Counting operations on the jaxpr, and a step as a Program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from recoup import _compat, _cost
from recoup._explain import fingerprint
from recoup._program import ARGUMENT, CONSTANT
from recoup._trace import trace

from .helpers import mlp, normal

F32 = jnp.float32


def shape(*sizes, dtype=F32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def flops(fun, *args):
    return _cost.flops(_compat.make_jaxpr(fun)(*args)[0])


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (jnp.matmul, (shape(3, 5), shape(5, 7)), 2 * 3 * 5 * 7),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (shape(4, 3, 5), shape(4, 5, 7)), 2 * 4 * 3 * 5 * 7),
        (lambda a: jnp.dot(a, a), (shape(9),), 2 * 9),
        (jnp.sin, (shape(6, 7),), 42),
        (lambda x: jnp.sum(x, axis=1), (shape(6, 7),), 42),
        (lambda x: x.T.reshape(-1)[3:], (shape(6, 7),), 0),
    ],
)
def test_products_elements_and_moves(fun, args, expected):
    assert flops(fun, *args) == expected


def convolution(x, k, **options):
    return lax.conv_general_dilated(
        x, k, options.pop("strides", (1, 1)), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


def test_convolutions():
    x, k = shape(2, 8, 8, 3), shape(3, 3, 3, 5)
    assert flops(convolution, x, k) == 2 * (2 * 8 * 8 * 5) * 3 * 3 * 3
    strided = lambda x, k: convolution(x, k, strides=(2, 2))
    assert flops(strided, x, k) == 2 * (2 * 4 * 4 * 5) * 27
    grouped = lambda x, k: convolution(x, k, feature_group_count=4)
    assert flops(grouped, shape(2, 8, 8, 4), shape(3, 3, 1, 8)) == 2 * (2 * 8 * 8 * 8) * 9


def test_the_gradients_of_a_convolution_cost_what_it_costs():
    x, k = normal(0, 2, 8, 8, 3), normal(1, 3, 3, 3, 4)
    one = flops(convolution, x, k)
    strided = lambda x, k: convolution(x, k, strides=(2, 2))
    pulled = lambda x, k: jax.vjp(strided, x, k)[1](jnp.ones((2, 4, 4, 4)))
    assert flops(pulled, x, k) == pytest.approx(3 * one / 4, rel=0.35)


def test_a_loop_counts_its_length():
    def loop(n):
        return lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, None, length=n)[0]

    args = (shape(3, 5), shape(5, 5))
    assert flops(loop(11), *args) == 11 * 2 * 3 * 5 * 5
    nested = lambda x, w: lax.scan(lambda c, _: (loop(4)(c, w), None), x, None, length=3)[0]
    assert flops(nested, *args) == 12 * 2 * 3 * 5 * 5


def test_a_branch_counts_its_dearest_arm():
    def fun(p, x):
        return lax.cond(p, lambda x: x @ x, lambda x: x + 1.0, x)

    assert flops(fun, shape(dtype=jnp.bool_), shape(6, 6)) == pytest.approx(2 * 6**3, abs=2)


def test_a_while_counts_one_turn():
    turn = lambda x: lax.while_loop(lambda c: c[0, 0] < 9.0, lambda c: c @ c, x)
    assert flops(turn, shape(6, 6)) == pytest.approx(2 * 6**3, abs=2)


def test_a_draw_is_dearer_than_a_sum():
    drawn = flops(lambda key: jax.random.bits(key, (100,)), jax.random.key(0))
    assert drawn >= 100 * 100


def test_moving_memory_has_a_price():
    eqns = _compat.open_jaxpr(_compat.make_jaxpr(lambda x: jnp.broadcast_to(x, (8, 16)))(shape(16))[0])[
        0
    ].eqns
    assert sum(map(_cost.eqn_flops, eqns)) == 0.0
    assert sum(map(_cost.price, eqns)) >= _cost.FLOPS_PER_BYTE * 8 * 16 * 4


def test_a_step_as_a_program():
    held = normal(5, 8, 8)

    def step(params, x, scale=1.0):
        with jax.named_scope("body"):
            return {"y": jnp.tanh(x @ params["w"]) @ held * scale, "w": params["w"] - 1.0}

    traced = trace(step, ({"w": normal(0, 8, 8)}, normal(1, 4, 8)), {"scale": F32(2.0)}, donate_argnums=(0,))
    program = traced.program
    assert traced.argument_names == ("args[0]['w']", "args[1]", "scale")
    assert program.argument_bytes == 256 + 128 + 4
    assert program.constant_bytes == 256 and len(program.constants) == 1
    assert program.output_bytes == 128 + 256
    assert program.donated == {program.inputs[0]}
    assert program.own_results == (next(v for v in program.outputs if program.values[v].bytes == 128),)
    dots = [op for op in program.ops if op.name == "dot_general"]
    assert [op.heavy for op in dots] == [True, True] and all("test_cost.py" in op.source for op in dots)
    assert all("body" in op.scope for op in dots)
    tanh = next(op for op in program.ops if op.name == "tanh")
    assert tanh.fusible and tanh.dear and tanh.pure
    assert {program.values[v].producer for v in program.inputs} == {ARGUMENT}
    assert {program.values[v].producer for v in program.constants} == {CONSTANT}
    for i, op in enumerate(program.ops):
        assert all(program.values[v].producer == i for v in op.writes)
        assert all(program.values[v].producer < i for v in op.reads)
        assert all(i in program.readers[v] for v in op.reads)


def test_what_may_not_run_twice():
    def step(x):
        jax.debug.print("{}", x[0])
        y = lax.while_loop(lambda c: c[0] < 3.0, lambda c: c + 1.0, x)
        return y + jax.random.normal(jax.random.key(0), x.shape)

    program = trace(step, (normal(0, 4),)).program
    pure = {op.name: op.pure for op in program.ops}
    assert not pure["while"] and pure["random_bits"]
    assert not next(op for op in program.ops if "callback" in op.name or "print" in op.name).pure


def test_the_inside_of_a_loop_is_workspace():
    def step(x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ c) @ c, None), x, None, length=3)[0]

    (scan,) = [op for op in trace(step, (normal(0, 64, 64),)).program.ops if op.name == "scan"]
    assert 64 * 64 * 4 <= scan.workspace_bytes <= 4 * 64 * 64 * 4


def test_shapes_alone_are_enough():
    step, args = mlp()
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    assert fingerprint(trace(step, structs).program) == fingerprint(trace(step, args).program)


def test_fingerprints_tell_steps_apart():
    step, (params, x) = mlp()
    base = fingerprint(trace(step, (params, x)).program)
    assert fingerprint(trace(mlp()[0], (params, x)).program) == base
    others = [
        trace(step, (params[:-1], x)),
        trace(step, (params, x[:-1])),
        trace(step, (params, x), donate_argnums=(0,)),
        trace(lambda p, x: step(jax.tree.map(lambda w: w * 2.0, p), x), (params, x)),
    ]
    assert len({base, *(fingerprint(t.program) for t in others)}) == 5
