"""Loops whose body is a training step of its own: accumulated gradients, planned inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup.errors import PlanError


def _loss(params, x):
    for p in params:
        h = jnp.tanh(x @ p["a"])
        h = jnp.tanh(h * h)
        x = x + jnp.tanh(h @ p["b"])
    return jnp.square(x).mean()


def step(params, microbatches):
    """One update with the gradient accumulated over microbatches."""

    def one(total, x):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(_loss)(params, x)), None

    zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    (loss, grads), _ = jax.lax.scan(one, zero, microbatches)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


@pytest.fixture(scope="module")
def args():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape).astype(np.float32) * 0.1)

    params = [{"a": normal(32, 128), "b": normal(128, 32)} for _ in range(4)]
    return params, normal(3, 256, 32)


def _budget(args, share):
    memory = jax.jit(step).lower(*args).compile().memory_analysis()
    fixed = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return int(fixed + share * memory.temp_size_in_bytes)


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_accumulated_gradients_are_fitted(args, share):
    fitted = recoup.fit(step, *args, budget=_budget(args, share))
    assert fitted.plan.bodies
    assert fitted.memory.total_bytes <= _budget(args, share)
    for ours, plain in zip(
        jax.tree.leaves(fitted(*args)), jax.tree.leaves(jax.jit(step)(*args)), strict=True
    ):
        np.testing.assert_array_equal(ours, plain)


def test_the_recomputation_is_in_the_compiled_loop(args):
    fitted = recoup.fit(step, *args, budget=_budget(args, 0.5))
    assert "recoup_recompute" in fitted.compiled.as_text()
    again = [d for d in fitted.plan.decisions if d.action == "recompute"]
    assert again and all(d.iterations == 3 for d in again)
    assert sum(d.flops for d in fitted.plan.decisions) == pytest.approx(fitted.plan.extra_flops)


def test_a_plan_with_a_body_travels_as_a_file(args, tmp_path):
    fitted = recoup.fit(step, *args, budget=_budget(args, 0.5))
    fitted.plan.save(tmp_path / "plan.json")
    again = recoup.fit(step, *args, plan=tmp_path / "plan.json")
    assert again.memory == fitted.memory
    assert recoup.Plan.load(tmp_path / "plan.json").bodies == fitted.plan.bodies


def test_a_plan_of_a_body_that_is_no_loop_is_refused(args):
    from dataclasses import replace

    plan = recoup.fit(step, *args, budget=_budget(args, 0.5)).plan
    moved = replace(plan, bodies=(replace(plan.bodies[0], at=10**6),))
    with pytest.raises(PlanError, match="which is no loop"):
        recoup.fit(step, *args, plan=moved)
