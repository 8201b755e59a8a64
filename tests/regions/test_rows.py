"""The rows A1-A13, B1-B5, E1 and E3 that a region has to fulfil, each by its name (E2: `test_memory.py`)."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import recoup
from recoup import checkpoint
from recoup._barrier import barrier_p
from recoup.errors import EmptyRegionError, RegionFlowError

from .helpers import assert_same, compiled, eqns, names, products, region_eqns

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
W = jnp.linspace(-0.5, 0.7, 9).reshape(3, 3)


def layer(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.tanh(h @ w)


def loss_of(f):
    return lambda x, w: (f(x, w) ** 2).sum()


def grads(f, *args, argnums=(0, 1)):
    return jax.jit(jax.grad(f, argnums))(*args)


def test_a1_returns_what_fun_returns_and_makes_one_region_each_time():
    f = checkpoint(layer)
    assert_same(f(X, W), layer(X, W))
    assert_same(jax.jit(f)(X, W), jax.jit(layer)(X, W))
    found = region_eqns(lambda x, w: f(f(x, w), w), X, W)
    assert [e.params["name"] for e in found] == ["layer", "layer"]


def test_a2_keeps_what_it_reads_and_its_result_and_recomputes_the_rest():
    f = checkpoint(layer)
    (backward,) = region_eqns(jax.grad(loss_of(f), (0, 1)), X, W)
    assert backward.params["stage"] == "backward"
    shapes = sorted(v.aval.shape for v in backward.invars)
    assert shapes == sorted([X.shape, W.shape, X.shape])  # x, w and the incoming gradient
    # A result that the derivative reads is not computed again.
    g = checkpoint(lambda x, w: jnp.tanh(x @ w))
    assert products(jax.grad(loss_of(g), (0, 1)), X, W) == 3


def test_a3_the_recomputation_waits_for_the_incoming_gradient():
    f = checkpoint(layer)
    (backward,) = region_eqns(jax.grad(loss_of(f)), X, W)
    inner = backward.params["jaxpr"].eqns
    (barrier,) = (e for e in inner if e.primitive is barrier_p)
    first_product = next(i for i, e in enumerate(inner) if e.primitive.name == "dot_general")
    assert inner.index(barrier) < first_product
    assert barrier.params["triggers"] == 1 and barrier.invars[-1] is backward.params["jaxpr"].invars[-1]


def test_a4_random_draws_repeat():
    def f(key, x):
        noise = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(noise, jnp.sin(x), 0.0)

    key = jax.random.key(0)
    plain, ours = (jax.jit(jax.grad(lambda x, g=g: g(key, x).sum())) for g in (f, checkpoint(f)))
    assert_same(ours(X), plain(X))
    assert 0 < (np.asarray(ours(X)) == 0).sum() < X.size


def test_a5_losses_and_gradients_are_those_of_plain():
    for transform in (jax.grad, jax.value_and_grad):
        ours, plain = (jax.jit(transform(loss_of(f), (0, 1)))(X, W) for f in (checkpoint(layer), layer))
        assert_same(ours, plain)


def test_a6_the_price_is_at_most_one_forward():
    plain, ours = (products(jax.grad(loss_of(f), (0, 1)), X, W) for f in (layer, checkpoint(layer)))
    assert plain == 6 and ours - plain == 2  # x @ w, and h @ w, whose tanh is not the result itself
    # It is measured in the compiled program, and shown; so is the share of one more forward pass in all.
    found = recoup.instruments.recomputed(jax.grad(loss_of(checkpoint(layer)), (0, 1)), X, W)
    assert found.heavy_count == 2 and "2 of 8 heavy ones" in str(found)
    once = checkpoint(layer)
    choices = recoup.regions(lambda x, w: (once(once(once(x, w), w), w) ** 2).sum(), X, W)
    each = next(c for c in choices.candidates if c.label == "each region")
    plain_flops, forward = choices.candidates[0].flops, 3 * 2 * 2 * 4 * 3 * 3
    assert plain_flops + forward <= each.flops <= plain_flops + 1.5 * forward
    assert f"{each.flops / plain_flops:.2f}x" in str(choices)


def test_a7_any_code_is_a_body():
    def update_round(x, w):
        def step(carry, _):
            return layer(carry, w), None

        return jax.lax.scan(step, x, None, length=3)[0]

    for body in (update_round, lambda x, w: layer(layer(x, w), w)):
        assert_same(grads(loss_of(checkpoint(body)), X, W), grads(loss_of(body), X, W), rtol=1e-5)


def test_a8_the_planned_memory_is_reported_before_the_first_step(capsys):
    f = checkpoint(layer, name="blk")
    seen = []

    @recoup.jit(budget="100%")
    def step(x, w):
        jax.debug.callback(lambda _: seen.append(capsys.readouterr().err), x.sum())
        return jax.grad(loss_of(f))(x, w)

    jax.block_until_ready(step(X, W))
    jax.effects_barrier()
    assert len(seen) == 1 and re.search(r"step: planned \d+ B, certified \d+ B of \d+ B", seen[0])
    # Before anything compiles, the prediction is the size that the compiler then certifies.
    x = jnp.ones((256, 32))
    step = jax.grad(lambda x, w: (f(f(x, w), w) ** 2).sum(), (0, 1))
    predicted = recoup.timeline(step, x, jnp.eye(32)).predicted
    got = recoup.fit(step, x, jnp.eye(32), budget="100%").memory.temporaries_bytes
    assert abs(predicted.estimate.temporaries_bytes - got) <= 0.1 * got


def test_a9_an_inner_region_belongs_to_the_outer_one():
    inner = checkpoint(layer, name="inner")

    @checkpoint(name="outer")
    def outer(x, w):
        return inner(inner(x, w), w)

    found = region_eqns(jax.grad(loss_of(outer), (0, 1)), X, W)
    assert [e.params["name"] for e in found] == ["outer"]
    flat = checkpoint(lambda x, w: layer(layer(x, w), w))
    assert products(jax.grad(loss_of(outer)), X, W) == products(jax.grad(loss_of(flat)), X, W)


def test_a9_an_inner_region_in_a_scan_belongs_to_the_outer_one():
    inner = checkpoint(layer)

    @checkpoint
    def outer(x, w):
        return jax.lax.scan(lambda c, _: (inner(c, w), None), x, None, length=2)[0]

    assert names(outer, X, W).count("recoup_region") == 1


def test_a10_nothing_is_paid_where_no_backward_runs():
    plain, ours = (compiled(f, X, W) for f in (layer, checkpoint(layer)))
    assert _without_names(ours.as_text()) == _without_names(plain.as_text())
    assert ours.cost_analysis()["flops"] == plain.cost_analysis()["flops"]
    assert "recoup_barrier" not in names(checkpoint(layer), X, W)


def _without_names(text):
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    text = re.sub(
        r"(HloModule \S+|FileNames.*?\n\n|FunctionNames.*?\n\n|FileLocations.*?\n\n|StackFrames.*?\n\n)",
        "",
        text,
        flags=re.S,
    )
    order = {}
    return re.sub(r"%?[\w.\-]*_[\w.\-]*|%[\w.\-]+", lambda m: order.setdefault(m[0], f"v{len(order)}"), text)


def test_a11_a_value_that_a_diagnostic_reads_is_kept():
    def f(x, w):
        h = recoup.diagnostic(x @ w, "h")
        return jnp.sin(h) @ w

    (backward,) = region_eqns(jax.grad(loss_of(checkpoint(f)), (0, 1)), X, W)
    # Only sin is computed again: the product is kept.
    plain, ours = (products(jax.grad(loss_of(g), (0, 1)), X, W) for g in (f, checkpoint(f)))
    assert ours == plain
    assert len(backward.invars) == 4  # x, w, h and the gradient


def test_a12_an_inner_gradient_is_recomputed_whole():
    def inner_step(x, w):
        g = jax.grad(lambda x: (jnp.tanh(x @ w) ** 2).sum())(x)
        return x - 0.1 * g

    f = checkpoint(inner_step)
    assert_same(grads(loss_of(f), X, W), grads(loss_of(inner_step), X, W), rtol=1e-5, atol=1e-6)
    (backward,) = region_eqns(jax.grad(loss_of(f), (0, 1)), X, W)
    assert len(backward.invars) == 3


def test_a12_a_gradient_outside_reads_the_values_that_the_forward_computed():
    """The region's result, and what is named in it, are read as they were; the rest is computed again."""

    def step(call):
        def loss(x, w):
            h = call(lambda x: jnp.exp(recoup.keep(x @ w, "product")))(x)
            return (h**2).sum()

        return jax.grad(loss, (0, 1))

    (backward,) = region_eqns(step(checkpoint), X, W)
    first = compiled(jax.value_and_grad(lambda x, w: (checkpoint(layer)(x, w) ** 2).sum()), X, W)
    assert_same(first(X, W)[0], compiled(loss_of(layer), X, W)(X, W))
    assert [e.primitive.name for e in backward.params["jaxpr"].eqns].count("exp") <= 1
    assert products(step(checkpoint), X, W) == products(step(lambda f: f), X, W)


