"""Behaviours that users of several libraries report going wrong silently, as tests of `recoup.fit`.

The same numbers of the same list are tests of regions in `tests/regions/test_cases.py` and
`test_region_cases.py`. Every step here is really planned: `fitted` refuses a plan that changes nothing.
"""

import dataclasses
import functools
import gc
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup.errors import BudgetError, PlanError

WEIGHTS = [0.2 * jax.random.normal(jax.random.key(i), (32, 32)) for i in range(5)]
X = jax.random.normal(jax.random.key(9), (512, 32))


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) * 2.0)


def chain(weights: Any, x: Any) -> Any:
    for w in weights:
        x = layer(x, w)
    return jnp.mean(x * x)


grads = jax.value_and_grad(chain)


def fitted(step: Any, *args: Any, budget: Any = "80%", planned: bool = True, **options: Any) -> recoup.Fitted:
    """Fits, checks against plain, and refuses a plan that does nothing or a recomputation merged away."""
    found = recoup.fit(step, *args, budget=budget, **options)
    assert found.memory.total_bytes <= found.plan.budget_bytes
    agreement = recoup.check(step, found, *args, kwargs=options.get("kwargs"))
    assert agreement, str(agreement)
    if planned:
        assert not found.plan.changes_nothing and agreement.recomputed_operations > 0
        assert found.unplanned_memory is None or (
            found.memory.temporaries_bytes < found.unplanned_memory.temporaries_bytes
        )
    return found


def test_case_1_captured_frozen_and_integer_inputs() -> None:
    frozen = {"scale": jnp.linspace(0.5, 1.5, 32), "steps": jnp.arange(3)}

    def step(w: Any, ids: Any) -> Any:
        def loss(w: Any) -> Any:
            embed = lambda: jnp.take(w[0], ids, axis=0) * frozen["scale"]  # reads only what it captures
            x = embed()
            for v in w[1:]:
                x = layer(x, v)
            return jnp.mean(x * x) + jnp.sum(frozen["steps"]).astype(x.dtype)

        return jax.grad(loss)(w)

    ids = jnp.arange(512) % 32
    found = fitted(step, WEIGHTS, ids)
    assert all(float(jnp.max(jnp.abs(g))) > 0 for g in found(WEIGHTS, ids))


def dropped(weights: Any, x: Any, state: Any) -> Any:
    key, after = jax.random.split(state["rng"]["dropout"])

    def loss(weights: Any) -> Any:
        h = x
        for i, w in enumerate(weights):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, h.shape)
            h = jnp.where(mask, layer(h, w), jnp.zeros_like(h))
        return jnp.mean(h * h)

    return jax.value_and_grad(loss)(weights), {"rng": {"dropout": after}}


def test_case_2_dropout_with_the_key_in_a_dict() -> None:
    state = {"rng": {"dropout": jax.random.key(7)}}
    found = fitted(dropped, WEIGHTS, X, state, budget="70%")
    after = found(WEIGHTS, X, state)[1]["rng"]["dropout"]
    want = jax.random.split(state["rng"]["dropout"])[1]
    assert jnp.array_equal(jax.random.key_data(after), jax.random.key_data(want))


def test_case_3_counters_statistics_and_references() -> None:
    traces: list[int] = []

    def step(weights: Any, x: Any, stats: Any, total: Any) -> Any:
        traces.append(1)

        def loss(weights: Any) -> Any:
            value = chain(weights, x)
            total[...] += jax.lax.stop_gradient(value)
            return value, {"mean": 0.9 * stats["mean"] + 0.1 * jnp.mean(x, 0), "count": stats["count"] + 1}

        return jax.value_and_grad(loss, has_aux=True)(weights)

    stats = {"mean": jnp.zeros(32), "count": jnp.int32(3)}
    total = jax.new_ref(jnp.float32(0.0))
    found = recoup.fit(step, WEIGHTS, X, stats, total, budget="80%")
    assert len(traces) == 1 and not found.plan.changes_nothing
    (value, after), _ = found(WEIGHTS, X, stats, total)
    assert int(after["count"]) == 4 and float(total[...]) == float(value)
    assert recoup.check(step, found, WEIGHTS, X, stats, total)


