"""Regions, barriers, policies, plans and graphs at their edges: what is refused, what must come through."""

import functools
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup import _compat, policies
from recoup._barrier import barrier, barrier_p, barrier_params
from recoup._budget import HEADROOM_MIN_BYTES, parse_budget
from recoup._graph import Graph, Offload
from recoup._inline import flatten
from recoup._regions.jaxprs import late_results
from recoup._solve import check
from recoup._solve._bounds import cover_bound, peak_bound
from recoup._solve._brute import LARGEST, brute_force
from recoup.errors import BudgetSyntaxError, EffectError, InfeasibleError, PlanError

W, X = 0.2 * jax.random.normal(jax.random.key(0), (32, 32)), jnp.ones((256, 32))


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) * 2.0)


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-6), a, b)


# -- barriers ----------------------------------------------------------------------------------------------


def test_a_barrier_can_be_transposed() -> None:
    through = lambda x: barrier([2.0 * x, 3.0 * x], mode="fence")[0]
    (found,) = jax.linear_transpose(through, X)([X, 5.0 * X])
    np.testing.assert_array_equal(found, 2.0 * X + 15.0 * X)


def test_a_barrier_that_nobody_reads_disappears() -> None:
    def unread(x: Any) -> Any:
        barrier([jnp.sin(x)], [x])
        return x * 2

    def partly(x: Any) -> Any:
        (_, b), _ = barrier([jnp.sin(x), jnp.cos(x)], [x])
        return b

    names = lambda fun: [e.primitive.name for e in flatten(jax.make_jaxpr(fun)(X)).eqns]
    assert names(unread) == ["mul"]
    assert names(partly) == ["cos", "recoup_barrier"]


@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_a_barrier_is_the_compilers_own_elsewhere(platform: str) -> None:
    fun = jax.jit(lambda x: barrier([jnp.sin(x)], [x])[0])
    text = fun.trace(X).lower(lowering_platforms=(platform,)).as_text()
    assert ("optimization_barrier" in text) == (platform != "cpu" or not _compat.BARRIERS_NEED_OPTION)


def test_a_barrier_that_is_read_in_part_keeps_its_groups() -> None:
    """What nobody reads leaves the groups; the values that are left stay ordered, one of each group."""

    def part(x: Any, y: Any) -> Any:
        values = [jnp.sin(x), jnp.cos(x), jnp.tanh(y)]
        params = barrier_params(1, mode="fence", groups=((0, 2), (1,), (2,)), captured=(2,))
        outs = barrier_p.bind(*values, x, **params)
        return outs[0], outs[2]

    (found,) = [e for e in flatten(jax.make_jaxpr(part)(X, X)).eqns if e.primitive is barrier_p]
    assert (found.params["groups"], found.params["captured"]) == (((0, 1), (1,)), (1,))
    assert len(found.invars) == 3 and found.params["triggers"] == 1
    close(jax.jit(part)(X, 2 * X), (jnp.sin(X), jnp.tanh(2 * X)))


@pytest.mark.parametrize("mode", ["auto", "fence"])
def test_a_barrier_around_nothing_that_must_wait(mode: str) -> None:
    """Arguments of the program are there anyway, and arrays without elements say nothing of the time."""
    params = barrier_params(0, mode=mode, groups=())
    text = jax.jit(lambda x: barrier_p.bind(x, **params)).lower(X).as_text()
    assert "barrier" not in text and "select" not in text
    empty = jnp.zeros((0, 3))
    fun = jax.jit(lambda x, e: barrier([jnp.sin(x), e], [e, x], mode=mode))
    (a, b), _ = fun(X, empty)
    close(a, jnp.sin(X))
    assert b.shape == (0, 3)


# -- regions -----------------------------------------------------------------------------------------------


class Layer:
    """A callable object."""

    def __init__(self, w: Any):
        self.w = w

    def __call__(self, x: Any) -> Any:
        return layer(x, self.w)


@pytest.mark.parametrize(
    "fun",
    [Layer(W), functools.partial(layer, w=W), functools.partial(Layer(W)), jnp.tanh],
    ids=["object", "partial function", "partial object", "jitted"],
)
def test_any_callable_is_a_region(fun: Any) -> None:
    region = recoup.checkpoint(fun)
    close(jax.grad(lambda x: region(x).sum())(X), jax.grad(lambda x: fun(x).sum())(X))