def test_a13_a_body_without_operations_is_an_error_where_a_backward_is_asked():
    identity = checkpoint(lambda x: x, name="nothing")
    assert_same(jax.jit(identity)(X), X)
    assert_same(jax.jvp(identity, (X,), (X,)), (X, X))
    with pytest.raises(EmptyRegionError, match=r"E-GRAD-005.*'nothing'.*test_rows.py"):
        jax.grad(lambda x: identity(x).sum())(X)
    with pytest.raises(EmptyRegionError, match="E-GRAD-005"):
        jax.jit(jax.grad(lambda x: checkpoint(lambda x: lambda y: x * y)(x)(2.0).sum()))(X)
    with pytest.raises(EmptyRegionError, match="E-GRAD-005"):
        step = lambda c, _: (identity(c), None)
        jax.grad(lambda x: jax.lax.scan(step, x, None, length=2)[0].sum())(X)
    allowed = checkpoint(lambda x: x, allow_empty=True)
    assert_same(jax.grad(lambda x: allowed(x).sum())(X), jnp.ones_like(X))


def test_a13_strict_mode_refuses_a_region_outside_a_traced_computation(monkeypatch):
    f = checkpoint(layer)
    monkeypatch.setattr(recoup.config, "_strict", True)
    with pytest.raises(RegionFlowError, match=r"E-FLOW-003.*'layer'.*test_rows.py"):
        f(X, W)
    jax.jit(f)(X, W)
    monkeypatch.setattr(recoup.config, "_strict", None)
    monkeypatch.setenv("RECOUP_STRICT", "1")
    with pytest.raises(RegionFlowError):
        f(X, W)
    monkeypatch.setenv("RECOUP_STRICT", "0")
    f(X, W)