def test_case_3_a_list_appended_to_while_tracing() -> None:
    kept: list[Any] = []

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            kept.append(layer(x, weights[0]))
            return chain(weights[1:], kept[-1])

        return jax.grad(loss)(weights)

    found = recoup.fit(step, WEIGHTS, X, budget="90%")
    assert len(kept) == 1 and not found.plan.changes_nothing
    with pytest.raises(jax.errors.UnexpectedTracerError):
        _ = kept[0] + 1.0
    found(WEIGHTS, X)
    assert len(kept) == 1


@pytest.mark.parametrize("kind", ["debug", "ordered", "io", "io ordered"])
def test_case_4_callbacks_happen_once(kind: str) -> None:
    seen: list[float] = []

    def note(value: Any) -> Any:
        seen.append(float(value))
        return np.float32(1.0)

    def effect(h: Any) -> Any:
        if kind.startswith("io"):
            result = jax.ShapeDtypeStruct((), jnp.float32)
            return jax.experimental.io_callback(note, result, h[0, 0], ordered="ordered" in kind)
        jax.debug.callback(note, h[0, 0], ordered=kind == "ordered")
        return jnp.float32(1.0)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            h = layer(x, w)
            x = h * jax.lax.stop_gradient(effect(jax.lax.stop_gradient(h)))
        return jnp.mean(x * x)

    found = recoup.fit(jax.grad(loss), WEIGHTS, X, budget="85%")
    assert not found.plan.changes_nothing
    jax.block_until_ready(found(WEIGHTS, X))
    jax.effects_barrier()
    ours, seen[:] = list(seen), []
    jax.block_until_ready(jax.jit(jax.grad(loss))(WEIGHTS, X))
    jax.effects_barrier()
    assert len(ours) == len(WEIGHTS)
    assert sorted(ours) == sorted(seen) and (ours == seen or "ordered" not in kind)


def test_case_5_functions_made_in_a_loop_replay_their_own_layer() -> None:
    def loss(weights: Any, x: Any) -> Any:
        parts = [lambda x, i=i: layer(x, weights[i]) * (i + 1.0) for i in range(len(weights))]
        return jnp.mean(functools.reduce(lambda x, f: f(x), parts, x) ** 2)

    fitted(jax.grad(loss, (0, 1)), WEIGHTS, X)


def test_case_6_nested_regions_and_loops_stay_within_the_plan() -> None:
    inner = jax.checkpoint(layer)
    two = jax.checkpoint(lambda x, w: inner(inner(x, w), w))

    def loss(weights: Any, x: Any) -> Any:
        x = jax.checkpoint(
            lambda x: jax.lax.scan(lambda c, w: (two(c, w), None), x, jnp.stack(weights[:3]))[0]
        )(x)
        return chain(weights[3:], x)

    fitted(jax.grad(loss), WEIGHTS, X, budget="100%", planned=False)
    fitted(jax.grad(loss), WEIGHTS, X, budget="100%", regions="replan", planned=False)


def test_case_7_the_fitted_function_under_transformations() -> None:
    weights, x = WEIGHTS, X
    fun = fitted(grads, weights, x, budget="85%").fun
    first = lambda f: lambda w: f(w, x)[0]
    cases: list[Any] = [
        lambda f: jax.grad(lambda w: sum(jnp.sum(g * g) for g in f(w, x)[1]))(weights),
        lambda f: jax.jvp(first(f), (weights,), (weights,)),
        lambda f: jax.jvp(jax.grad(first(f)), (weights,), (weights,)),
        lambda f: jax.vmap(lambda x: f(weights, x))(jnp.stack([x, 2 * x])),
        lambda f: jax.grad(lambda w: jnp.sum(jax.vmap(lambda x: f(w, x)[0])(jnp.stack([x, x]))))(weights),
    ]
    for case in cases:
        jitted = [jax.jit(lambda f=f, case=case: case(f)) for f in (fun, grads)]
        ours, plain = (f() for f in jitted)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    _, pull = jax.vjp(first(fun), weights)
    once, twice = pull(jnp.float32(1.0)), pull(jnp.float32(1.0))
    assert all(
        jnp.array_equal(a, b) for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True)
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Result:
    loss: Any
    parts: dict[str, Any]