def test_what_is_no_region() -> None:
    with pytest.raises(TypeError, match="takes a function, got 5"):
        recoup.checkpoint(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="static_argnums are integers and static_argnames strings"):
        recoup.checkpoint(layer, static_argnums=("w",))  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"static_argnames='v' is no argument of 'layer'; it has \['x', 'w'\]"
    ):
        recoup.checkpoint(layer, static_argnames="v")
    # what takes any keyword, or does not say, is not judged beforehand
    any_name = recoup.checkpoint(lambda x, **options: x * options["scale"], static_argnames="scale")
    assert float(any_name(jnp.float32(3), scale=2)) == 6
    recoup.checkpoint(max, static_argnames="key")


def test_a_loop_inside_a_region_inside_a_loop() -> None:
    """Late values are followed through the carries of `while` and `scan` to a fixed point."""

    def inner(x: Any) -> Any:
        a, b, _ = jax.lax.while_loop(
            lambda c: c[2] < 3, lambda c: (c[1] * 0.5, c[0] + x, c[2] + 1), (x, x * 2, jnp.int32(0))
        )
        y, _ = jax.lax.scan(lambda c, _: ((c[1], jnp.sin(c[0])), None), (x, jnp.cos(x)), None, length=3)
        return jax.lax.stop_gradient(a + b) + y[0] * y[1]

    def loss(x: Any, region: Any) -> Any:
        return jax.lax.scan(lambda c, _: (region(c), None), x, None, length=3)[0].sum()

    for policy in (None, policies.everything):
        region = recoup.checkpoint(inner, policy=policy)
        close(jax.grad(loss)(X, region), jax.grad(loss)(X, inner))


def test_late_values_are_followed_through_carries() -> None:
    """A loop that hands its carry from slot to slot makes every slot late, in as many rounds."""

    def shift(c: Any, _: Any) -> Any:
        return (c[1], c[2], jnp.sin(c[2]), c[3]), c[0]

    def scanned(a: Any, b: Any, c: Any, d: Any) -> Any:
        return jax.lax.scan(shift, (a, b, c, d), None, length=3)

    def waited(a: Any, b: Any, c: Any, d: Any) -> Any:
        step = lambda s: (s[0] + 1, shift(s[1], None)[0])
        return jax.lax.while_loop(lambda s: s[0] < 3, step, (0, (a, b, c, d)))[1]

    for fun, more in ((scanned, 1), (waited, 0)):
        late = functools.partial(late_results, jax.make_jaxpr(fun)(*[1.0] * 4).jaxpr)
        assert late([False, False, False, False]) == [False] * (4 + more)
        assert late([False, False, True, False]) == [True, True, True, False] + [True] * more
        assert late([True, False, False, False]) == [True, False, False, False] + [True] * more
        assert late([False, False, False, True]) == [False, False, False, True] + [False] * more


def test_a_diagnostic_of_what_a_region_was_given() -> None:
    """The region's own argument, and names of names: each is collected once."""

    @recoup.checkpoint
    def region(x: Any) -> Any:
        x = recoup.diagnostic(x, "given")
        h = jnp.tanh(x @ W)
        h = recoup.diagnostic(recoup.diagnostic(h, "once"), "twice")
        h = recoup.diagnostic(recoup.keep(jnp.sin(h), "kept"), "last")
        return recoup.keep(recoup.keep(jnp.cos(h), "a"), "b")

    step = recoup.collect(jax.grad(lambda x: region(2 * x).sum()))
    grads, found = jax.jit(step)(X)
    assert sorted(found) == ["given", "last", "once", "twice"]
    close(found["given"], 2 * X)
    close(found["once"], jnp.tanh(2 * X @ W))
    close(found["twice"], found["once"])
    close(found["last"], jnp.sin(found["once"]))
    plain = lambda x: jnp.cos(jnp.sin(jnp.tanh(2 * x @ W))).sum()
    close(grads, jax.grad(plain)(X))


def test_diagnostics_inside_calls_with_constants() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return recoup.diagnostic(x + np.arange(32.0, dtype=np.float32), "inner")

    out, found = recoup.collect(lambda x: inner(x) * 2)(X)
    close(found["inner"], X + jnp.arange(32.0))
    close(out, 2 * found["inner"])


