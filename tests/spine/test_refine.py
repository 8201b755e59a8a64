"""The dear end of a ladder, planned again: legal, never dearer at a budget, in order, the same every time."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recoup
from benchmarks.zoo import ZOO
from recoup import _ladder
from recoup._ladder import Ladder
from recoup._planner.anneal import anneal, condense
from recoup._planner.machine import execute, step_windows
from recoup._refine import refined
from recoup._solve import check
from recoup._trace import NEVER_REPEATED, trace
from recoup._verify import verify


@functools.cache
def ladders() -> tuple[Ladder, Ladder]:
    step, args = ZOO["unet"].make("small")
    plain = _ladder.build(trace(step, args))
    return plain, refined(plain, lambda _: False)


def new() -> list[Any]:
    before, after = ladders()
    known = {step.rung.schedule for step in before.steps}
    return [step for step in after.steps if step.rung.schedule not in known]


def test_the_dear_end_becomes_cheaper_and_nothing_dearer() -> None:
    before, after = ladders()
    assert after.refined is not None and new()
    assert before.steps[: after.refined] == after.steps[: after.refined]
    top, bottom = (before.steps[k].predicted_bytes for k in (after.refined, -1))
    ratios = []
    for budget in np.geomspace(top, bottom, 12).astype(int).tolist():
        old, found = before.first_within(budget), after.first_within(budget)
        assert old is not None and found is not None
        assert after.steps[found].predicted_bytes <= budget
        ratios.append(after.steps[found].cost / before.steps[old].cost)
    assert max(ratios) <= 1 + 1e-9 and min(ratios) < 0.8


def test_a_smaller_budget_is_never_cheaper() -> None:
    after = ladders()[1]
    costs = [step.cost for step in after.steps]
    assert costs == sorted(costs)
    assert after.refined is not None
    top, bottom = (after.steps[k].predicted_bytes for k in (after.refined - 1, -1))
    at = [after.first_within(b) for b in np.geomspace(top, bottom, 40).astype(int).tolist()]
    found = [after.steps[k].cost for k in at if k is not None]
    assert found == sorted(found)


def test_new_rungs_are_legal_and_repeat_at_windows_only() -> None:
    for step in new():
        program, plan, schedule = step.variant.program, step.variant.layout, step.rung.schedule
        run = execute(program, schedule, plan.windows)
        assert (run.peak_bytes, run.cost, run.flops) == (
            step.rung.peak_bytes, step.rung.cost, step.rung.flops,
        )  # fmt: skip
        verify(step.variant.flat, step.flat, NEVER_REPEATED)
        windows = step_windows(schedule, plan.window)
        seen: set[int] = set()
        for k, op in enumerate(schedule):
            if op in seen:
                assert plan.epoch[op] < max(plan.epoch) and program.ops[op].pure
                # what comes before the repeats of a window belongs to the one before
                first = next(i for i in range(k, len(schedule)) if schedule[i] not in seen)
                assert plan.window[schedule[first] - 1] < windows[k]
            seen.add(op)


@given(st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_folding_and_unfolding_keep_a_schedule(pick: int) -> None:
    before, _ = ladders()
    step = before.steps[pick % len(before.steps)]
    program, plan = step.variant.program, step.variant.layout
    small = condense(program, plan)
    order = small.folded(step.rung.schedule)
    assert check(small.graph, order, given=True).cost >= small.graph.total_cost
    again = small.unfolded(order, plan)
    run = execute(program, again, plan.windows)
    # what is computed inside an operation is counted with it, kept or not
    assert run.cost <= 1.02 * step.rung.cost
    # every operation with a buffer is repeated as often as before, in the same window
    kept = {o for o in range(len(program.ops)) if small.node[o] >= 0}
    ours, theirs = (
        [(o, w) for o, w in zip(s, step_windows(s, plan.window), strict=True) if o in kept]
        for s in (again, step.rung.schedule)
    )
    assert ours == theirs


def test_the_same_search_gives_the_same_rungs() -> None:
    before, _ = ladders()
    step = before.steps[-1]
    program, plan = step.variant.program, step.variant.layout
    once, twice = (anneal(program, plan, [step.rung], 2) for _ in range(2))
    assert once == twice and once
    large = anneal(program, plan, [step.rung], 0)
    assert large == []


def test_a_budget_above_the_dear_end_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = ladders()
    assert after.refined is not None

    def refuse(*_: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr("recoup._refine.anneal", refuse)
    limit = min(before.steps[k].predicted_bytes for k in before.last_cheap(after.refined))
    assert refined(before, lambda step: step.predicted_bytes <= limit) is before
    with pytest.raises(AssertionError, match="searched"):
        refined(before, lambda step: step.predicted_bytes < limit)


def test_a_plan_of_the_dear_end_is_stored_and_certified(tmp_path: Any) -> None:
    step, args = ZOO["unet"].make("small")
    rung = new()[0]
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    plan = recoup.plan(step, *structs, budget=rung.predicted_bytes)
    assert (plan.peak_bytes, plan.extra_flops) == (rung.predicted_bytes, rung.extra_flops)
    plan.save(tmp_path / "plan.json")
    fitted = recoup.fit(step, *structs, plan=tmp_path / "plan.json")
    assert fitted.memory.total_bytes <= rung.predicted_bytes