def test_case_8_outputs_and_arguments_of_every_form() -> None:
    def step(weights: Any, x: Any, mode: str, *, scale: Any, unused: Any = None) -> Any:
        value, found = grads(weights, x * scale)
        assert mode == "train" and unused is None
        return Result(value, {"again": value, "in": x, "grads": found, "none": None}), ()

    options = {"kwargs": {"scale": jnp.float32(2.0)}, "static_argnums": 2}
    found = fitted(step, WEIGHTS, X, "train", **options)
    out, empty = found(WEIGHTS, X, "train", scale=jnp.float32(2.0))
    assert isinstance(out, Result) and empty == () and out.parts["none"] is None
    assert jnp.array_equal(out.parts["in"], X) and float(out.loss) == float(out.parts["again"])
    fitted(lambda w, x: list(grads(w, x)[1])[1:], WEIGHTS, X)  # one unused
    nothing = recoup.fit(lambda w, x: (), WEIGHTS, X, budget="1GiB")
    assert nothing(WEIGHTS, X) == ()


def test_case_9_a_step_that_raises_leaves_nothing_behind() -> None:
    broken = [True]

    def step(weights: Any, x: Any) -> Any:
        out = grads(weights, x)
        if broken[0]:
            raise RuntimeError("broken")
        return out

    with pytest.raises(RuntimeError, match="broken"):
        recoup.fit(step, WEIGHTS, X, budget="80%")
    broken[0] = False
    fitted(step, WEIGHTS, X)


def test_case_10_identical_blocks_in_a_python_loop() -> None:
    found = fitted(grads, WEIGHTS * 2, X, budget="62%")
    assert found.unplanned_memory is not None
    kept = found.memory.temporaries_bytes / found.unplanned_memory.temporaries_bytes
    assert kept < 0.6


def test_case_11_one_region_around_the_whole_loss_saves_nothing() -> None:
    whole = jax.value_and_grad(jax.checkpoint(chain))
    with pytest.raises(BudgetError, match="Smallest peak found"):
        recoup.fit(whole, WEIGHTS * 2, X, budget="62%")
    advice = str(recoup.regions(lambda w: chain(w, X), WEIGHTS * 2))
    assert "One region around everything saves nothing" in advice and "A split that does save" in advice


def test_case_11_a_region_around_the_whole_loss_is_dissolved() -> None:
    fitted(jax.value_and_grad(jax.checkpoint(chain)), WEIGHTS * 2, X, budget="70%", regions="replan")


def test_case_12_names_and_policies_that_match_nothing() -> None:
    def loss(weights: Any, x: Any) -> Any:
        part = recoup.checkpoint(
            lambda x, w: recoup.keep(layer(x, w), "hiden") * 1.0, policy=recoup.policies.names("hidden")
        )
        for w in weights:
            x = part(x, w)
        return jnp.mean(x * x)

    with pytest.warns(recoup.errors.RegionWarning, match="hiden"):
        recoup.fit(jax.grad(loss), WEIGHTS, X, budget="100%")


def sweep(step: Any, args: Any, shares: Any) -> list[recoup.Fitted]:
    """Fits at falling budgets; peaks never rise, costs never fall, results agree."""
    found: list[recoup.Fitted] = []
    plain = recoup.fit(step, *args, budget="100%").memory.total_bytes
    for share in shares:
        try:
            now = recoup.fit(step, *args, budget=int(share * plain))
        except BudgetError:
            break
        assert now.memory.total_bytes <= share * plain
        agreement = recoup.check(step, now, *args)
        assert agreement, str(agreement)
        if found:
            assert now.memory.total_bytes <= found[-1].memory.total_bytes
            assert now.plan.overhead >= found[-1].plan.overhead
        found.append(now)
    return found