@dataclasses.dataclass
class Module:
    w: jax.Array

    @checkpoint
    def __call__(self, x):
        return jnp.tanh(x @ self.w)


def test_b1_captures_need_no_listing():
    tree = {"a": W, "b": [W * 2.0]}

    def loss(tree, x, call):
        w = tree["a"]
        f = lambda x: jnp.tanh(x @ w) @ tree["b"][0]  # a weight and a tree of weights
        x = call(f)(x)
        w = w * 0.5  # rebound under the same name
        x = call(lambda x: jnp.sin(x) * w[0])(x)  # indexed: captured whole
        x = jax.vmap(lambda row: call(lambda r: jnp.tanh(r * row) @ w)(row))(x)  # a vmapped value
        x = call(lambda: jnp.tanh(x) * jnp.arange(3.0))()  # a constant made inside, no argument at all
        return (x**2).sum()

    ours, plain = (
        jax.jit(jax.grad(functools.partial(loss, call=call), (0, 1)))(tree, X)
        for call in (checkpoint, lambda f: f)
    )
    assert_same(ours, plain, rtol=1e-5, atol=1e-6)
    (indexed,) = region_eqns(lambda x, w: checkpoint(lambda x: jnp.sin(x) * w[0])(x), X, W)
    assert sorted(v.aval.shape for v in indexed.invars) == [W.shape, X.shape]


