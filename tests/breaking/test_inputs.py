"""What a user can get wrong in a call of `fit`, and what must come through unchanged."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup.errors import BudgetError, PlanError

KEY = jax.random.key(0)
WEIGHTS = [0.1 * jax.random.normal(jax.random.fold_in(KEY, i), (32, 32)) for i in range(4)]
STACK = jnp.stack(WEIGHTS * 2)
X = jax.random.normal(KEY, (128, 32))


def loss(weights: Any, x: Any) -> Any:
    for w in weights:
        x = x + jnp.tanh(jnp.tanh(x @ w) @ w)
    return jnp.mean(x * x)


def step(weights: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, grads), value


def scanned(stack: Any, x: Any) -> Any:
    body = lambda x, w: (x + jnp.tanh(jnp.tanh(x @ w) @ w), None)
    return jnp.sum(jax.lax.scan(body, x, stack)[0])


def equal(a: Any, b: Any) -> bool:
    return all(
        bool(jnp.array_equal(p, q)) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_a_result_that_is_no_array_is_named() -> None:
    def labelled(weights: Any, x: Any) -> Any:
        return {"new": step(weights, x), "note": "hi"}

    with pytest.raises(TypeError, match=r"labelled returns a str at result\['note'\]"):
        recoup.plan(labelled, WEIGHTS, X, budget="80%")


def test_errors_while_tracing_name_the_users_function() -> None:
    def decides(weights: Any, x: Any) -> Any:
        return step(weights, x) if x[0, 0] > 0 else x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"decides at .*test_inputs\.py"):
        recoup.plan(decides, WEIGHTS, X, budget="80%")

    def fails(weights: Any, x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        recoup.plan(fails, WEIGHTS, X, budget="80%")


@pytest.mark.parametrize(
    "given", [{"static_argnums": 7}, {"donate_argnums": -3}, {"static_argnames": "mode"}]
)
def test_positions_and_names_that_the_step_lacks(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="step"):
        recoup.plan(step, WEIGHTS, X, budget="80%", **given)


def test_negative_donation_counts_from_the_end() -> None:
    def swapped(x: Any, weights: Any) -> Any:
        return step(weights, x)

    fitted = recoup.fit(swapped, X, WEIGHTS, budget="100%", donate_argnums=-1)
    assert fitted.memory.aliased_bytes >= sum(w.nbytes for w in WEIGHTS)


def test_running_out_of_compilations_says_so() -> None:
    with pytest.raises(BudgetError, match="max_compiles=1"):
        recoup.fit(step, WEIGHTS, X, budget="70%", max_compiles=1)


@pytest.mark.parametrize(
    "change",
    [{"kept": [9999]}, {"recomputed": [9999]}, {"recomputed": [-1]}, {"recomputed": []}, {"kept": []}],
)
def test_a_damaged_loop_trade_is_refused(change: dict[str, Any]) -> None:
    grad = jax.grad(scanned)
    plan = recoup.plan(grad, STACK, X, budget="60%")
    data = copy.deepcopy(plan.to_dict())
    assert data["loops"]
    data["loops"] = [dict(data["loops"][0], **change)]
    with pytest.raises(PlanError):
        recoup.fit(grad, STACK, X, plan=recoup.Plan.from_dict(data))


@pytest.mark.parametrize("change", [{"before": -1}, {"before": 10**6}, {"ops": [-1]}, {"ops": [10**6]}])
def test_a_damaged_repeat_is_refused(change: dict[str, Any]) -> None:
    plan = recoup.plan(step, WEIGHTS, X, budget="75%")
    data = copy.deepcopy(plan.to_dict())
    assert data["repeats"]
    data["repeats"] = [dict(data["repeats"][0], **change)]
    with pytest.raises(PlanError):
        recoup.fit(step, WEIGHTS, X, plan=recoup.Plan.from_dict(data))


def test_the_smallest_peak_named_is_the_smallest() -> None:
    """A budget just above the smallest peak that an infeasible budget names can be planned."""
    with pytest.raises(BudgetError) as caught:
        recoup.plan(step, WEIGHTS, X, budget=1)
    text = str(caught.value).split("Smallest peak found: ")[1].split(" (predicted)")[0]
    number, unit = text.split()
    named = float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
    recoup.plan(step, WEIGHTS, X, budget=int(1.01 * named))
    with pytest.raises(BudgetError):
        recoup.plan(step, WEIGHTS, X, budget=int(0.98 * named))
