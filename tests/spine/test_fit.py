"""`recoup.fit` from end to end: budgets, certificates, errors, options, and the same results."""

import functools
import json
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup._ladder import Ladder
from recoup.errors import BudgetError, BudgetSyntaxError, PlanError, SignatureError

from .helpers import close, compiled, gpt, mlp, mlp_loss, normal, same, sgd, temporaries

MIB = 2**20


@functools.cache
def base():
    """A step, its arguments and its results, compiled as it is."""
    step, args = mlp()
    plain = compiled(step, *args)
    return step, args, plain, plain(*args)


def total(program):
    stats = program.memory_analysis()
    return (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )


@functools.cache
def fitted(budget):
    step, args, _, _ = base()
    return recoup.fit(step, *args, budget=budget)


@pytest.mark.parametrize("budget", ["80%", 700_000, "600 KiB", np.int64(650_000)])
def test_a_budget_is_kept_and_certified(budget):
    _, args, plain, results = base()
    found = fitted(budget)
    limit = {"80%": int(0.8 * total(plain)), "600 KiB": 600 * 1024}.get(budget, budget)
    memory = found.memory
    assert found.plan.budget_bytes == limit
    assert 0 < memory.total_bytes <= limit
    # The certificate is what the compiler says of the very program that runs.
    assert memory.total_bytes == total(found.compiled)
    assert memory.temporaries_bytes == temporaries(found.compiled) < temporaries(plain)
    assert memory.instrument == "compiler (memory analysis)"
    assert found.plan.decisions and found.plan.overhead > 0 and not found.plan.changes_nothing
    assert 1 <= found.compiles <= 4
    assert "certified" in repr(found) and found.__name__ == "step"
    same(results, found(*args))


def test_the_bound_is_below_and_the_prediction_near():
    found = fitted("80%")
    assert found.plan.lower_bound_bytes <= found.memory.total_bytes
    assert found.plan.peak_bytes == pytest.approx(found.memory.total_bytes, rel=0.25)
    assert found.unplanned_memory.total_bytes == total(base()[2])


def test_a_budget_that_the_step_meets_returns_it():
    step, args, plain, results = base()
    found = recoup.fit(step, *args, budget=2 * total(plain))
    assert found.plan.changes_nothing and found.plan.overhead == 0.0 and found.compiles == 1
    assert "the step runs as it is" in str(found.plan)
    assert found.memory.total_bytes == found.unplanned_memory.total_bytes == total(plain)
    same(results, found(*args))
    assert recoup.fit(step, *args, budget="device").plan.changes_nothing


def test_a_budget_that_cannot_be_met_names_numbers_and_lines():
    step, args, _, _ = base()
    for call in (recoup.fit, recoup.plan):
        with pytest.raises(BudgetError) as error:
            call(step, *args, budget="20 KiB")
        text = str(error.value)
        assert text.startswith("[E-BUDGET-001]") and isinstance(error.value, ValueError)
        assert "20.0 KiB" in text and "'20 KiB'" in text
        assert len(re.findall(r"\d (?:KiB|MiB)", text)) >= 4  # budget twice, smallest, bound
        assert re.search(r"held by \w+ at \S*helpers\.py:\d+", text)  # the line that sets the smallest peak
        assert "Smallest peak found" in text and "No plan can be below" in text
        assert "cannot be met" in text  # it is below the bound
    bound = recoup.plan(step, *args, budget="100%").lower_bound_bytes
    with pytest.raises(BudgetError, match="is met by no plan that was found"):
        recoup.plan(step, *args, budget=bound + 1)


@pytest.mark.parametrize("budget", ["4G", "lots", 0.6, -1, "0%", True, None])
def test_a_budget_that_cannot_be_read(budget):
    step, args, _, _ = base()
    with pytest.raises((BudgetSyntaxError, TypeError)):
        recoup.fit(step, *args, budget=budget)
    assert issubclass(BudgetSyntaxError, ValueError)


