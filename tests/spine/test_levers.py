"""The compiler's other order: taken where it meets the budget and a plan would be dear, and never silent."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import _fit, _levers, _memory
from recoup._cli import main
from recoup._instruments.subject import prepare
from recoup._ladder import build
from recoup._levers import DEPTH_FIRST, OPTIONS
from recoup._report.text import format_bytes
from recoup._trace import trace
from recoup.errors import BudgetError, PlanError

from .helpers import compiled, convnet, gpt, mlp, normal, same, temporaries
from .test_fit import total

OPTION = OPTIONS[DEPTH_FIRST]
SHOWN = "xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"


def branches(heads=6, time=64, width=8):
    """Attention, a head at a time, that nobody differentiates: there is nothing to recompute."""

    def evaluate(params, x):
        for _ in range(2):
            found = []
            for q, k, v in params:
                scores = jax.nn.softmax((x @ q) @ jnp.swapaxes(x @ k, -1, -2))
                found.append(scores @ (x @ v))
            x = jnp.concatenate(found, -1)
        return x

    weights = [[normal(3 * i + j, heads * width, width) for j in range(3)] for i in range(heads)]
    return evaluate, (weights, normal(99, 2, time, heads * width))


@functools.cache
def base():
    step, args = branches()
    plain = compiled(step, *args)
    return step, args, plain, plain(*args)


@functools.cache
def pulled():
    step, args, plain, _ = base()
    return recoup.fit(step, *args, budget=int(0.6 * total(plain)))


def test_branches_take_the_memory_of_one():
    _, args, plain, results = base()
    found = pulled()
    assert found.plan.lever == DEPTH_FIRST and found.plan.overhead == 0.0 and not found.plan.repeats
    assert not found.plan.changes_nothing
    assert found.memory.total_bytes <= found.plan.budget_bytes
    assert temporaries(found.compiled) < 0.5 * temporaries(plain)
    assert found.plan.peak_bytes == pytest.approx(found.memory.total_bytes, rel=0.02)
    assert found.compiles == 1  # predicted, not tried
    same(results, found(*args))


def test_near_the_size_of_the_step_as_it_is_that_one_is_measured_first():
    step, args, plain, _ = base()
    found = recoup.fit(step, *args, budget=total(plain) - 4096)
    assert found.plan.lever == DEPTH_FIRST
    assert found.compiles == 2 and found.unplanned_memory.total_bytes == total(plain)


def test_it_is_said_everywhere(capsys):
    step, args, _, _ = base()
    found = pulled()
    shown = str(found.plan)
    assert SHOWN in shown and max(map(len, shown.splitlines())) <= 80
    assert DEPTH_FIRST in repr(found)
    picture = found.picture()
    assert any(SHOWN in text for text in picture.notes) and "certified by the compiler" in picture.headline
    before, after = picture.strips
    assert after.estimate_bytes == found.plan.peak_bytes < before.estimate_bytes
    assert [rung.estimate_bytes for rung in picture.curve if rung.chosen] == [found.plan.peak_bytes]
    recoup.jit(step, budget=found.plan.budget_bytes)(*args)
    assert DEPTH_FIRST in capsys.readouterr().err


def test_the_option_goes_wherever_the_program_is_compiled_again():
    _, args, _, _ = base()
    found = pulled()
    assert temporaries(found.jitted.lower(*args).compile()) == found.memory.temporaries_bytes
    assert OPTION.items() <= prepare(found, args).options.items()


def test_a_stored_plan_brings_it_along(tmp_path: Path):
    step, args, _, results = base()
    path = tmp_path / "plan.json"
    pulled().plan.save(path)
    assert recoup.Plan.load(path) == pulled().plan
    found = recoup.fit(step, *args, plan=path)
    assert found.compiles == 1 and found.plan.lever == DEPTH_FIRST
    assert found.memory == pulled().memory
    same(results, found(*args))
    assert found.picture().strips[1].estimate_bytes == found.plan.peak_bytes
    # Not where the user has chosen an order.
    with pytest.raises(BudgetError, match="stored plan"):
        recoup.fit(
            step, *args, plan=path, compiler_options={"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_DEFAULT"}
        )


@pytest.mark.parametrize("lever", ["xla_dump_to=/tmp", 1, None])
def test_a_plan_file_cannot_bring_other_options(lever):
    data = pulled().plan.to_dict() | {"lever": lever}
    with pytest.raises(PlanError, match="lever"):
        recoup.Plan.from_dict(data)
    del data["lever"]  # files from before there were any
    assert recoup.Plan.from_dict(data).lever == ""


def test_it_can_be_switched_off():
    step, args, _, _ = base()
    budget = pulled().plan.budget_bytes
    with pytest.raises(BudgetError):
        recoup.fit(step, *args, budget=budget, levers=False)
    with pytest.raises(BudgetError):
        recoup.jit(step, budget=budget, levers=False)(*args)


def test_an_order_of_the_users_own_is_left_alone(monkeypatch):
    step, args, plain, _ = base()
    budget = pulled().plan.budget_bytes
    with pytest.raises(BudgetError):
        recoup.fit(
            step,
            *args,
            budget=budget,
            compiler_options={"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_DEFAULT"},
        )
    given = recoup.fit(step, *args, budget=total(plain), compiler_options=dict(OPTION))
    assert given.plan.lever == "" and given.memory.total_bytes == pulled().memory.total_bytes
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_concurrency_optimized_scheduler=true")
    with pytest.raises(BudgetError):
        recoup.fit(step, *args, budget=budget)


def test_other_backends_have_none(monkeypatch):
    step, args, _, _ = base()
    monkeypatch.setattr(_fit, "predictions_are_verified", lambda: False)
    with pytest.raises(BudgetError):
        recoup.fit(step, *args, budget=pulled().plan.budget_bytes)


def test_what_cannot_be_met_names_its_peak():
    step, args, _, _ = base()
    with pytest.raises(BudgetError) as error:
        recoup.fit(step, *args, budget=int(0.8 * pulled().memory.total_bytes))
    lever = _levers.offered(build(trace(step, args)).steps[0])
    assert f"Smallest peak found: {format_bytes(lever.predicted_bytes)} (predicted)" in str(error.value)


@pytest.mark.parametrize("make", [mlp, convnet])
def test_where_recomputing_is_cheap_it_is_not_used(make):
    step, args = make()
    plain = build(trace(step, args)).steps[0]
    lever = _levers.offered(plain)
    budget = int(0.9 * plain.predicted_bytes)
    found = recoup.fit(step, *args, budget=budget)
    assert found.plan.lever == "" and 0.0 < found.plan.overhead < _levers.PRICE
    assert make is mlp or lever.predicted_bytes < budget  # it would have fitted


def mixed():
    """Branches while a value that is cheap to compute again waits: a plan helps a little, the lever more."""
    evaluate, (weights, x) = branches(time=96)

    def step(weights, x, y):
        waits = jnp.tanh(jnp.sin(y))
        found = evaluate(weights, x * jnp.mean(waits))
        return found, jnp.sin(waits * jnp.mean(found)) @ y.T

    return step, (weights, x, normal(5, 256, 64))


def test_a_smaller_budget_never_gives_a_higher_peak_or_a_cheaper_plan():
    step, args = mixed()
    traced = trace(step, args)
    price = sum(op.cost for op in traced.program.ops)
    top = build(traced).steps[0].predicted_bytes
    peak, cost, used = float("inf"), -1.0, set()
    results = jax.jit(step)(*args)
    for share in (1.1, 0.95, 0.85, 0.7, 0.55, 0.35):
        try:
            found = recoup.fit(step, *args, budget=int(share * top))
        except BudgetError:
            break
        plan = found.plan
        assert found.memory.total_bytes <= min(peak, plan.budget_bytes)
        rungs = {s.extra_flops: s.cost for s in plan.evidence.ladder.steps}
        now = _levers.PRICE * price if plan.lever else rungs[plan.extra_flops]
        assert now >= cost
        peak, cost = found.memory.total_bytes, now
        used.add(plan.lever or ("plan" if plan.repeats else ""))
        same(results, found(*args))
    assert used == {"", "plan", DEPTH_FIRST}


@pytest.mark.parametrize("make", [branches, convnet, gpt, mixed])
def test_the_order_is_predicted(make):
    step, args = make()
    traced = trace(step, args)
    options = dict(OPTION)
    program = jax.jit(step).lower(*args).compile(compiler_options=options)
    predicted = _memory.predict(traced.flat.per_device(), donated=traced.donated, deep=True)
    assert predicted.estimate.temporaries_bytes == pytest.approx(temporaries(program), rel=0.02)
    assert predicted.low.temporaries_bytes <= temporaries(program) <= predicted.high.temporaries_bytes


def test_the_command_says_so(tmp_path: Path, capsys):
    file = tmp_path / "target.py"
    file.write_text("from tests.spine.test_levers import branches\n")
    target, budget = f"{file}:branches", str(pulled().plan.budget_bytes)
    assert main(["fit", target, "--budget", budget]) == 0
    shown = capsys.readouterr().out
    assert SHOWN in shown and f"one compilation, {DEPTH_FIRST}" in shown
    assert main(["fit", target, "--budget", budget, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["lever"] == DEPTH_FIRST
    assert main(["fit", target, "--budget", budget, "--no-levers"]) != 0
    assert "E-BUDGET-001" in capsys.readouterr().err
