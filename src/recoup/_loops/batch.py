"""Batching of the loop primitives: the loop of a batch is a loop.

An operand, its tangents and its cotangents are batched together, and what a gradient is taken of is batched,
because each member has a gradient of its own. Limit: only-cotangents batches (`jax.jacrev`) therefore hold
the states once a member although they are equal.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from recoup._loops.compute import State, parts, run_p, second_p, take, tangent_p
from recoup._loops.spec import (
    Active,
    Loop,
    Mask,
    batch_loop,
    batch_masks,
    counts_members,
    merge,
    pick,
    spread,
)


def _front(x: Any, dim: Any, at: int, size: int, wanted: bool) -> Any:
    """Batch axis to position `at`; a value that has none gets one if it is wanted."""
    if dim is None:
        if not wanted:
            return x
        x, dim = jnp.broadcast_to(x[None], (size, *x.shape)), 0
    return jnp.moveaxis(x, dim, at) if dim != at else x


def _axis(axis_data: Any) -> dict[str, Any]:
    """What `jax.vmap` needs to know for collectives in the body to find this axis."""
    out: dict[str, Any] = {}
    if isinstance(axis_data.name, str):
        out["axis_name"] = axis_data.name
    if axis_data.spmd_name is not None:
        out["spmd_axis_name"] = axis_data.spmd_name
    return out


def batched(dims: Sequence[Any]) -> list[bool]:
    return [d is not None for d in dims]


def _or(*masks: Sequence[bool]) -> list[bool]:
    return [any(m) for m in zip(*masks, strict=True)]


def _dims(mask: Sequence[bool], at: int) -> list[Any]:
    return [at if m else None for m in mask]


def _place(values: Sequence[Any], dims: Sequence[Any], mask: Sequence[bool], at: int, size: int) -> State:
    return [_front(v, d, at, size, m) for v, d, m in zip(values, dims, mask, strict=True)]


def run_batch(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, loop: Loop, save: bool) -> Any:
    size = axis_data.size
    steps = dims[0] is not None
    (count, *operands), (_, *op_dims) = args, dims
    (consts, init, xs), (dc, di, dx) = loop.split(operands), loop.split(op_dims)
    on_consts, on_xs = batched(dc), batched(dx)
    carry, ys, stop = batch_masks(loop, steps, on_consts, batched(di), on_xs)
    counted = counts_members(loop, steps, stop)
    many = batch_loop(loop, size, steps, on_consts, carry, on_xs, _axis(axis_data))
    consts = _place(consts, dc, on_consts, 0, size)
    init, xs = _place(init, di, carry, 0, size), _place(xs, dx, on_xs, 1, size)
    if steps:
        count = jnp.moveaxis(count, dims[0], 0)
        consts = [*consts, count]
    if stop:
        consts = [*consts, *init]
    most = jnp.max(count, initial=0) if steps else count
    zeros = [jnp.zeros((size,), jnp.int32)] if counted else []
    outs = run_p.bind(most, *consts, *init, *zeros, *xs, loop=many, save=save)
    results, went, out_ys, cache = take(outs, loop.num_carry, counted, loop.num_ys)
    out_dims = [*_dims(carry, 0), *_dims(ys, 1)]
    if save:
        # each member's own count: whatever is derived from this run must hold a member still after its last
        # step
        own = [count] if steps else went or cache[:1]
        cache = [*own, *cache[1 : 4 + loop.num_carry]]
        out_dims += [0 if steps or counted else None, None, None, None, *_dims(carry, 1)]
    return [*results, *out_ys, *cache], out_dims


def _one_by_one(prim: Any, size: int, args: Sequence[Any], dims: Sequence[Any], params: Any) -> Any:
    """Members in turn: for batches whose trip counts differ and were not made by the rule above."""
    on = batched(dims)
    still = [a for a, m in zip(args, on, strict=True) if not m]
    moving = [jnp.moveaxis(a, d, 0) for a, d, m in zip(args, dims, on, strict=True) if m]
    outs = lax.map(lambda m: prim.bind(*merge(on, m, still), **params), moving)
    return outs, [0] * len(outs)


def rest_batch(
    prim: Any,
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    loop: Loop,
    params: dict[str, Any],
) -> Any:
    """One rule for `tangent`, `reverse` and `second`: an operand, its tangents and cotangents are batched
    together."""
    size = axis_data.size
    consts, init, xs, cache, rest = parts(loop, args)
    dc, di, dx, dk, dr = parts(loop, dims)
    if any(batched(dk[1:4])):
        return _one_by_one(prim, size, args, dims, {**params, "loop": loop})
    # how often it ran is known by now; members that stopped earlier have counts of their own
    loop, steps = replace(loop, cond=None), dk[0] is not None
    count = jnp.moveaxis(cache[0], dk[0], 0) if steps else cache[0]
    active: Active = params["active"]
    linear = prim is not tangent_p
    on_consts, on_init, on_xs = batched(dc), _or(batched(di), batched(dk[4:])), batched(dx)
    groups = [active] if not linear else ([params["outer"]] if prim is second_p else [])
    rest_on = batched(dr)
    if linear:
        cts = params["cts"]
        _, rest_on = take(rest_on, sum(cts[0]) + sum(cts[1]))
        # each member has a gradient of its own, so what it is a gradient of is batched
        on_consts, on_xs = _or(on_consts, active.consts), _or(on_xs, active.xs)
        on_init = _or(on_init, active.carry)
        if groups:
            rest_on, _ = take(
                rest_on, sum(params["outer"].consts + params["outer"].init + params["outer"].xs)
            )
    for group in groups:
        g_consts, g_init, g_xs = take(rest_on, sum(group.consts), sum(group.init))
        on_consts = _or(on_consts, spread(group.consts, g_consts, False))
        on_init = _or(on_init, spread(group.init, g_init, False))
        on_xs = _or(on_xs, spread(group.xs, g_xs, False))
    carry, ys, _ = batch_masks(loop, steps, on_consts, on_init, on_xs)
    many = batch_loop(loop, size, steps, on_consts, carry, on_xs, _axis(axis_data))
    starts = _place(init, di, carry, 0, size)
    moved = [
        *_place(consts, dc, on_consts, 0, size),
        *([count, *starts] if steps else []),
        *starts,
        *_place(xs, dx, on_xs, 1, size),
        jnp.max(count, initial=0) if steps else count,
        *cache[1:4],
        *_place(cache[4:], dk[4:], carry, 1, size),
    ]
    wants: list[tuple[Mask, list[bool], int]] = []
    if linear:
        wants += [(params["cts"][0], carry, 0), (params["cts"][1], ys, 1)]
    for group in groups:
        wants += [(group.consts, on_consts, 0), (group.init, carry, 0), (group.xs, on_xs, 1)]
    if prim is second_p:
        wants += [(params["dcts"][0], carry, 0), (params["dcts"][1], ys, 1)]
    at = 0
    for mask, on, axis in wants:
        n = sum(mask)
        # a cotangent may be batched although its output is not (only where that output is inactive)
        flags = _or(pick(on, mask), [False] * n)
        moved += _place(rest[at : at + n], dr[at : at + n], flags, axis, size)
        at += n
    if steps:
        params = {
            k: _more_consts(v, 1 + len(init)) if isinstance(v, Active) else v for k, v in params.items()
        }
    outs = prim.bind(*moved, **{**params, "loop": many})
    if linear:
        out_dims = [*_dims(pick(on_consts, active.consts), 0), *_dims(pick(carry, active.init), 0)]
        out_dims += _dims(pick(on_xs, active.xs), 1)
    else:
        out_dims = [*_dims(pick(carry, active.carry), 0), *_dims(pick(ys, active.ys), 1)]
    return outs, out_dims


def _more_consts(active: Active, extra: int) -> Active:
    return replace(active, consts=(*active.consts, *[False] * extra))