def test_plan_alone_compiles_nothing(monkeypatch):
    step, args, _, _ = base()

    def refuse(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    plan = recoup.plan(step, *structs, budget="80%")
    assert plan.peak_bytes <= plan.budget_bytes == int(0.8 * plan.unplanned_bytes)
    assert plan.lower_bound_bytes <= plan.peak_bytes
    assert plan.overhead == plan.extra_flops / plan.flops > 0
    actions = {d.action for d in plan.decisions}
    assert actions == {"keep", "recompute"}
    again = [d for d in plan.decisions if d.action == "recompute" and d.bytes]
    assert all("helpers.py" in d.source and d.recipe for d in again)
    assert all(d.inputs for d in again if d.op != "broadcast_in_dim")  # which may spread a number
    shown = str(plan)
    assert max(map(len, shown.splitlines())) <= 80 and "helpers.py" in shown
    assert json.loads(plan.to_json())["peak_bytes"] == plan.peak_bytes


def test_the_decisions_add_up_to_the_overhead():
    plan = saved_plan()
    assert sum(d.flops for d in plan.decisions) == pytest.approx(plan.extra_flops)


def test_shapes_alone_fit_and_the_result_runs():
    step, args, _, results = base()
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    same(results, recoup.fit(step, *structs, budget="80%")(*args))


@pytest.mark.parametrize("compiles", [1, 2])
def test_no_more_compilations_than_allowed(compiles):
    step, args, plain, _ = base()
    try:
        found = recoup.fit(step, *args, budget=int(0.8 * total(plain)), max_compiles=compiles)
    except BudgetError as error:
        assert "max_compiles" in str(error) or "compiled" in str(error)
    else:
        assert found.compiles <= compiles and found.memory.total_bytes <= found.plan.budget_bytes


def test_the_rewritten_step_is_an_ordinary_function():
    _, args, _, results = base()
    found = fitted("80%")
    outs = jax.eval_shape(found.fun, *args)
    assert jax.tree.structure(outs) == jax.tree.structure(results)
    close(results, jax.jit(lambda *a: found.fun(*a))(*args), 8)


def test_arguments_that_do_not_match():
    _, (params, x), _, _ = base()
    found = fitted("80%")
    for wrong in [(params, x[:-1]), (params[:-1], x), (params, x.astype(jnp.bfloat16)), (params,)]:
        with pytest.raises(SignatureError) as error:
            found(*wrong)
        assert str(error.value).startswith("[E-CALL-001]") and isinstance(error.value, TypeError)
    same(base()[3], found(params, x))


@pytest.mark.skipif(jax.config.jax_debug_nans, reason="JAX keeps what is donated, to find the NaN with it")
def test_donated_arguments_are_aliased_and_consumed():
    step, args, _, results = base()
    params = jax.tree.map(jnp.copy, args[0])
    found = recoup.fit(step, params, args[1], budget="80%", donate_argnums=0)
    donated = sum(p.nbytes for p in params)
    assert found.memory.aliased_bytes == donated
    assert found.memory.total_bytes == (
        found.memory.arguments_bytes + found.memory.outputs_bytes - donated + found.memory.temporaries_bytes
    )
    same(results, found(params, args[1]))
    assert all(p.is_deleted() for p in params) and not args[1].is_deleted()


@jax.tree_util.register_dataclass
@dataclass
class State:
    params: dict
    count: jax.Array
    nothing: None = None


def stateful(state, x, depth, scale=1.0, mode="square"):
    """Trees, None, an integer, static arguments by position and by name, keyword arguments."""

    def loss(params):
        h = x
        for i in range(depth):
            h = jnp.tanh(jnp.tanh(h @ params[f"w{i}"]) * 2.0)
        return jnp.mean(h * h if mode == "square" else jnp.abs(h)) * scale

    value, grads = jax.value_and_grad(loss)(state.params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    return State(params, state.count + 1, None), {"loss": value, "extra": (None, [state.count])}


def state(depth=6, width=32):
    return State({f"w{i}": normal(i, width, width, scale=0.2) for i in range(depth)}, jnp.int32(3))


def test_trees_static_and_keyword_arguments():
    x = normal(99, 512, 32)
    kwargs = {"scale": jnp.float32(2.0), "mode": "abs"}
    found = recoup.fit(
        stateful, state(), x, 6, budget="85%", kwargs=kwargs, static_argnums=2, static_argnames="mode"
    )
    assert not found.plan.changes_nothing
    expected = jax.jit(stateful, static_argnums=2, static_argnames="mode")(state(), x, 6, **kwargs)
    close(expected, found(state(), x, 6, **kwargs), 8)
    out, metrics = found(state(), x, 6, **kwargs)
    assert isinstance(out, State) and out.nothing is None and int(out.count) == 4
    assert metrics["extra"][0] is None
    with pytest.raises(SignatureError):
        found(state(), x, 6, scale=jnp.float32(2.0), other=1.0)


def test_decorator_fits_once_for_each_signature(capsys):
    traces = []

    @recoup.jit(budget="100%", static_argnames=("depth", "mode"))
    def step(state, x, depth, mode="square"):
        traces.append(x.shape)
        return stateful(state, x, depth, jnp.float32(1.0), mode)

    assert step.__name__ == "step"
    x = normal(99, 256, 32)
    first = step(state(2), x, depth=2)
    shown = capsys.readouterr().err
    assert shown.count("recoup: step: planned") == 1
    assert "certified" in shown and "FLOPs" in shown and "by the compiler (memory analysis)" in shown
    count = len(traces)
    same(first, step(state(2), x, depth=2))
    assert len(traces) == count and len(step.fitted) == 1 and not capsys.readouterr().err
    step(state(2), x[:128], depth=2)
    step(state(2), x, depth=1)
    step(state(2), x, depth=2, mode="abs")
    assert len(step.fitted) == 4
    assert all(f.memory.total_bytes <= f.plan.budget_bytes for f in step.fitted.values())


def test_a_quiet_decorator_prints_nothing(capsys):
    step, args, plain, _ = base()
    recoup.jit(step, budget=2 * total(plain), quiet=True)(*args)
    assert capsys.readouterr().err == ""


def test_compiler_options_pass_through():
    step, args, _, _ = base()
    with pytest.raises(Exception, match="xla_no_such_option"):
        recoup.fit(step, *args, budget="80%", compiler_options={"xla_no_such_option": True})
    disabled = {"xla_disable_hlo_passes": "float-normalization-bf16"}
    found = recoup.fit(step, *args, budget="80%", compiler_options=disabled)
    assert found.memory.total_bytes <= found.plan.budget_bytes
    assert not found.plan.changes_nothing


def test_a_step_without_a_backward_is_planned_like_any_other():
    def predict(params, x):
        h = [x]
        for w in params:
            h.append(jnp.tanh(jnp.tanh(h[-1] @ w) * 2.0))
        for a in reversed(h):
            x = jnp.tanh((x * a) @ params[0])
        return x

    args = base()[1]
    assert recoup.fit(predict, *args, budget=8 * MIB).plan.changes_nothing
    found = recoup.fit(predict, *args, budget="85%")
    assert not found.plan.changes_nothing
    assert found.memory.total_bytes <= found.plan.budget_bytes
    close(jax.jit(predict)(*args), found(*args), 64)


def test_no_step_is_below_its_bound():
    def predict(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    args = base()[1]
    found = recoup.fit(predict, *args, budget=8 * MIB)
    assert found.plan.lower_bound_bytes <= found.memory.total_bytes


def test_closed_over_arrays_are_memory_too():
    big = normal(5, 256, 256)
    step = sgd(lambda w, x: jnp.mean(jnp.tanh(x @ w @ big) ** 2))
    args = (normal(0, 32, 256), normal(1, 16, 32))
    found = recoup.fit(step, *args, budget=8 * MIB)
    assert found.memory.constants_bytes == big.nbytes
    assert found.memory.total_bytes > big.nbytes
    with pytest.raises(BudgetError):
        recoup.fit(step, *args, budget=big.nbytes)


def test_effects_run_once(capfd):
    def loss(params, x):
        for i, w in enumerate(params):
            x = jnp.tanh(jnp.tanh(x @ w) * 2.0)
            jax.debug.print("layer {i} {v}", i=i, v=x[0, 0] * 0.0 + i)
        return jnp.mean(x * x)

    step, args = sgd(loss), base()[1]
    found = recoup.fit(step, *args, budget="85%")
    assert not found.plan.changes_nothing
    jax.block_until_ready(found(*args))
    jax.effects_barrier()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("layer")]
    assert sorted(line.split()[1] for line in lines) == [str(i) for i in range(6)]


def test_custom_derivatives_loops_and_branches_in_the_model():
    @jax.custom_vjp
    def clipped(x):
        return jnp.tanh(x)

    clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (jnp.clip(g, -1e-4, 1e-4) * jnp.cos(x),))

    @jax.custom_jvp
    def softened(x):
        return jnp.tanh(x)

    softened.defjvp(lambda p, t: (jnp.tanh(p[0]), t[0] * jnp.cos(p[0])))

    def loss(params, x, p):
        turns = jax.lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, jnp.float32(0.0))
        for i, w in enumerate(params):
            x = (clipped if i % 2 else softened)(x @ w) * turns
            x = jax.lax.cond(p, lambda x, w: jnp.sin(x @ w), lambda x, w: x, x, w) if i == 2 else x
        return jnp.mean(x * x)

    step, args = sgd(loss), (*base()[1], jnp.asarray(True))
    found = recoup.fit(step, *args, budget="85%")
    assert not found.plan.changes_nothing
    close(jax.jit(step)(*args), found(*args), 64)


