"""Forward mode and transposition of the loop primitives; the algebra is in `primitives`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad as typed_ad

from recoup._loops.compute import (
    State,
    cache_size,
    compute_second,
    pair_operands,
    parts,
    reverse_p,
    run_p,
    second_p,
    take,
    tangent_half,
    tangent_p,
)
from recoup._loops.spec import Active, Loop, Mask, activity, differentiable, merge, pick, spread

ad: Any = typed_ad


def _given(t: Any) -> bool:
    return not isinstance(t, ad.Zero) and differentiable(t)


def _zero(primal: Any) -> Any:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def run_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, save: bool
) -> tuple[State, State]:
    _, *operands = primals
    consts, init, xs = loop.split(operands)
    given = [_given(t) for t in tangents[1:]]
    if not any(given):
        outs = run_p.bind(*primals, loop=loop, save=save)
        return outs, [_zero(o) for o in outs]
    active = activity(loop, *loop.split(given))
    outs = run_p.bind(*primals, loop=loop, save=True)
    results, cache = take(outs, loop.num_carry + loop.num_ys)
    d = tangent_p.bind(
        *consts, *init, *xs, *cache, *[t for t, g in zip(tangents[1:], given, strict=True) if g],
        loop=loop, active=active,
    )  # fmt: skip
    dk, dy = take(d, sum(active.carry))
    douts = [*spread(active.carry, dk), *spread(active.ys, dy)]
    kept = outs if save else results
    return kept, [
        _zero(o) if t is None else t for o, t in zip(kept, [*douts, *[None] * len(cache)], strict=False)
    ]


def _jvp_of(
    fun: Callable[..., State], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[State, State]:
    """Forward mode through a function of flat arrays, where some tangents are symbolic zeros."""
    given = [_given(t) for t in tangents]
    moving = pick(primals, given)
    still = [p for p, g in zip(primals, given, strict=True) if not g]
    if not moving:
        outs = fun(*primals)
        return outs, [_zero(o) for o in outs]
    return jax.jvp(lambda *m: fun(*merge(given, m, still)), moving, pick(tangents, given))


def tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, active: Active) -> Any:
    def fun(*args: Any) -> State:
        consts, init, xs, cache, d = parts(loop, args)
        pairs, operands = pair_operands(loop, active, consts, init, xs, d)
        return tangent_half(loop, run_p.bind(cache[0], *operands, loop=pairs, save=False), active)

    return _jvp_of(fun, primals, _without_cache(loop, tangents))


def _without_cache(loop: Loop, tangents: Sequence[Any]) -> State:
    """Tangents with those of the cache left out: it is a function of the other operands (see the module's
    text)."""
    at = loop.num_consts + loop.num_carry + loop.num_xs
    size = cache_size(loop)
    nothing = [ad.Zero(jax.core.ShapedArray((), jax.dtypes.float0))] * size
    return [*tangents[:at], *nothing, *tangents[at + size :]]


def reverse_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, active: Active, cts: tuple[Mask, Mask]
) -> tuple[State, State]:
    outs = reverse_p.bind(*primals, loop=loop, active=active, cts=cts)
    d_consts, d_init, d_xs, _, d_ct = parts(loop, tangents)
    operands = [*d_consts, *d_init, *d_xs]
    given, given_ct = [_given(t) for t in operands], [_given(t) for t in d_ct]
    if not any(given) and not any(given_ct):
        return outs, [_zero(o) for o in outs]
    outer = activity(loop, *loop.split(given))
    on_carry, on_ys = take(given_ct, sum(cts[0]))
    dcts = (tuple(spread(cts[0], on_carry, False)), tuple(spread(cts[1], on_ys, False)))
    douts = second_p.bind(
        *primals, *pick(operands, given), *pick(d_ct, given_ct),
        loop=loop, active=active, cts=cts, outer=outer, dcts=dcts,
    )  # fmt: skip
    return outs, douts


def second_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, **params: Any) -> Any:
    fun = lambda *args: compute_second(*args, loop=loop, **params)
    return _jvp_of(fun, primals, _without_cache(loop, tangents))


def _present(ct: Any) -> bool:
    return not isinstance(ct, ad.Zero)


def _back(args: Sequence[Any], first: int, results: Sequence[Any]) -> State:
    """Cotangents for all operands: None before `first` and where the operand is not the linear one."""
    out = [r if ad.is_undefined_primal(a) else None for a, r in zip(args[first:], results, strict=True)]
    return [*[None] * first, *out]


def tangent_transpose(ct: Sequence[Any], *args: Any, loop: Loop, active: Active) -> State:
    first = loop.num_consts + loop.num_carry + loop.num_xs + cache_size(loop)
    ct_carry, ct_ys = take(ct, sum(active.carry))
    ct_carry, ct_ys = spread(active.carry, ct_carry), spread(active.ys, ct_ys)
    here = [[c is not None and _present(c) for c in cs] for cs in (ct_carry, ct_ys)]
    if not any(here[0]) and not any(here[1]):
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in args]
    results = reverse_p.bind(
        *args[:first], *pick(ct_carry, here[0]), *pick(ct_ys, here[1]),
        loop=loop, active=active, cts=(tuple(here[0]), tuple(here[1])),
    )  # fmt: skip
    return _back(args, first, results)


def reverse_transpose(
    r: Sequence[Any], *args: Any, loop: Loop, active: Active, cts: tuple[Mask, Mask]
) -> State:
    first = loop.num_consts + loop.num_carry + loop.num_xs + cache_size(loop)
    d = tangent_p.bind(*args[:first], *[ad.instantiate_zeros(t) for t in r], loop=loop, active=active)
    return _back(args, first, _tangents_at(loop, active, d, cts, args[first:]))


def _tangents_at(
    loop: Loop, active: Active, d: State, masks: tuple[Mask, Mask], like: Sequence[Any]
) -> State:
    """The entries of a tangent of the outputs that answer to the cotangents in `masks`; zeros where
    inactive."""
    dk, dy = take(d, sum(active.carry))
    found = [*pick(spread(active.carry, dk), masks[0]), *pick(spread(active.ys, dy), masks[1])]
    return [ad.Zero(_linear_aval(a)) if f is None else f for f, a in zip(found, like, strict=True)]


def _linear_aval(a: Any) -> Any:
    return a.aval if ad.is_undefined_primal(a) else jax.typeof(a)


def second_transpose(
    r: Sequence[Any],
    *args: Any,
    loop: Loop,
    active: Active,
    cts: tuple[Mask, Mask],
    outer: Active,
    dcts: tuple[Mask, Mask],
) -> State:
    first = loop.num_consts + loop.num_carry + loop.num_xs + cache_size(loop)
    known, ct, rest = take(args, first, sum(cts[0]) + sum(cts[1]))
    _, dct = take(rest, sum(outer.consts) + sum(outer.init) + sum(outer.xs))
    full = [ad.instantiate_zeros(t) for t in r]
    none = (tuple([False] * loop.num_carry), tuple([False] * loop.num_ys))
    for_d: State = second_p.bind(
        *known, *ct, *full, loop=loop, active=outer, cts=cts, outer=active, dcts=none
    )
    for_dct: State = []
    if dct:
        t = tangent_p.bind(*known, *full, loop=loop, active=active)
        for_dct = _tangents_at(loop, active, t, dcts, dct)
    return _back(args, first + len(ct), [*for_d, *for_dct])