def test_case_13_a_budget_swept_with_dropout() -> None:
    state = {"rng": {"dropout": jax.random.key(1)}}
    found = sweep(dropped, (WEIGHTS, X, state), (1.0, 0.85, 0.7, 0.6, 0.5, 0.4))
    assert len(found) >= 4 and found[-1].plan.overhead > found[0].plan.overhead == 0.0


def test_case_14_budgets_out_of_reach_and_without_effect() -> None:
    with pytest.raises(BudgetError) as error:
        recoup.fit(grads, WEIGHTS, X, budget="30 KiB")
    text = str(error.value)
    assert "Smallest peak found" in text and "No plan can be below" in text and "test_cases.py:" in text
    enough = recoup.fit(grads, WEIGHTS, X, budget="1GiB")
    assert enough.plan.changes_nothing and "runs as it is" in str(enough.plan)


def test_case_15_a_report_on_a_scan_of_50_steps() -> None:
    def loss(w: Any, x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            up = recoup.keep(x @ w, "up")
            return x + up * up, None

        return jnp.mean(jax.lax.scan(body, x, None, length=50)[0] ** 2)

    found = recoup.residuals(loss, WEIGHTS[0], X)
    inside = [item for item in found.items if item.iterations == 50]
    assert inside and all("test_cases.py" in item.source for item in inside)
    assert any(item.source.endswith("body)") for item in inside)
    assert all(item.bytes == 50 * item.per_iteration_bytes == 50 * X.nbytes for item in inside)
    assert sum(item.bytes for item in inside) > 0.98 * found.total_bytes
    assert "50 steps" in str(found) or "x 50" in str(found), str(found)


@pytest.mark.parametrize("length", [0, 1, 13])
def test_case_16_lengths_and_bodies_that_depend_on_the_index(length: int) -> None:
    def loss(w: Any, x: Any) -> Any:
        body = lambda c, i: (layer(c, w) * (1.0 + i / 10), None)
        return jnp.mean(jax.lax.scan(body, x, jnp.arange(float(length)))[0] ** 2)

    long = length > 1
    fitted(jax.grad(loss), WEIGHTS[0], X, budget="70%" if long else "100%", planned=False)


def test_case_16_a_loop_whose_trip_count_is_data() -> None:
    def step(weights: Any, x: Any, n: Any) -> Any:
        count = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (0, jnp.float32(1)))[
            1
        ]
        return jax.grad(lambda w: chain(w, x * count))(weights)

    fitted(step, WEIGHTS, X, 3)


def test_case_17_many_layers_and_long_loops() -> None:
    def loss(x: Any, n: int) -> Any:
        for _ in range(n):
            x = jnp.tanh(x * 1.01)
        return jnp.mean(x)

    seconds = {}
    for n in (250, 1000):
        start = time.perf_counter()
        recoup.plan(jax.grad(loss), jnp.ones(4096), n, budget="100%", static_argnums=1)
        seconds[n] = time.perf_counter() - start
    assert seconds[1000] < 16 * seconds[250]  # four times the layers

    def loop(x: Any, n: int) -> Any:
        return jnp.mean(jax.lax.scan(lambda c, _: (layer(c, WEIGHTS[0]), None), x, None, length=n)[0])

    sizes = []
    for n in (36, 3600):
        found = recoup.fit(jax.grad(loop), X[:8], n, budget="60%", static_argnums=1)
        assert found.plan.loops
        sizes.append(len(found.compiled.as_text()))
    assert sizes[1] < 1.2 * sizes[0]


@pytest.mark.slow
def test_case_17_5000_layers_in_a_row() -> None:
    def loss(weights: Any, x: Any) -> Any:
        for _ in range(5000):
            x = jnp.tanh(x * weights)
        return jnp.mean(x)

    plan = recoup.plan(jax.grad(loss), jnp.ones(4096), jnp.ones(4096), budget="50%")
    assert plan.peak_bytes <= plan.budget_bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_case_18_narrow_floats_round_as_plain(dtype: str) -> None:
    weights = [w.astype(dtype) for w in WEIGHTS]

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    fitted(jax.grad(loss), weights, X.astype(dtype), budget="85%")