def test_b2_captured_values_get_their_gradient_whatever_is_differentiated():
    def loss(x, w, call):
        return (call(lambda x: jnp.tanh(x @ w))(x) ** 2).sum()

    for argnums in (0, 1, (0, 1)):
        ours, plain = (
            jax.grad(functools.partial(loss, call=c), argnums)(X, W) for c in (checkpoint, lambda f: f)
        )
        assert_same(ours, plain, rtol=1e-6)
    only_weight = lambda w: checkpoint(lambda: jnp.sin(w).sum())()
    assert_same(jax.grad(only_weight)(W), jnp.cos(W))


def test_b3_works_on_any_function_value():
    class Callable:
        def __call__(self, x, w):
            return layer(x, w)

        def method(self, x, w):
            return layer(x, w)

    made = [lambda f: lambda x, w: f(x, w)][0](layer)
    values = [layer, made, Callable(), Callable().method, functools.partial(layer), jax.jit(layer)]
    want = grads(loss_of(layer), X, W)
    for value in values:
        assert_same(grads(loss_of(checkpoint(value)), X, W), want)
    g = jax.jit(jax.grad(lambda m, x: m(x).sum(), 1))
    jax.tree_util.register_dataclass(Module, ["w"], [])
    assert_same(g(Module(W), X), jax.grad(lambda x: jnp.tanh(x @ W).sum())(X))


def test_b4_captured_parameters_are_read_directly():
    def loss(x, w):
        for _ in range(2):
            x = checkpoint(lambda x: layer(x, w))(jnp.sin(x))
        return (x**2).sum()

    text = jax.jit(jax.grad(loss, (0, 1))).lower(X, W).as_text(debug_info=False)
    ordering = ("stablehlo.optimization_barrier", "stablehlo.select")
    fenced = [line for line in text.splitlines() if any(op in line for op in ordering)]
    assert fenced and not any(f"{W.shape[0]}x{W.shape[1]}x" in line.split(":")[-1] for line in fenced)


def test_b5_signature_and_name_are_kept():
    import inspect

    @checkpoint(name="block")
    def f(x: jax.Array, *, scale: float = 2.0) -> jax.Array:
        """Doc."""
        return jnp.sin(x) * scale

    assert f.__name__ == "f" and f.__doc__ == "Doc."
    assert list(inspect.signature(f).parameters) == ["x", "scale"]
    (region,) = region_eqns(f, X)
    assert region.params["name"] == "block"
    # An annotation: inside it is what the function records without.
    plain = jax.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(X).jaxpr
    assert str(region.params["jaxpr"].eqns) == str(plain.eqns)


@pytest.mark.parametrize("depth", [1, 3])
def test_e1_the_compiled_program_recomputes_exactly_what_the_backward_reads(depth):
    def run(f, x, w):
        for _ in range(depth):
            x = f(x, w)
        return (x**2).sum()

    counts = [products(jax.grad(functools.partial(run, f), (0, 1)), X, W) for f in (layer, checkpoint(layer))]
    # Both products of a layer are read again; nothing of it is merged with the forward, or done twice.
    assert counts[1] - counts[0] == 2 * depth
    last = lambda x, w: x + jnp.tanh(jnp.tanh(x @ w) @ w) @ w  # nobody reads the last product
    counts = [products(jax.grad(functools.partial(run, f), (0, 1)), X, W) for f in (last, checkpoint(last))]
    assert counts[1] - counts[0] == 2 * depth


def test_e1_a_convolution_is_recomputed_once():
    x = jnp.linspace(-1.0, 1.0, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
    k = jnp.linspace(-1.0, 1.0, 3 * 3 * 3 * 3).reshape(3, 3, 3, 3)
    numbers = ("NHWC", "HWIO", "NHWC")

    def conv(x, k):
        h = jnp.tanh(jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers))
        return jax.lax.conv_general_dilated(h, k, (1, 1), "SAME", dimension_numbers=numbers)

    def count(f):
        stages = eqns(jax.make_jaxpr(jax.grad(loss_of(f), (0, 1)))(x, k).jaxpr)
        return sum(e.primitive.name == "conv_general_dilated" for e in stages)

    assert count(checkpoint(conv)) - count(conv) == 1  # the second one's result is the region's
    step = jax.grad(loss_of(checkpoint(conv)), (0, 1))
    assert products(step, x, k) - products(jax.grad(loss_of(conv), (0, 1)), x, k) == 1  # compiled, too
    assert recoup.instruments.recomputed(step, x, k).heavy_count == 1
    assert_same(grads(loss_of(checkpoint(conv)), x, k), grads(loss_of(conv), x, k), rtol=1e-5, atol=1e-4)