def regions_step():
    def block(w, x):
        return jnp.tanh(jnp.tanh(jnp.tanh(x @ w) * 2.0) @ w)

    def loss(params, x):
        for w in params:
            x = jax.checkpoint(block)(w, x)
        return jnp.mean(x * x)

    return sgd(loss)


def test_regions_of_the_users_own():
    step, args = regions_step(), base()[1]
    respected = recoup.plan(step, *args, budget="100%")
    replanned = recoup.plan(step, *args, budget="100%", regions="replan")
    assert respected.regions == "respect" and replanned.regions == "replan"
    # Dissolved, the step recomputes nothing of its own accord: it costs less and keeps more.
    assert replanned.flops < respected.flops
    found = recoup.fit(step, *args, budget="70%", regions="replan")
    assert not found.plan.changes_nothing and found.memory.total_bytes <= found.plan.budget_bytes
    close(jax.jit(step)(*args), found(*args), 16)
    with pytest.raises(ValueError, match="respect"):
        recoup.plan(step, *args, budget="70%", regions="maybe")


def test_save_load_and_apply(tmp_path: Path):
    step, args, _, results = base()
    plan = recoup.plan(step, *args, budget="80%")
    path = tmp_path / "plan.json"
    plan.save(path)
    with pytest.raises(FileExistsError):
        plan.save(path)
    plan.save(path, force=True)
    loaded = recoup.Plan.load(path)
    assert loaded == plan
    near = int(1.1 * plan.budget_bytes)  # the plan's own size is a prediction
    for given in (path, str(path), loaded):
        found = recoup.fit(step, *args, plan=given, budget=near)
        assert found.compiles == 1 and found.plan == plan
        if given is path:
            assert found.memory.total_bytes <= near
            same(results, found(*args))
    with pytest.raises(BudgetError, match="stored plan"):
        recoup.fit(step, *args, plan=path, budget=found.memory.total_bytes - 1)