def test_case_19_a_loop_with_states_in_host_memory() -> None:
    def loss(scan: Any, w: Any, x: Any) -> Any:
        return jnp.mean(scan(lambda c, _: (layer(c, w), None), x, None)[0] ** 2)

    offloaded = functools.partial(recoup.scan, length=24, checkpoints=4, store="host", store_every=6)
    step = jax.grad(functools.partial(loss, offloaded))
    found = recoup.fit(step, WEIGHTS[0], X, budget="100%")
    assert recoup.check(step, found, WEIGHTS[0], X)
    plain = jax.jit(jax.grad(functools.partial(loss, functools.partial(jax.lax.scan, length=24))))
    np.testing.assert_allclose(found(WEIGHTS[0], X), plain(WEIGHTS[0], X), rtol=1e-4, atol=1e-7)


SHARDED = """
import jax, jax.numpy as jnp, recoup
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.breaking.test_cases import WEIGHTS, X, grads
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jnp.concatenate([X] * 4)
rows = jax.device_put(x, NamedSharding(mesh, P("d")))
weights = jax.device_put(WEIGHTS, NamedSharding(mesh, P()))
found = recoup.fit(grads, weights, rows, budget="75%")
assert not found.plan.changes_nothing
one = sum(w.nbytes for w in WEIGHTS) + x.nbytes // 8
assert found.memory.arguments_bytes == one, (found.memory, one)
agreement = recoup.check(grads, found, weights, rows)
assert agreement, str(agreement)
single = jax.jit(grads)(WEIGHTS, x)
for a, b in zip(jax.tree.leaves(found(weights, rows)), jax.tree.leaves(single), strict=True):
    assert jnp.allclose(jax.device_get(a), b, rtol=1e-4, atol=1e-6)
"""


def run_alone(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, JAX_PLATFORMS="cpu", **variables)
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_case_20_a_sharded_step_on_8_devices() -> None:
    found = run_alone(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert found.returncode == 0, found.stderr[-3000:]


def test_case_21_a_plan_of_another_step_is_refused(tmp_path: Path) -> None:
    recoup.plan(grads, WEIGHTS, X, budget="80%").save(tmp_path / "plan.json")
    others = [(grads, WEIGHTS[1:], X), (grads, WEIGHTS, X[:256]), (jax.grad(chain), WEIGHTS, X)]
    for step, *args in others:
        with pytest.raises(PlanError, match=r"another step .*differ"):
            recoup.fit(step, *args, plan=tmp_path / "plan.json")
    found = recoup.fit(grads, WEIGHTS, X, plan=tmp_path / "plan.json", budget="100%")
    assert recoup.check(grads, found, WEIGHTS, X)


def grows_by(rounds: int, calls: int) -> tuple[float, float]:
    """Objects and Python bytes that each of `rounds` fits (of `calls` calls) leaves behind."""

    def once(i: int) -> None:
        step = jax.value_and_grad(lambda w, x: chain(w, x) * float(i))
        found = recoup.fit(step, WEIGHTS, X, budget="85%")
        for _ in range(calls):
            found(WEIGHTS, X)

    def settled() -> tuple[int, int]:
        jax.clear_caches()
        gc.collect()
        return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]

    for i in range(3):
        once(i)
    tracemalloc.start()
    try:
        once(3)
        objects, size = settled()
        for i in range(rounds):
            once(4 + i)
        after, now = settled()
    finally:
        tracemalloc.stop()
    return (after - objects) / rounds, (now - size) / rounds


def test_case_22_fits_do_not_pile_up() -> None:
    objects, size = grows_by(6, 3)
    assert objects < 50 and size < 20_000


@pytest.mark.slow
def test_case_22_1000_fits_and_10000_calls() -> None:
    objects, size = grows_by(1000, 10)
    assert objects < 2 and size < 2_000