TRANSFORMS = {
    "vjp": lambda f: lambda x, w: jax.vjp(f, x, w)[1](jnp.float32(1.0)),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w)),
    "linearize": lambda f: lambda x, w: jax.linearize(f, x, w)[1](x, w),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None)),
    "grad of vmap": lambda f: jax.grad(lambda x, w: jax.vmap(f, (0, None))(x, w).sum(), (0, 1)),
    "hessian": lambda f: jax.hessian(f, 1),
    "reverse over reverse": lambda f: jax.grad(lambda x, w: (jax.grad(f, 1)(x, w) ** 2).sum()),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jit inside": lambda f: jax.grad(jax.jit(f), (0, 1)),
}


@pytest.mark.parametrize("remat3", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_e3_composes(transform, remat3):
    with _remat3(remat3):
        ours, plain = (jax.jit(TRANSFORMS[transform](loss_of(f)))(X, W) for f in (checkpoint(layer), layer))
    assert_same(ours, plain, rtol=2e-5, atol=1e-5)


def _remat3(value):
    import contextlib

    if not hasattr(jax.config, "jax_remat3"):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def switched():
        before = jax.config.jax_remat3
        jax.config.update("jax_remat3", value)
        try:
            yield
        finally:
            jax.config.update("jax_remat3", before)

    return switched()


def scanned(f):
    def run(x, w):
        x, sums = jax.lax.scan(lambda c, _: (f(c, w), c.sum()), x, None, length=3)
        return (x**2).sum() + sums.sum()

    return run


@pytest.mark.parametrize("transform", ["vjp", "jvp", "hessian", "grad of vmap", "reverse over reverse"])
def test_e3_composes_inside_a_scan(transform):
    ours, plain = (jax.jit(TRANSFORMS[transform](scanned(f)))(X, W) for f in (checkpoint(layer), layer))
    assert_same(ours, plain, rtol=1e-4, atol=1e-4)


def test_e3_composes_inside_a_branch_and_with_jax_checkpoint():
    def branched(f):
        return lambda x, w: jax.lax.cond(x.sum() > -1.0, f, lambda x, w: x, x, w).sum()

    assert_same(grads(branched(checkpoint(layer)), X, W), grads(branched(layer), X, W), rtol=1e-6)
    inside = jax.checkpoint(loss_of(checkpoint(layer)))
    around = loss_of(checkpoint(jax.checkpoint(layer)))
    for f in (inside, around):
        assert_same(grads(f, X, W), grads(loss_of(layer), X, W), rtol=1e-6)


def test_e3_composes_with_shard_map():
    mesh = Mesh(np.array(jax.devices()), ("d",))

    def sharded(f):
        def local(x, w):
            return jax.lax.psum((f(x, w) ** 2).sum(), "d")

        return jax.shard_map(local, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())

    outside = checkpoint(sharded(layer))
    want = grads(sharded(layer), X, W)
    for f in (sharded(checkpoint(layer)), outside):
        assert_same(grads(f, X, W), want, rtol=1e-5, atol=1e-6)


def test_e3_any_pytree():
    def f(params, xs):
        (a, b), c = xs["in"], params[0]["w"]
        return {"out": (jnp.sin(a @ c), [b * a.sum()]), "none": None}

    def loss(params, xs, call):
        out = call(f)(params, xs)
        return out["out"][0].sum() + out["out"][1][0].sum()

    args = ([{"w": W}], {"in": (X, X[:1])})
    ours, plain = (
        jax.jit(jax.grad(functools.partial(loss, call=c), (0, 1)))(*args) for c in (checkpoint, lambda f: f)
    )
    assert_same(ours, plain, rtol=1e-6)
