"""What a plan minimises: seconds by a roofline, in loops too, and the quickest plan within a budget."""

import functools
import itertools
import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import _cost, _ladder, _objective
from recoup._calibrate import Roofline
from recoup._trace import trace
from tests.spine.helpers import mlp

# pages are handed out at 1 GB/s, or at once
SLOW = Roofline("slow pages", "0", 1e11, 1e11, 2e10, 1e9, 1e10, 1e9, 1e9)
FAST = replace(SLOW, device="fast pages", fresh_bytes=1e15)


@functools.cache
def ladder(rates: Roofline) -> Any:
    step, args = mlp()
    with _objective.minimizing(rates):
        return _ladder.build(trace(step, args))


def test_prices_are_those_of_the_roofline_while_it_is_open() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c) @ c, None), x, None, length=3)[0]

    jaxpr = jax.make_jaxpr(loop)(jnp.ones((64, 64)))
    eqn = jaxpr.eqns[0]
    counted = _cost.price(eqn)
    with _objective.minimizing(SLOW) as rates:
        assert rates is SLOW
        assert _cost.price(eqn) == SLOW.price(eqn) != counted
        with pytest.raises(ZeroDivisionError), _cost.priced(lambda *_: 1 / 0):
            _cost.price(eqn)
        assert _cost.price(eqn) == SLOW.price(eqn)
    assert _cost.price(eqn) == counted
    with _objective.minimizing("flops") as rates:
        assert rates is None and _cost.price(eqn) == counted
    for wrong in ("time", None, 1.0):
        with pytest.raises(ValueError, match=r'give "flops", "seconds" or a Roofline'):
            recoup.plan(*mlp(), budget="80%", minimize=wrong)  # type: ignore[arg-type]


def test_where_pages_cost_nothing_the_cheapest_plan_is_the_quickest() -> None:
    made = ladder(FAST)
    for k in range(len(made.steps)):
        assert _objective.quickest(made, k, FAST, lambda _: True) == k


def test_where_pages_cost_the_quickest_plan_may_hold_less_and_never_more() -> None:
    made = ladder(SLOW)
    seconds = [_objective.extra_seconds(step, SLOW) for step in made.steps]
    chosen = [_objective.quickest(made, k, SLOW, lambda _: True) for k in range(len(made.steps))]
    assert chosen[0] > 0 and all(k >= at for at, k in enumerate(chosen))
    assert all(seconds[k] <= seconds[at] for at, k in enumerate(chosen))
    assert _objective.quickest(made, 0, SLOW, lambda _: False) == 0  # nothing else fits
    # a smaller budget is never quicker, to the percent that a plan must gain
    whole = sum(op.cost for op in made.traced.program.ops) / SLOW.product_flops + seconds[0]
    times = [seconds[k] for k in chosen]
    assert all(b >= a - 0.02 * whole for a, b in itertools.pairwise(times))


def test_fit_takes_a_quicker_plan_than_the_step_as_it_is(tmp_path: Any) -> None:
    step, args = mlp()
    plain = recoup.fit(step, *args, budget="100%")
    fitted = recoup.fit(step, *args, budget="100%", minimize=SLOW, check=True)
    assert plain.plan.changes_nothing and not plain.plan.time
    assert fitted.memory.total_bytes < plain.memory.total_bytes
    share = float(fitted.plan.time.split()[0])
    assert 0.3 < share < 0.99
    assert "roofline of slow pages, predicted" in fitted.plan.time
    assert f"Time: {fitted.plan.time}" in str(fitted.plan).replace("\n", " ")
    assert json.loads(fitted.plan.to_json())["made_with"]["time"] == fitted.plan.time
    fitted.report(tmp_path / "report.html")
    assert fitted.plan.time in (tmp_path / "report.html").read_text()
    same = recoup.fit(step, *args, budget="100%", minimize=FAST)
    assert same.plan.changes_nothing and same.plan.time.startswith("1.00 of")


def test_a_budget_is_met_in_seconds_too() -> None:
    step, args = mlp()
    planned = recoup.plan(step, *args, budget="70%", minimize=SLOW)
    assert planned.peak_bytes <= planned.budget_bytes
    fitted = recoup.fit(step, *args, budget="70%", minimize=SLOW)
    assert fitted.memory.total_bytes <= fitted.plan.budget_bytes
    calls = recoup.jit(step, budget="70%", minimize=SLOW, quiet=True)
    assert jnp.array_equal(jax.tree.leaves(calls(*args))[0], jax.tree.leaves(fitted(*args))[0])


def test_seconds_are_those_of_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recoup._calibrate.calibrate", lambda: SLOW)
    step, args = mlp()
    assert "slow pages" in recoup.plan(step, *args, budget="70%", minimize="seconds").time
