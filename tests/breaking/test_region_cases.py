"""Behaviours that go wrong silently, as tests of regions: the numbers that `tests/regions` does not have.

`tests/regions/test_cases.py` has 1 to 10, 16 to 18 and 22, `test_granularity.py` 11 and `test_policies.py`
12; their counterparts for `fit` are in `test_cases.py`.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup.errors import BudgetError, PlanError

from .test_cases import WEIGHTS, X, chain, dropped, layer, run_alone


def regions_loss(weights: Any, x: Any, every: int = 1) -> Any:
    """The chain with a region around every so many layers."""
    for i in range(0, len(weights), every):
        part = lambda x, w: functools.reduce(layer, w, x)
        x = recoup.checkpoint(part)(x, weights[i : i + every])
    return jnp.mean(x * x)


grads = jax.value_and_grad(regions_loss)


def masked(weights: Any, x: Any, key: Any, size: int) -> Any:
    """Layers with dropout, in regions of `size` layers; 0 for none."""

    def part(x: Any, group: Any, keys: Any) -> Any:
        for w, k in zip(group, keys, strict=True):
            x = jnp.where(jax.random.bernoulli(k, 0.8, x.shape), layer(x, w), jnp.zeros_like(x))
        return x

    call = recoup.checkpoint(part) if size else part
    keys, step = list(jax.random.split(key, len(weights))), size or len(weights)
    for i in range(0, len(weights), step):
        x = call(x, weights[i : i + step], keys[i : i + step])
    return jnp.mean(x * x)


def test_case_13_fewer_bytes_cost_more_and_give_the_same_numbers() -> None:
    """Regions of each size by hand, with dropout: none saves without paying, all agree."""
    weights, points, results = WEIGHTS * 2, [], []
    for size in (0, 1, 2, 5):
        step = jax.value_and_grad(functools.partial(masked, size=size))
        compiled = jax.jit(step).lower(weights, X, jax.random.key(4)).compile()
        text = compiled.as_text()
        points.append((compiled.memory_analysis().temp_size_in_bytes, text.count(" dot(")))
        results.append(compiled(weights, X, jax.random.key(4)))
    plain = points[0]
    assert all(p[0] < plain[0] and p[1] >= plain[1] for p in points[1:]), points
    for other in results[1:]:
        for a, b in zip(jax.tree.leaves(results[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)


def test_case_13_a_budget_swept_over_a_step_with_regions() -> None:
    plain = recoup.fit(grads, WEIGHTS * 2, X, budget="100%").memory.total_bytes
    found: list[recoup.Fitted] = []
    for share in (1.0, 0.95, 0.9, 0.85):
        try:
            found.append(recoup.fit(grads, WEIGHTS * 2, X, budget=int(share * plain)))
        except BudgetError:
            break
        assert found[-1].memory.total_bytes <= share * plain
        assert recoup.check(grads, found[-1], WEIGHTS * 2, X)
    peaks = [f.memory.total_bytes for f in found]
    assert peaks == sorted(peaks, reverse=True)


def test_case_14_a_budget_that_regions_cannot_meet_and_one_they_meet() -> None:
    with pytest.raises(BudgetError, match=r"Smallest peak found.*No plan can be below") as error:
        recoup.fit(grads, WEIGHTS, X, budget="30 KiB")
    assert "test_cases.py:" in str(error.value) or "test_region_cases.py:" in str(error.value)
    found = recoup.fit(grads, WEIGHTS, X, budget="100%")
    assert found.plan.changes_nothing and "runs as it is" in str(found.plan)
    chained = recoup.fit(jax.value_and_grad(chain), WEIGHTS, X, budget="100%")
    assert found.memory.temporaries_bytes < chained.memory.temporaries_bytes  # the regions are left in place


def test_case_15_a_report_on_a_scan_of_50_regions() -> None:
    def loss(wrap: Any, w: Any, x: Any) -> Any:
        body = wrap(lambda x, _: (x + layer(layer(x, w), w), None))
        return jnp.mean(jax.lax.scan(body, x, None, length=50)[0] ** 2)

    plain = recoup.residuals(functools.partial(loss, lambda f: f), WEIGHTS[0], X)
    ours = recoup.residuals(functools.partial(loss, recoup.checkpoint), WEIGHTS[0], X)
    rows = [item for item in ours.items if item.iterations == 50]
    assert rows and all("test_region_cases.py" in item.source for item in rows)
    # a region of a scan's body keeps what it reads: the carry, of 50 steps
    assert sum(item.bytes for item in rows) == 50 * X.nbytes
    assert sum(item.per_iteration_bytes for item in rows) == X.nbytes
    assert plain.total_bytes >= 3 * ours.total_bytes and "50" in str(ours)


def test_case_19_a_region_within_a_loop_with_states_in_host_memory() -> None:
    def loss(scan: Any, wrap: Any, w: Any, x: Any) -> Any:
        return jnp.mean(scan(wrap(lambda c, _: (layer(layer(c, w), w), None)), x, None, length=24)[0] ** 2)

    offloaded = functools.partial(recoup.scan, checkpoints=4, store="host", store_every=6)
    ours = jax.jit(jax.grad(functools.partial(loss, offloaded, recoup.checkpoint)))(WEIGHTS[0], X)
    plain = jax.jit(jax.grad(functools.partial(loss, jax.lax.scan, lambda f: f)))(WEIGHTS[0], X)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-7)


SHARDED = """
import functools, jax, jax.numpy as jnp, recoup
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.breaking.test_cases import WEIGHTS, X, chain
from tests.breaking.test_region_cases import grads
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jnp.concatenate([X] * 8)
rows = jax.device_put(x, NamedSharding(mesh, P("d")))
weights = jax.device_put(WEIGHTS * 2, NamedSharding(mesh, P()))
compiled = [jax.jit(f).lower(weights, rows).compile() for f in (grads, jax.value_and_grad(chain))]
ours, plain = (c.memory_analysis() for c in compiled)
assert ours.argument_size_in_bytes == plain.argument_size_in_bytes
assert ours.argument_size_in_bytes == sum(w.nbytes for w in weights) + x.nbytes // 8
assert ours.temp_size_in_bytes < 0.7 * plain.temp_size_in_bytes, (ours, plain)
single = jax.jit(grads)(WEIGHTS * 2, x)
for a, b in zip(jax.tree.leaves(compiled[0](weights, rows)), jax.tree.leaves(single), strict=True):
    assert jnp.allclose(jax.device_get(a), b, rtol=1e-4, atol=1e-6)
