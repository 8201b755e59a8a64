"""A step divided by `shard_map`, as one device's program: when it is seen so, and what may run again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import recoup
from recoup import _compat, _cost
from recoup._trace import Traced, trace

MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
TWO_AXES = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
OTHER = AbstractMesh((8,), ("rows",), axis_types=(AxisType.Auto,))
PARTS, ALL = P("data"), P()
WEIGHTS = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
ROWS = jax.ShapeDtypeStruct((8 * 64, 256), jnp.float32)


def mapped(
    fun: Callable[..., Any],
    in_specs: Any = (PARTS, PARTS),
    out_specs: Any = ALL,
    mesh: AbstractMesh = MESH,
    **more: Any,
) -> Callable[..., Any]:
    return jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **more)


def loss(weights: Any, x: Any) -> Any:
    for w in weights:
        x = x + jnp.tanh(jnp.sin(x @ lax.all_gather(w, "data", tiled=True)))
    return lax.pmean(jnp.mean(x * x), "data")


def outside(weights: Any, x: Any) -> Any:
    """The gradient of a `shard_map`."""
    value, grads = jax.value_and_grad(mapped(loss))(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


def names(traced: Traced) -> set[str]:
    return {op.name for op in traced.program.ops}


def purity(traced: Traced, name: str) -> set[bool]:
    return {op.pure for op in traced.program.ops if op.name == name}


def test_bodies_are_seen_with_the_shapes_of_a_device() -> None:
    traced = trace(outside, (WEIGHTS, ROWS))
    assert traced.flat.shards is not None and "shard_map" not in names(traced)
    assert {v.aval.shape for v in traced.flat.invars} == {(32, 256), (64, 256)}
    largest = max(value.bytes for value in traced.program.values)
    assert largest == 256 * 256 * 4  # a gathered weight; nothing has the size of whole activations


def test_the_program_of_whole_arrays_comes_back() -> None:
    flat = trace(outside, (WEIGHTS, ROWS)).flat
    closed, _ = _compat.open_jaxpr(flat.closed())
    maps = [eqn for eqn in closed.eqns if eqn.primitive.name == "shard_map"]
    assert len(maps) == 2  # forward and backward
    shapes = jax.eval_shape(lambda *args: _compat.eval_jaxpr(flat.closed(), *args), *WEIGHTS, ROWS)
    assert [s.shape for s in shapes] == [(256, 256)] * 4 + [()]


@pytest.mark.parametrize("checked", [True, False])
def test_a_gather_may_run_again_and_a_sum_may_not(checked: bool) -> None:
    traced = trace(
        mapped(jax.value_and_grad(loss), out_specs=(P("data"), P())[::-1], check_vma=checked), (WEIGHTS, ROWS)
    )
    assert purity(traced, "all_gather") == {True}
    assert purity(traced, "psum_invariant" if checked else "psum") == {False}
    assert purity(traced, "reduce_scatter") == {False}
    received = {op.gathered_bytes for op in traced.program.ops if op.name == "all_gather"}
    assert received == {(256 - 32) * 256 * 4}


def test_nothing_under_a_branch_or_in_a_loop_with_a_sum_may_run_again() -> None:
    def body(weights: Any, x: Any) -> Any:
        flag = lax.axis_index("data") > 3
        gather = lambda x: lax.all_gather(x, "data", tiled=True).sum()
        once = lax.cond(flag, lambda x: x.sum(), lambda x: 2 * x.sum(), x)
        twice = lax.cond(lax.pmax(x.sum(), "data") > 3, gather, lambda x: x.sum(), x)
        turns = lax.scan(lambda c, w: (c + lax.psum(w.sum(), "data"), None), 0.0, x)[0]
        return lax.pmean(once + twice + turns, "data")

    traced = trace(mapped(body, check_vma=False), (WEIGHTS, ROWS))
    assert [op.pure for op in traced.program.ops if op.name == "cond"] == [True, False]
    assert purity(traced, "scan") == {False}


def planned(share: float) -> recoup.Plan:
    whole = recoup.plan(outside, WEIGHTS, ROWS, budget="100%").unplanned_bytes
    return recoup.plan(outside, WEIGHTS, ROWS, budget=int(share * whole))


def test_what_devices_exchange_has_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are recomputed instead, until that is not enough."""
    assert planned(0.91).gathers == 0
    tight = planned(0.75)
    assert tight.gathers > 0 and tight.gathered_bytes == tight.gathers * (256 - 32) * 256 * 4
    assert "gathered again" in str(tight)
    monkeypatch.setattr(_cost, "LINK_FLOPS_PER_BYTE", 0.0)
    assert planned(0.91).gathers > 0