def test_splits_of_a_function_with_work_between_its_regions() -> None:
    region = recoup.checkpoint(layer)

    def between(x: Any) -> Any:
        for _ in range(4):
            x = region(x, W) * 1.5
        return jnp.mean(x * x)

    def first(x: Any) -> Any:
        return jnp.mean(region(region(x, W), W) ** 2)

    for fun in (between, first):
        found = recoup.regions(fun, X)
        assert found.names == ("layer",)
        counts = {c.label: c.count for c in found.candidates}
        assert counts["each region"] == (4 if fun is between else 2) and counts["none"] == 0
        assert found.smallest in found.candidates and found.smallest.label in str(found)

    # long rows that one region around everything does without: they are read by the next line only
    def narrow(x: Any) -> Any:
        rows = jnp.tanh(x[:, None] * jnp.ones((1, 4096)))
        return jnp.sum(rows * rows)

    assert "saves nothing" not in str(recoup.regions(narrow, jnp.ones(64)))
    chain = lambda x: functools.reduce(lambda y, _: jnp.tanh(y @ W), range(12), x).sum()
    assert "saves nothing" in str(recoup.regions(chain, X))


def test_static_arguments_that_are_left_out() -> None:
    region = recoup.checkpoint(lambda x, flag=True, scale=2.0: x * scale, static_argnames=("flag", "scale"))
    close(jax.grad(lambda x: region(x, False).sum())(X), jnp.full_like(X, 2.0))
    with pytest.raises(TypeError, match="argument 'scale' of region"):
        jax.grad(lambda x: region(x, scale=x).sum())(X)
    with pytest.raises(TypeError, match="argument 'flag' of region"):
        jax.grad(lambda x: region(x, x).sum())(X)


def test_a_region_of_no_arrays_at_all() -> None:
    region = recoup.checkpoint(lambda text: text.upper())
    assert jax.jit(lambda x: x * len(region("ab")))(X).shape == X.shape


@pytest.mark.parametrize("kind", ["recoup", "jax"])
def test_regions_dissolved_or_kept_give_the_same(kind: str) -> None:
    wrap = recoup.checkpoint if kind == "recoup" else jax.checkpoint

    def loss(w: Any, x: Any) -> Any:
        for _ in range(4):
            x = wrap(layer)(x, w)
        return jnp.mean(x * x)

    step = jax.value_and_grad(loss)
    for regions in ("replan", "respect"):
        fitted = recoup.fit(step, W, X, budget="100%", regions=regions)
        assert recoup.check(step, fitted, W, X)


# -- policies ----------------------------------------------------------------------------------------------


def test_policies_print_as_they_are_written() -> None:
    both = policies.names("a") & ~policies.costly(4)
    made = [
        both, policies.nothing | policies.at_least(8), policies.at_most(9) & policies.operations("exp"),
        policies.everything, policies.unbatched_products,
    ]  # fmt: skip
    for policy in made:
        assert eval(repr(policy), {"policies": policies}) == policy
        assert policy in list(policy.parts())
    with pytest.raises(TypeError, match="takes the operations to keep"):
        policies.operations()
    with pytest.raises(NotImplementedError):
        policies.Policy().keeps(policies.Candidate("exp", 4, 1.0))
    assert not policies.costly(4).keeps(policies.Candidate("exp", 0, 1.0))
    assert both.keeps(policies.Candidate("exp", 4, 1.0, "a"))


# -- budgets, plans, graphs --------------------------------------------------------------------------------


def test_what_a_budget_needs() -> None:
    share, device = parse_budget("60%"), parse_budget("device")
    assert share.resolve(unplanned_bytes=1000) == 600
    for budget, known, message in (
        (share, {}, "needs the unplanned step's total"),
        (device, {}, "reports its free memory"),
        (device, {"free_bytes": HEADROOM_MIN_BYTES}, "are headroom"),
    ):
        with pytest.raises(BudgetSyntaxError, match=message):
            budget.resolve(**known)
    for text, message in (("0%", "more than 0%"), ("0.1B", "at least one byte"), ("4g", "GiB")):
        with pytest.raises(BudgetSyntaxError, match=message):
            parse_budget(text)
    assert parse_budget(share) is share


def test_a_plan_from_a_file_says_what_it_can(tmp_path: Path) -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = x
            for _ in range(5):
                h = layer(h, w)
            return jnp.mean(h * h)

        return jax.grad(loss)(w)

    plan = recoup.plan(step, W, X, budget="75%")
    plan.save(tmp_path / "plan.json")
    stored = recoup.Plan.load(tmp_path / "plan.json")
    assert stored == plan and str(stored) == str(plan)
    assert "Recomputed, by source line" in str(plan)
    assert stored._repr_html_().count("<table") <= plan._repr_html_().count("<")
    assert stored.picture().title == "Plan" and plan.picture().curve
    assert plan.advise() is not None
    with pytest.raises(PlanError, match="read from a file"):
        stored.advise()
    curve = recoup.frontier(step, W, X)
    shown = curve.picture()
    assert shown.mark == "knee" and [rung.chosen for rung in shown.curve].count(True) == 1
    assert f"{len(curve.points)}" and curve.to_json() and str(curve).count("<- knee") == 1