"""


def test_case_20_regions_on_8_devices() -> None:
    found = run_alone(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert found.returncode == 0, found.stderr[-3000:]


def test_case_21_a_plan_of_the_step_without_regions_is_refused(tmp_path: Path) -> None:
    recoup.plan(jax.value_and_grad(chain), WEIGHTS, X, budget="80%").save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"another step .*differ"):
        recoup.fit(grads, WEIGHTS, X, plan=tmp_path / "plan.json")
    coarser = jax.value_and_grad(functools.partial(regions_loss, every=5))
    recoup.plan(grads, WEIGHTS, X, budget="100%").save(tmp_path / "regions.json")
    with pytest.raises(PlanError, match=r"another step .*differ"):
        recoup.fit(coarser, WEIGHTS, X, plan=tmp_path / "regions.json")


def test_case_2_regions_of_the_users_own_inside_fit_draw_the_same_masks() -> None:
    state = {"rng": {"dropout": jax.random.key(7)}}
    plain = jax.jit(dropped)(WEIGHTS, X, state)
    by_hand = jax.jit(jax.checkpoint(dropped))(WEIGHTS, X, state)
    for a, b in zip(jax.tree.leaves(plain[0]), jax.tree.leaves(by_hand[0]), strict=True):
        np.testing.assert_array_equal(a, b)
