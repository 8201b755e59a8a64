"""Results, types, lengths, effects and errors of the three loops, where they should be those of `jax.lax`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import recoup
from recoup._loops.api import segment_scan
from recoup.errors import BudgetError, BudgetSyntaxError, EffectError
from tests.loops.taped import taped

TAPE = {"tape": (2, 3)}  # no option of scan: see scan_with
METHODS = [{"checkpoints": 1}, {"checkpoints": 3}, {"method": "levels"}, {"method": "all"}, {}]


def scan_with(*args, tape=None, **options):
    """`recoup.scan`, with slots and a tape forced where they are given."""
    if tape is None:
        return recoup.scan(*args, **options)
    with taped(*tape):
        return recoup.scan(*args, **options)


def same(a, b):
    def leaf(x, y):
        x, y = jnp.asarray(x), jnp.asarray(y)
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)

    jax.tree.map(leaf, a, b)


def rich(c, x):
    """Floats, an integer, a bool, a key and a bfloat16 in the carry; all kinds of outputs."""
    key, sub = jax.random.split(c["key"])
    u = c["u"] + x["a"] * jax.random.normal(sub, c["u"].shape)
    new = {
        "u": u,
        "n": c["n"] + x["k"],
        "odd": ~c["odd"],
        "key": key,
        "half": c["half"] * jnp.bfloat16(1.01),
    }
    return new, {"u": u.sum(), "n": c["n"], "key": sub, "odd": c["odd"]}


def rich_inputs(n):
    init = {
        "u": jnp.arange(3.0),
        "n": jnp.int32(2),
        "odd": jnp.bool_(True),
        "key": jax.random.key(3),
        "half": jnp.bfloat16(1.5),
    }
    return init, {"a": jnp.linspace(0, 1, n), "k": jnp.arange(n)}


@pytest.mark.parametrize("options", [*METHODS, TAPE])
@pytest.mark.parametrize(("n", "reverse"), [(0, False), (1, False), (7, True)])
def test_scan_returns_what_lax_returns(n, reverse, options):
    init, xs = rich_inputs(n)
    got = jax.jit(lambda i, x: scan_with(rich, i, x, reverse=reverse, **options))(init, xs)
    same(got, jax.jit(lambda i, x: jax.lax.scan(rich, i, x, reverse=reverse))(init, xs))


@pytest.mark.parametrize("options", [*METHODS, TAPE])
@pytest.mark.parametrize(("n", "reverse"), [(7, True), (12, False)])
def test_gradients_past_integers_and_keys(n, reverse, options):
    init, xs = rich_inputs(n)

    def loss(u, a, scan, **options):
        c, ys = scan(rich, init | {"u": u}, xs | {"a": a}, reverse=reverse, **options)
        return jnp.sum(c["u"] ** 2) + jnp.sum(jnp.sin(ys["u"])) + jnp.float32(c["half"])

    grad = lambda scan, **o: jax.jit(jax.grad(lambda u, a: loss(u, a, scan, **o), (0, 1)))(init["u"], xs["a"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        grad(scan_with, **options),
        grad(jax.lax.scan),
    )


def test_gradient_of_no_steps_is_the_identity():
    for options in METHODS:
        f = lambda u, w, o=options: recoup.scan(lambda u, _: (u * w, None), u, None, 0, **o)[0]
        assert jax.grad(f, (0, 1))(2.0, 3.0) == (1.0, 0.0)


def test_unroll_changes_nothing():
    init, xs = rich_inputs(11)
    for unroll in (2, 3, 20):
        got = recoup.scan(rich, init, xs, unroll=unroll, checkpoints=3)
        expected = jax.lax.scan(rich, init, xs)
        np.testing.assert_allclose(got[0]["u"], expected[0]["u"], rtol=1e-6)
        same(
            (got[0]["n"], got[0]["key"], got[1]["n"]),
            (expected[0]["n"], expected[0]["key"], expected[1]["n"]),
        )


def test_a_captured_weight_has_its_gradient_whatever_it_is_differentiated_for():
    w = jnp.arange(1.0, 4.0)
    for options in [*METHODS, TAPE]:
        scan = lambda u, w, o=options: scan_with(lambda u, _: (u * w, None), u, None, 5, **o)[0].sum()
        np.testing.assert_allclose(jax.grad(scan, 1)(jnp.ones(3), w), 5 * w**4, rtol=1e-6)
    body_only = lambda w: recoup.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, w), (jnp.int32(0), 1.0))
    assert jax.grad(lambda w: body_only(w)[1])(2.0) == 1.0


def test_weakly_typed_initial_values():
    f = lambda c, x: (c + x, c)
    same(recoup.scan(f, 0.0, jnp.arange(4.0), checkpoints=2), jax.lax.scan(f, 0.0, jnp.arange(4.0)))
    same(
        recoup.while_loop(lambda c: c < 5, lambda c: c + 1, 0),
        jax.lax.while_loop(lambda c: c < 5, lambda c: c + 1, 0),
    )


@pytest.mark.parametrize("bounds", [(0, 5), (3, 9), (4, 4), (5, 2), (-2, 3)])
def test_fori_loop_as_in_lax(bounds):
    body = lambda i, c: (c[0] * 2 + i, c[1] + jnp.float32(i))
    init = (jnp.int32(1), jnp.float32(0))
    expected = jax.lax.fori_loop(*bounds, body, init)
    same(recoup.fori_loop(*bounds, body, init, checkpoints=2), expected)
    same(recoup.fori_loop(*bounds, body, init), expected)
    same(jax.jit(lambda a, b: recoup.fori_loop(a, b, body, init, checkpoints=2))(*bounds), expected)


def test_while_loop_that_never_stops_with_max_steps():
    f = lambda u: recoup.while_loop(lambda c: c > 0, lambda c: c * 2, u, checkpoints=2, max_steps=7)
    assert f(1.0) == 128
    assert jax.grad(f)(1.0) == 128
    assert jax.grad(lambda u: recoup.while_loop(lambda c: c > 0, lambda c: c, u, max_steps=0))(3.0) == 1


def test_nan_stays_nan():
    f = lambda u: recoup.scan(lambda u, _: (jnp.log(u), None), u, None, 6, checkpoints=2)[0]
    assert np.isnan(f(0.5))
    assert np.isnan(jax.grad(f)(0.5))


def test_loops_in_loops():
    w = jnp.linspace(0.5, 1, 3)

    def run(outer, inner, stop):
        def step(u, _):
            u = inner(lambda u, _: (jnp.sin(u * w), None), u, None, 5)[0]
            return stop(u), None

        return lambda u: jnp.sum(outer(step, u, None, 4)[0])

    def stop(u):
        return recoup.while_loop(
            lambda c: c[1] < 3, lambda c: (c[0] + jnp.sin(c[0]), c[1] + 1), (u, jnp.int32(0))
        )[0]

    def stop_plain(u):
        for _ in range(3):
            u = u + jnp.sin(u)
        return u

    ours = run(lambda *a: recoup.scan(*a, checkpoints=2), lambda *a: recoup.scan(*a, checkpoints=2), stop)
    plain = run(jax.lax.scan, jax.lax.scan, stop_plain)
    u = jnp.arange(3.0)
    np.testing.assert_allclose(jax.jit(jax.grad(ours))(u), jax.jit(jax.grad(plain))(u), rtol=1e-5)
    mixed = run(jax.lax.scan, lambda *a: recoup.scan(*a, checkpoints=2), stop)
    hvp = lambda f: jax.jit(lambda u: jax.jvp(jax.grad(f), (u,), (jnp.ones(3),))[1])(u)
    np.testing.assert_allclose(hvp(mixed), hvp(plain), rtol=1e-4, atol=1e-6)


def test_custom_rules_in_the_body():
    @jax.custom_vjp
    def clip(x):
        return x

    clip.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.5, 0.5),))
    f = lambda scan: lambda u: scan(lambda u, _: (clip(u * 1.5), None), u, None, 4)[0]
    assert jax.grad(f(lambda *a: recoup.scan(*a, checkpoints=2)))(1.0) == jax.grad(f(jax.lax.scan))(1.0)


def test_prints_once_a_step(capfd):
    def step(c, x):
        jax.debug.print("step {}", x)
        return jax.lax.cond(x > 1, lambda c: (jax.debug.print("late"), c * 2)[1], lambda c: c * 3, c), None

    for options in [*METHODS, TAPE]:
        f = lambda c, o=options: scan_with(step, c, jnp.arange(4), **o)[0]
        capfd.readouterr()
        jax.block_until_ready(jax.jit(jax.value_and_grad(f))(1.0))
        jax.effects_barrier()
        out = capfd.readouterr().out
        assert [out.count(f"step {k}") for k in range(4)] == [1] * 4, options
        assert out.count("late") == 2, options


def test_effects_that_would_repeat_are_refused():
    def step(c, _):
        jax.experimental.io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), c)
        return c, None

    with pytest.raises(EffectError, match=r"test_forms\.py:\d+"):
        recoup.scan(step, jnp.float32(0), None, 3, checkpoints=2)

    ref = jax.new_ref(jnp.float32(0))

    def write(c):
        ref[...] += c
        return c + 1

    with pytest.raises(EffectError, match="effect"):
        recoup.while_loop(lambda c: c < 3, write, jnp.float32(0))


def test_a_body_that_raises_leaves_nothing_behind():
    def bad(c, _):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        jax.jit(lambda c: recoup.scan(bad, c, None, 3, checkpoints=2))(1.0)
    assert recoup.scan(lambda c, _: (c + 1, None), 1.0, None, 3, checkpoints=2)[0] == 4


def test_errors_say_what_is_wrong():
    grow = lambda c, _: (jnp.stack([c["a"], c["a"]]), None)
    with pytest.raises(TypeError, match="structure"):
        recoup.scan(grow, {"a": jnp.float32(0)}, None, 3, checkpoints=1)
    with pytest.raises(TypeError, match=r"carry\['a'\]: in float32\[\], out int32\[\]"):
        recoup.scan(lambda c, _: ({"a": jnp.int32(1)}, None), {"a": jnp.float32(0)}, None, 3, checkpoints=1)
    with pytest.raises(TypeError, match="bool scalar"):
        recoup.while_loop(lambda c: c, lambda c: c, jnp.float32(0))
    with pytest.raises(TypeError, match="integers"):
        recoup.fori_loop(0.0, 3, lambda i, c: c, 1.0)
    step = lambda c, _: (c, None)
    for bad, match in [
        ({"checkpoints": 0}, "at least 1"),
        ({"checkpoints": 3, "budget": 100}, "not both"),
        ({"method": "fancy"}, "not one of"),
        ({"checkpoints": 3, "method": "levels"}, "slots"),
    ]:
        with pytest.raises(ValueError, match=match):
            recoup.scan(step, jnp.float32(0), None, 3, **bad)
    with pytest.raises(BudgetError, match="smallest"):
        recoup.scan(step, jnp.zeros(100), None, 30, budget=100)
    with pytest.raises(BudgetSyntaxError, match="bytes"):
        recoup.scan(step, jnp.zeros(100), None, 30, budget="50%")
    with pytest.raises(ValueError, match="length"):
        recoup.scan(step, jnp.float32(0))
    with pytest.raises(ValueError, match="different leading"):
        recoup.scan(step, jnp.float32(0), (jnp.zeros(3), jnp.zeros(4)))
    with pytest.raises(ValueError, match="agree"):
        recoup.scan(step, jnp.float32(0), jnp.zeros(3), 4)
    with pytest.raises(ValueError, match="max_steps"):
        recoup.while_loop(lambda c: c > 0, lambda c: c, 1.0, max_steps=-1)


@pytest.mark.parametrize(("reverse", "tape"), [(False, True), (True, False)])
@pytest.mark.parametrize("segments", [3, 11, 40, [2, 2]])
def test_segment_scan_of_any_length(segments, reverse, tape):
    step = lambda c, x: (jnp.sin(c) + x, c * x)
    xs = jnp.linspace(-1, 1, 11)

    def loss(scan):
        def f(c, xs):
            c, ys = scan(c, xs)
            return c + jnp.sum(ys**2), ys

        return jax.jit(jax.value_and_grad(f, (0, 1), has_aux=True))(jnp.float32(0.3), xs)

    got = loss(lambda c, x: segment_scan(step, c, x, 11, segments, tape=tape, reverse=reverse))
    expected = loss(lambda c, x: jax.lax.scan(step, c, x, reverse=reverse))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), got, expected)
    same(got[0][1], expected[0][1])


@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map(check_vma):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    w, u = jnp.linspace(0, 1, 4), jnp.arange(8.0).reshape(2, 4)

    def loss(scan, **options):
        def local(w, u):
            step = lambda u, x: (u + jnp.tanh(w * u) * x + jax.lax.pmean(u, "d"), u.sum())
            return scan(step, u, jnp.linspace(0, 1, 7), **options)[0]

        f = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), check_vma=check_vma)
        return jax.jit(jax.grad(lambda w, u: jnp.sum(f(w, u) ** 2), (0, 1)))(w, u)

    for options in ({"checkpoints": 3}, {"method": "levels"}, TAPE):
        got, expected = loss(scan_with, **options), loss(jax.lax.scan)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


def test_a_collective_over_a_vmapped_axis():
    u = jnp.arange(6.0).reshape(3, 2)

    def loss(scan, **options):
        step = lambda u, _: (jnp.sin(u) + jax.lax.pmean(u, "batch"), None)
        f = lambda u: jnp.sum(scan(step, u, None, 4, **options)[0] ** 2)
        return jax.vmap(jax.grad(f), axis_name="batch")(u)

    for options in ({"checkpoints": 2}, TAPE):
        np.testing.assert_allclose(loss(scan_with, **options), loss(jax.lax.scan), rtol=1e-5)