def test_a_plan_of_replanned_regions_applies_without_saying_so(tmp_path: Path):
    step, args = regions_step(), base()[1]
    plan = recoup.plan(step, *args, budget="75%", regions="replan")
    plan.save(tmp_path / "regions.json")
    near = int(1.1 * plan.budget_bytes)  # the plan's own size is a prediction
    found = recoup.fit(step, *args, plan=tmp_path / "regions.json", budget=near)
    assert 0 < found.memory.total_bytes <= near and found.plan == plan
    close(jax.jit(step)(*args), found(*args), 16)


def test_a_plan_of_loops_applies(tmp_path: Path):
    from .test_loop_pairs import lstm

    step, args = lstm(steps=12)
    plan = recoup.plan(step, *args, budget="75%")
    assert plan.loops
    plan.save(tmp_path / "loops.json")
    near = int(1.1 * plan.budget_bytes)
    found = recoup.fit(step, *args, plan=tmp_path / "loops.json", budget=near)
    assert 0 < found.memory.total_bytes <= near
    close(jax.jit(step)(*args), found(*args), 64)


def test_a_plan_for_another_step_says_what_differs(tmp_path: Path):
    step, (params, x), _, _ = base()
    plan = recoup.plan(step, params, x, budget="80%")
    for other in [(params[:-1], x), (params, x[:-1])]:
        with pytest.raises(PlanError, match="another step") as error:
            recoup.fit(step, *other, plan=plan)
        assert str(error.value).startswith("[E-PLAN-001]") and "What differs" in str(error.value)
    with pytest.raises(PlanError, match="another step"):
        recoup.fit(sgd(lambda p, x: mlp_loss(p, x * 2.0)), params, x, plan=plan)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "\x00\xff",
        lambda text: text.replace('"format": 1', '"format": 99'),
        lambda text: text.replace('"peak_bytes"', '"peek_bytes"'),
        lambda text: re.sub(r'"before": \d+', '"before": "x"', text, count=1),
    ],
    ids=["cut", "list", "binary", "format", "missing", "type"],
)
def test_a_damaged_file(tmp_path: Path, damage):
    path = tmp_path / "plan.json"
    path.write_text(damage(saved_plan().to_json()))
    with pytest.raises(PlanError) as error:
        recoup.Plan.load(path)
    assert str(path) in str(error.value)