def test_a_plan_is_stored_with_what_it_gathers() -> None:
    made = planned(0.75)
    assert made.gathers
    again = recoup.Plan.from_dict(made.to_dict())
    assert (again.gathers, again.gathered_bytes) == (made.gathers, made.gathered_bytes)
    old = {k: v for k, v in made.to_dict().items() if not k.startswith("gather")}
    assert recoup.Plan.from_dict(old).gathers == 0


def _on_whole_arrays(weights: Any, x: Any) -> Any:
    return mapped(loss)([w @ w for w in weights], x)


def _mixed_outside(weights: Any, x: Any) -> Any:
    """Of the same shape, but no elementwise operation."""
    return mapped(loss)([w.T for w in weights], x)


def _two_meshes(weights: Any, x: Any) -> Any:
    return mapped(loss)(weights, x) + mapped(lambda x: lax.pmean(x.sum(), "rows"), P("rows"), mesh=OTHER)(x)


def _partly_manual(weights: Any, x: Any) -> Any:
    return mapped(loss, mesh=TWO_AXES, axis_names={"data"})(weights, x)


def _moved_between(weights: Any, x: Any) -> Any:
    x = lax.with_sharding_constraint(x, jax.sharding.NamedSharding(MESH, P()))
    return mapped(loss)(weights, x)


@pytest.mark.parametrize(
    "step", [_on_whole_arrays, _mixed_outside, _two_meshes, _partly_manual, _moved_between]
)
def test_other_steps_keep_it_as_one_operation(step: Callable[..., Any]) -> None:
    traced = trace(step, (WEIGHTS, ROWS))
    assert traced.flat.shards is None and "shard_map" in names(traced)


def test_bodies_with_nothing_in_them_and_prints_outside() -> None:
    def empty(weights: Any, x: Any) -> Any:
        return mapped(lambda x: x, PARTS, PARTS)(x)

    def printed(weights: Any, x: Any) -> Any:
        value = mapped(loss)(weights, x)
        jax.debug.print("{}", value)
        return value

    assert trace(empty, (WEIGHTS, ROWS)).flat.shards is None
    assert trace(printed, (WEIGHTS, ROWS)).flat.shards is not None


def test_an_optimizer_outside_works_on_parts() -> None:
    """Norms, moments that nothing else divides, and scalars spread to an array."""

    def step(weights: Any, moments: Any, count: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(mapped(loss))(weights, x)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
        moments = [0.9 * m + jnp.full_like(g, 0.1) * g / norm for m, g in zip(moments, grads, strict=True)]
        rate = 0.1 / (1.0 + count)
        return [w - rate * m for w, m in zip(weights, moments, strict=True)], moments, count + 1, value

    count = jax.ShapeDtypeStruct((), jnp.float32)
    traced = trace(step, (WEIGHTS, WEIGHTS, count, ROWS))
    assert traced.flat.shards is not None
    assert [v.aval.shape for v in traced.flat.invars] == [(32, 256)] * 8 + [(), (64, 256)]
    closed = traced.flat.closed()
    shapes = jax.eval_shape(lambda *a: _compat.eval_jaxpr(closed, *a), *WEIGHTS, *WEIGHTS, count, ROWS)
    assert [s.shape for s in shapes] == [(256, 256)] * 8 + [(), ()]