def test_graphs_that_are_refused() -> None:
    graph = Graph([1, 1], [4, 6], [(0, 1)])
    with pytest.raises(PlanError, match="1 costs of stores and 2 of fetches"):
        Offload(np.ones(1), np.ones(2))
    with pytest.raises(PlanError, match="moving value 0 is -1"):
        Offload(np.array([-1.0]), np.ones(1))
    with pytest.raises(PlanError, match=r"above 2\*\*53"):
        Graph([1.0], [2.0**60], [])
    assert Graph([1.0], [3.0], []).sizes.tolist() == [3]
    moved = Offload.per_byte(graph, 0.5, smallest_bytes=5)
    assert moved.stores.tolist() == [np.inf, 3.0] and moved.fetches.tolist() == [np.inf, 3.0]
    many = Graph(np.ones(LARGEST + 1), np.ones(LARGEST + 1, dtype=np.int64), [])
    with pytest.raises(PlanError, match=f"at most {LARGEST} operations"):
        brute_force(many, 5)


def test_solving_at_the_edges() -> None:
    empty = Graph([], [], [])
    assert peak_bound(empty) == (0, -1)
    nothing = recoup.solve(empty, 0)
    assert (nothing.cost, nothing.overhead, nothing.gap, list(nothing.order)) == (0, 0.0, 0.0, [])
    assert "optimal" in str(nothing)
    graph = Graph([1, 1, 1, 1], [3, 4, 4, 1], [(0, 1), (1, 2), (0, 3), (2, 3)])
    for order, budget in (("any", 8), ("free", True), ("free", 8.5)):
        with pytest.raises(PlanError):
            recoup.solve(graph, budget, order=order)  # type: ignore[arg-type]
    found = recoup.solve(graph, 8, start=[0, 1, 2, 3])
    assert found.order.tolist() == [0, 1, 2, 0, 3] and found.optimal
    assert "cost 5 (+25.0000%, optimal)" in str(found)
    with pytest.raises(InfeasibleError):
        recoup.solve(graph, 7)
    offload = Offload(np.full(4, 0.25), np.full(4, 0.25))
    moved = recoup.solve(graph, 8, offload=offload)
    assert (
        moved.cost == pytest.approx(4.5) and check(graph, moved.order, 8, offload=offload).cost == moved.cost
    )
    with pytest.raises(InfeasibleError):
        recoup.solve(graph, 7, offload=Offload(np.full(4, np.inf), np.full(4, np.inf)), time_limit=1.0)
    # bounds: nothing is over the budget; everything is free; no schedule exists
    assert cover_bound(graph, 100) == 0.0
    assert cover_bound(Graph([0, 0, 0, 0], [3, 4, 4, 1], [(0, 1), (1, 2), (0, 3), (2, 3)]), 8) == 0.0


def test_a_graph_too_large_to_prove() -> None:
    """Bounds from sampled rows, searches that start from the relaxation: legal, and not below the bound."""
    rng = np.random.default_rng(0)
    n = 2200
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(0, n // 2 - 1, 2)]
    graph = Graph(np.ones(n), rng.integers(1, 20, n), edges)
    low, high = peak_bound(graph)[0], check(graph, range(n)).peak_bytes
    for order in ("free", "given"):
        found = recoup.solve(graph, (low + 3 * high) // 4, order=order, time_limit=1.0)
        assert n <= found.lower_bound <= found.cost
        checked = check(graph, found.order, found.budget_bytes, given=order == "given")
        assert (checked.cost, checked.peak_bytes) == (found.cost, found.peak_bytes)


def test_a_step_without_a_signature_of_its_own() -> None:
    step = operator.methodcaller("sum", axis=0)
    fitted = recoup.fit(step, X, budget="100%")
    assert recoup.check(step, fitted, X)
    assert fitted.plan.changes_nothing


def test_effects_beside_regions_are_refused_or_run_once() -> None:
    seen: list[float] = []

    def noisy(x: Any) -> Any:
        y = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        jax.debug.callback(lambda v: seen.append(float(v)), jnp.sum(y), ordered=True)
        return jnp.sin(y)

    def step(x: Any) -> Any:
        return jax.jit(lambda x: noisy(x).sum())(x)

    fitted = recoup.fit(step, X, budget="100%")
    fitted(X)
    jax.effects_barrier()
    assert len(seen) == 1
    with pytest.raises((EffectError, ValueError, NotImplementedError)):
        jax.grad(lambda x: recoup.checkpoint(noisy)(x).sum())(X)
