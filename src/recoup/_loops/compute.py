"""What each of the loop primitives computes, in terms of the engine and of one another; see `primitives`."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive

from recoup._loops import engine
from recoup._loops.engine import Cache
from recoup._loops.spec import Active, Loop, Mask, activity, pick, spread, tangent_loop

# Registered in `primitives`; made here because `second` is computed with two of the others.
run_p: Any = Primitive("recoup_loop")
tangent_p: Any = Primitive("recoup_loop_tangent")
reverse_p: Any = Primitive("recoup_loop_reverse")
second_p: Any = Primitive("recoup_loop_second")

State = list[Any]


def take(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Cut a flat list into pieces; the last piece is what is left."""
    out, at = [], 0
    for size in sizes:
        out.append(list(flat[at : at + size]))
        at += size
    out.append(list(flat[at:]))
    return out


def cache_size(loop: Loop) -> int:
    return 4 + loop.num_carry


def parts(loop: Loop, args: Sequence[Any]) -> tuple[State, State, State, State, State]:
    """(consts, init, xs, cache, rest) of the operands of all primitives but `run`."""
    consts, init, xs, cache, rest = take(args, loop.num_consts, loop.num_carry, loop.num_xs, cache_size(loop))
    return consts, init, xs, cache, rest


def compute_run(*args: Any, loop: Loop, save: bool) -> State:
    count, *operands = args
    consts, init, xs = loop.split(operands)
    if not save:
        carry, ys, _ = engine.plain(loop, count, consts, init, xs)
        return [*carry, *ys]
    carry, ys, cache = engine.forward(loop, count, consts, init, xs)
    return [*carry, *ys, *cache.flat()]


def compute_tangent(*args: Any, loop: Loop, active: Active) -> State:
    consts, init, xs, cache, d = parts(loop, args)
    pairs, operands = pair_operands(loop, active, consts, init, xs, d)
    carry, ys, _ = engine.plain(pairs, cache[0], *pairs.split(operands))
    return tangent_half(loop, [*carry, *ys], active)


def compute_reverse(*args: Any, loop: Loop, active: Active, cts: tuple[Mask, Mask]) -> State:
    consts, init, xs, cache, ct = parts(loop, args)
    ct_carry, ct_ys = take(ct, sum(cts[0]))
    given = spread(cts[0], ct_carry)
    full = [
        jnp.zeros_like(a) if g is None else g for a, g, m in zip(init, given, active.carry, strict=True) if m
    ]
    g_consts, g_carry, g_xs = engine.backward(
        loop.silent(), active, consts, xs, Cache.of(cache), full, spread(cts[1], ct_ys)
    )
    g_init = pick(spread(active.carry, g_carry), active.init)
    return [*g_consts, *g_init, *g_xs]


def compute_second(
    *args: Any, loop: Loop, active: Active, cts: tuple[Mask, Mask], outer: Active, dcts: tuple[Mask, Mask]
) -> State:
    consts, init, xs, cache, rest = parts(loop, args)
    ct, rest = take(rest, sum(cts[0]) + sum(cts[1]))
    d, dct = take(rest, sum(outer.consts) + sum(outer.init) + sum(outer.xs))
    pairs, operands = pair_operands(loop, outer, consts, init, xs, d)
    p_consts, p_init, p_xs = pairs.split(operands)
    # cotangents of (carry, tangents of the active carries, ys, tangents of the active ys)
    ct_carry, ct_ys = (spread(m, c) for m, c in zip(cts, take(ct, sum(cts[0])), strict=True))
    dct_carry, dct_ys = (spread(m, c) for m, c in zip(dcts, take(dct, sum(dcts[0])), strict=True))
    all_carry = [*dct_carry, *pick(ct_carry, outer.carry)]
    all_ys = [*dct_ys, *pick(ct_ys, outer.ys)]
    wanted = activity(
        pairs,
        [*active.consts, *[False] * sum(outer.consts)],
        [*active.init, *[False] * sum(outer.carry)],
        [*active.xs, *[False] * sum(outer.xs)],
    )
    # a tangent output that does not move with the wanted operands passes nothing back
    all_carry = [c if a else None for c, a in zip(all_carry, wanted.carry, strict=True)]
    all_ys = [c if a else None for c, a in zip(all_ys, wanted.ys, strict=True)]
    out = run_p.bind(cache[0], *operands, loop=pairs, save=True)
    pair_cache = out[pairs.num_carry + pairs.num_ys :]
    masks = (tuple(c is not None for c in all_carry), tuple(c is not None for c in all_ys))
    given = [c for c in [*all_carry, *all_ys] if c is not None]
    result: State = reverse_p.bind(
        *p_consts, *p_init, *p_xs, *pair_cache, *given, loop=pairs, active=wanted, cts=masks
    )
    return result


def pair_operands(
    loop: Loop, active: Active, consts: State, init: State, xs: State, d: Sequence[Any]
) -> tuple[Loop, State]:
    """The loop of pairs and its operands; tangents that a carry acquires only on the way start as zeros."""
    dc, di, dx = take(d, sum(active.consts), sum(active.init))
    given = spread(active.init, di)
    dk = [
        jnp.zeros_like(a) if g is None else g for a, g, m in zip(init, given, active.carry, strict=True) if m
    ]
    return tangent_loop(loop, active), [*consts, *dc, *init, *dk, *xs, *dx]


def tangent_half(loop: Loop, outs: Sequence[Any], active: Active) -> State:
    _, dk, _, dy = take(outs, loop.num_carry, sum(active.carry), loop.num_ys)
    return [*dk, *dy]
