"""Behaviours that users of several libraries report going wrong silently, as tests of regions."""

import dataclasses
import functools
import gc
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup import checkpoint
from recoup.errors import EffectError

from .helpers import assert_same, products, region_eqns, temporaries

X = jnp.linspace(-1.0, 1.0, 12, dtype=jnp.float32).reshape(4, 3)
W = jnp.linspace(-0.5, 0.7, 9, dtype=jnp.float32).reshape(3, 3)


def layer(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.tanh(h @ w)


def both(make, *args, **tolerance):
    """`make(call)` with regions equals `make` without, under jit."""
    ours, plain = (jax.jit(make(call))(*args) for call in (checkpoint, lambda f, **_: f))
    assert_same(ours, plain, **tolerance)
    return ours


def test_case_1_a_body_that_only_captures_a_weight():
    w = {"kernel": W, "steps": jnp.arange(3)}

    def make(call):
        def loss(kernel, frozen):
            body = lambda: jnp.sin(kernel) * jnp.cos(frozen) + w["steps"].astype(jnp.float32)
            return (call(body)() ** 2).sum()

        return jax.grad(loss)

    grad = both(make, W, W)
    assert (np.asarray(grad) != 0).any()


def test_case_2_dropout_with_the_key_in_a_dict():
    def make(call):
        def loss(x, state):
            key, after = jax.random.split(state["key"])
            held = {"dropout": key}
            mask = lambda x: jax.random.bernoulli(held["dropout"], 0.5, x.shape)
            y = call(lambda x: jnp.where(mask(x), jnp.sin(x), 0.0))(x)
            return y.sum(), jax.random.key_data(after)

        return jax.grad(loss, has_aux=True)

    both(make, X, {"key": jax.random.key(7)})


def test_case_3_a_list_appended_to_leaks_with_the_regions_name():
    seen = []

    def body(x):
        h = jnp.sin(x)
        seen.append(h)
        return h * 2.0

    def loss(x):
        return (checkpoint(body, name="leaky")(x) + seen[0]).sum()

    with pytest.raises(jax.errors.UnexpectedTracerError, match="region 'leaky'"):
        jax.jit(jax.grad(loss))(X)


def test_case_3_a_python_counter_advances_once_per_call():
    count = []

    @checkpoint
    def body(x):
        count.append(1)
        return jnp.sin(x)

    jax.jit(jax.grad(lambda x: body(x).sum()))(X)
    assert len(count) == 1


def _reference_loss(call, start):
    def loss(x, r):
        def body(y):
            o = y * r[...]
            r[...] += 1.0
            return jnp.sin(o) * r[...]

        out = call(body)(x)
        r[...] *= 2.0  # later code writes it too
        return out.sum()

    def run(x):
        r = jax.new_ref(start)
        grad = jax.grad(loss)(x, r)
        return grad, r[...]

    return run


def test_case_3_an_external_reference_is_read_and_written_once():
    start = jnp.float32(1.0)
    ours, plain = (jax.jit(_reference_loss(call, start))(X) for call in (checkpoint, lambda f: f))
    assert_same(ours, plain)
    assert float(ours[1]) == 4.0
    assert_same(_reference_loss(checkpoint, start)(X), plain)  # outside jit as well


def test_case_3_a_captured_reference_in_a_scan():
    def make(call):
        def run(x):
            r = jax.new_ref(jnp.zeros(3, jnp.float32))

            def loss(x):
                def step(c, row):
                    def body(c):
                        r[...] += row
                        return jnp.sin(c + r[...])

                    c = call(body)(c)
                    return c, c.sum()

                c, ys = jax.lax.scan(step, x[0], x)
                return c.sum() + ys.sum()

            out = loss(x)
            return out, r[...]

        return run

    both(make, X, rtol=1e-6)


def test_case_3_an_internal_reference():
    def make(call):
        def body(x):
            r = jax.new_ref(jnp.zeros_like(x))
            r[...] = jnp.sin(x)
            return r[...] * x

        return lambda x: jax.grad(lambda x: call(body)(x).sum())(x)

    both(make, X, rtol=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_case_4_callbacks_run_once(ordered):
    def count(wrap):
        seen = []

        def body(x):
            h = jnp.sin(x)
            jax.debug.callback(lambda h: seen.append(float(h)), h.sum(), ordered=ordered)
            return jnp.cos(h)

        jax.jit(jax.grad(lambda x: wrap(body)(x).sum()))(X)
        jax.effects_barrier()
        return seen

    plain = count(lambda f: f)
    assert len(plain) == 1
    assert count(checkpoint) == plain
    assert count(lambda f: checkpoint(checkpoint(f))) == plain
    in_scan = lambda f: checkpoint(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0])
    assert len(count(in_scan)) == 3


def test_case_4_debug_print_once(capfd):
    @checkpoint
    def body(x):
        jax.debug.print("sum {}", x.sum())
        return jnp.sin(x)

    jax.jit(jax.grad(lambda x: body(body(x)).sum()))(X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum ") == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_case_4_io_callback_runs_once_and_its_result_is_kept(ordered):
    calls = []

    def host():
        calls.append(1)
        return np.float32(len(calls))

    def loss(x, call):
        def body(x):
            scale = jax.experimental.io_callback(host, jax.ShapeDtypeStruct((), jnp.float32), ordered=ordered)
            return jnp.sin(x * scale)

        return call(body)(x).sum()

    got = jax.jit(jax.grad(functools.partial(loss, call=checkpoint)))(X)
    jax.effects_barrier()
    assert len(calls) == 1
    assert_same(got, jnp.cos(X), rtol=1e-6)


def test_case_5_regions_in_a_loop_replay_their_own_layer():
    weights = [W * (i + 1.0) for i in range(3)]

    def make(call):
        def loss(weights, x):
            for w in weights:
                x = call(lambda x: layer(x, w))(x)  # noqa: B023
            return (x**2).sum()

        return jax.grad(loss, (0, 1))

    both(make, weights, X, rtol=1e-5)


def test_case_6_three_deep_and_through_a_scan():
    def make(call):
        one = call(layer)
        two = call(lambda x, w: one(one(x, w), w))
        three = call(lambda x, w: jax.lax.scan(lambda c, _: (two(c, w), None), x, None, length=2)[0])
        return jax.grad(lambda x, w: (three(x, w) ** 2).sum(), (0, 1))

    both(make, X, W, rtol=1e-5)
    # The peak is that of the outermost region alone, and it was predicted.
    x, w = jnp.ones((512, 32)), jnp.eye(32)
    inner = checkpoint(lambda x, w: layer(layer(x, w), w))
    nested = checkpoint(lambda x, w: inner(inner(x, w), w))
    flat = checkpoint(lambda x, w: layer(layer(layer(layer(x, w), w), w), w))
    sizes = []
    for f in (nested, flat):
        step = jax.grad(lambda x, w: (f(f(x, w), w) ** 2).sum(), (0, 1))  # noqa: B023
        sizes.append(recoup.fit(step, x, w, budget="100%").memory.temporaries_bytes)
        predicted = recoup.timeline(step, x, w).predicted.estimate.temporaries_bytes
        assert abs(predicted - sizes[-1]) < 0.1 * sizes[-1]
    assert sizes[0] == sizes[1]
    three_deep = checkpoint(checkpoint(checkpoint(layer)))
    assert len(region_eqns(jax.grad(lambda x: three_deep(x, W).sum()), X)) == 1


def test_case_7_pulling_back_twice():
    _, pull = jax.vjp(lambda x: checkpoint(layer)(x, W), X)
    assert_same(pull(X), pull(X))


def test_case_7_custom_rules_in_the_body():
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(
        lambda x: (jnp.sin(x), (jnp.cos(x), x)), lambda res, ct: (jnp.clip(ct * res[0], -0.1, 0.1),)
    )

    @jax.custom_jvp
    def doubled(x):
        return jnp.exp(x)

    doubled.defjvp(lambda p, t: (jnp.exp(p[0]), 2.0 * jnp.exp(p[0]) * t[0]))

    def make(call):
        return jax.grad(lambda x, w: (call(lambda x: doubled(clipped(x @ w)) @ w)(x) ** 2).sum(), (0, 1))

    both(make, X, W, rtol=1e-6)


@dataclasses.dataclass
class Result:
    array: jax.Array
    label: str
    inner: object = None


OUTPUTS = {
    "none": lambda x: (jnp.sin(x), None)[1],
    "one unused": lambda x: (jnp.sin(x), jnp.cos(x))[0],
    "the input": lambda x: (x, jnp.sin(x)),
    "the same twice": lambda x: (lambda y: (y, y))(jnp.sin(x)),
    "a dict": lambda x: {"a": jnp.sin(x), "text": "label", "flag": True, "fun": len},
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_case_8_outputs(kind):
    f = OUTPUTS[kind]
    assert jax.tree.structure(checkpoint(f)(X)) == jax.tree.structure(f(X))

    def make(call):
        def loss(x):
            leaves = [y for y in jax.tree.leaves(call(f)(x)) if isinstance(y, jax.Array)]
            return sum((y.sum() for y in leaves), jnp.float32(0.0))

        return jax.grad(loss)

    both(make, X)


def test_case_8_dataclasses_and_other_objects_go_in_and_out():
    def f(r, mode, *, scale=None):
        assert mode == "train" and scale is None
        return Result(jnp.sin(r.array), r.label + "!", Result(r.array, "inner")), r

    def make(call):
        def loss(x):
            out, back = call(f)(Result(x, "in"), "train", scale=None)
            assert out.label == "in!" and out.inner.label == "inner" and back.label == "in"
            return (out.array * out.inner.array * back.array).sum()

        return jax.grad(loss)

    both(make, X)


def test_case_8_static_arguments():
    def f(x, flag, n, *, mode="a"):
        return jnp.sin(x) * n if flag and mode == "b" else jnp.cos(x)

    by_position = checkpoint(f, static_argnums=(1, 2), static_argnames="mode")
    got = jax.jit(jax.grad(lambda x: by_position(x, True, 2, mode="b").sum()))(X)
    assert_same(got, 2 * jnp.cos(X), rtol=1e-6)
    by_name = checkpoint(f, static_argnames=("flag", "n"))
    got = jax.jit(jax.grad(lambda x: by_name(x, flag=False, n=1).sum()))(X)
    assert_same(got, -jnp.sin(X), rtol=1e-6)
    with pytest.raises(TypeError, match=r"'flag'.*static.*traced"):
        jax.jit(lambda x, flag: by_name(x, flag, 1))(X, True)
    with pytest.raises(TypeError, match="no argument of"):
        checkpoint(f, static_argnames="flagg")
    with pytest.raises(TypeError, match="2 positional"):
        jax.jit(lambda x: checkpoint(f, static_argnums=5)(x, True))(X)


def test_case_9_after_an_error_the_next_call_is_clean():
    fail = [True]

    @checkpoint
    def body(x):
        y = jnp.sin(x)
        if fail[0]:
            raise RuntimeError("broken")
        return y

    with pytest.raises(RuntimeError, match="broken"):
        jax.jit(jax.grad(lambda x: body(x).sum()))(X)
    fail[0] = False
    assert_same(jax.jit(jax.grad(lambda x: body(x).sum()))(X), jnp.cos(X))
    with pytest.raises(jax.errors.TracerBoolConversionError, match="region 'choose'"):
        jax.jit(checkpoint(lambda x: x if x.sum() > 0 else -x, name="choose"))(X)


def test_case_10_a_python_loop_over_layers_saves_memory():
    key = jax.random.key(0)
    x = jax.random.normal(key, (512, 64))
    weights = [0.1 * jax.random.normal(jax.random.fold_in(key, i), (64, 64)) for i in range(16)]

    def make(call):
        def loss(weights, x):
            for a, b in zip(weights[::2], weights[1::2], strict=True):
                x = call(lambda x, a, b: x + jnp.tanh(jnp.tanh(jnp.tanh(x @ a) * 2.0) @ b))(x, a, b)
            return (x**2).sum()

        return jax.grad(loss)

    plain, ours = (temporaries(make(call), weights, x) for call in (lambda f: f, checkpoint))
    assert ours < 0.6 * plain
    both(make, weights, x)


def test_case_16_scan_lengths_and_index():
    for length in (0, 1, 2, 7, 13):

        def make(call):
            def loss(x, w):
                step = lambda c, i: (call(layer)(c, w) * (1.0 + i), None)
                index = jnp.arange(length, dtype=jnp.float32)  # noqa: B023
                return (jax.lax.scan(step, x, index / 10)[0] ** 2).sum()

            return jax.grad(loss, (0, 1))

        both(make, X, W, rtol=1e-4)


def test_case_16_a_loop_whose_trip_count_is_data():
    @checkpoint
    def body(x, n):
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]

    out, _ = jax.jit(lambda x: jax.jvp(lambda x: body(x, 3), (x,), (jnp.ones_like(x),)))(X)
    assert_same(out, jnp.sin(jnp.sin(jnp.sin(X))), rtol=1e-6)
    # Its result can be used where it is not differentiated.
    g = jax.grad(lambda x: checkpoint(lambda x: jnp.sin(x) * jax.lax.stop_gradient(body(x, 2)))(x).sum())
    assert_same(jax.jit(g)(X), jnp.cos(X) * jnp.sin(jnp.sin(X)), rtol=1e-6)


def _seconds(wrap, count, measure):
    """Processor time of `measure` on a step with so many regions in a row."""
    f = wrap(lambda x, w: jnp.tanh(x * w))

    def loss(x, w):
        for _ in range(count):
            x = f(x, w)
        return x.sum()

    start = time.process_time()
    measure(jax.grad(loss), jnp.ones(8), jnp.ones(8))
    return time.process_time() - start


def _lower(step, *args):
    jax.jit(step).lower(*args)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [checkpoint, jax.checkpoint])
@pytest.mark.parametrize("measure", [_lower, recoup.residuals, recoup.timeline])
def test_case_17_5000_regions_in_a_row(wrap, measure):
    _seconds(wrap, 50, measure)
    few, many = _seconds(wrap, 500, measure), _seconds(wrap, 5000, measure)
    assert many < 20 * few  # ten times the regions: the cost of each is constant


@pytest.mark.slow
def test_case_17_5000_regions_in_a_row_compile():
    _seconds(checkpoint, 5000, lambda step, *args: jax.jit(step).lower(*args).compile())


def test_case_17_500_regions_in_a_row():
    f = checkpoint(lambda x, w: jnp.tanh(x * w))

    def loss(x, w):
        for _ in range(500):
            x = f(x, w)
        return x.sum()

    got = jax.jit(jax.grad(loss))(jnp.ones(8), jnp.ones(8))
    assert np.isfinite(np.asarray(got)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_case_18_narrow_floats_round_as_plain(dtype):
    x = X.astype(dtype)
    weights = [(W * (i + 1.0)).astype(dtype) for i in range(3)]

    def make(call):
        def loss(x, weights):
            for w in weights:
                x = call(lambda x: layer(recoup.keep(x @ w, "product"), w))(x)  # noqa: B023
            return (x.astype(jnp.float32) ** 2).sum()

        return jax.value_and_grad(loss, (0, 1))

    both(make, x, weights)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_case_22_regions_do_not_pile_up(count):
    def once(i):
        f = checkpoint(lambda x: jnp.sin(x) * i)
        jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(X)

    for i in range(20):
        once(float(i))
    gc.collect()
    before = len(gc.get_objects())
    for i in range(count):
        once(float(i))
    gc.collect()
    assert len(gc.get_objects()) - before < 50  # all of them together


def test_products_of_a_scan_body_are_counted_per_step():
    def loss(f):
        return lambda x, w: (jax.lax.scan(lambda c, _: (f(c, w), None), x, None, length=4)[0] ** 2).sum()

    plain, ours = (products(jax.grad(loss(f), (0, 1)), X, W) for f in (layer, checkpoint(layer)))
    assert ours - plain == 2


def test_effect_error_names_the_line():
    assert issubclass(EffectError, NotImplementedError)
    assert recoup.checkpoint is checkpoint