@functools.cache
def saved_plan():
    step, args, _, _ = base()
    return recoup.plan(step, *args, budget="80%")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["repeats"][0]["ops"].append(10**6),
        lambda d: d["repeats"][0]["ops"].append(-1),
        lambda d: d["repeats"].insert(0, {"before": 0, "ops": [5]}),
        lambda d: d["repeats"][0].update(before=10**6),
        lambda d: d["loops"].append({"forward": 0, "backward": 1, "kept": [], "recomputed": []}),
    ],
    ids=["no such operation", "negative", "before its first", "beyond the end", "no such loop"],
)
def test_a_plan_that_was_edited_is_never_applied_wrongly(change):
    data = json.loads(saved_plan().to_json())
    change(data)
    step, args, _, _ = base()
    with pytest.raises(PlanError):
        recoup.fit(step, *args, plan=recoup.Plan.from_dict(data), budget=8 * MIB)


def test_a_sweep_of_budgets_on_a_gpt_with_dropout():
    step, args = gpt(layers=1, drop=True, time=128)
    plain = jax.jit(step)(*args)
    ladder_top = recoup.plan(step, *args, budget="100%").unplanned_bytes
    peak, cost, fits = float("inf"), -1.0, 0
    for share in (1.1, 0.95, 0.9, 0.85, 0.8, 0.75):
        budget = int(share * ladder_top)
        try:
            found = recoup.fit(step, *args, budget=budget)
        except BudgetError:
            break
        assert found.memory.total_bytes <= budget
        assert found.memory.total_bytes <= peak
        # Rungs are ordered by price, which counts bytes too: FLOPs alone may fall a little.
        assert found.plan.extra_flops >= cost - 0.002 * found.plan.flops
        peak, cost, fits = found.memory.total_bytes, found.plan.extra_flops, fits + 1
        close(plain, found(*args), 64)
    assert fits >= 4


@pytest.mark.parametrize("regions", ["respect", "replan"])
def test_the_newer_remat_of_jax(regions):
    code = f"""
import jax
jax.config.update("jax_remat3", True)
import recoup
from tests.spine.helpers import close, mlp
from tests.spine.test_fit import regions_step
step, args = regions_step(), mlp()[1]
found = recoup.fit(step, *args, budget="100%", regions={regions!r})
assert found.memory.total_bytes <= found.plan.budget_bytes
close(jax.jit(step)(*args), found(*args), 16)
respected = recoup.plan(step, *args, budget="100%").flops
assert {regions!r} == "respect" or found.plan.flops < respected
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_lowest_rung_of_those_that_are_left():
    # Two rungs are predicted alike; the first compiled higher than that, the second is still to be tried.
    steps = tuple(types.SimpleNamespace(predicted_bytes=size) for size in (90, 70, 40, 40, 60))
    ladder = Ladder(steps, (), (), None)
    assert [ladder.lowest(start) for start in range(6)] == [2, 2, 2, 3, 4, None]
