"""The region primitive `recoup_region` and its rules.

Idea: a region is one equation around its body. Differentiating it gives one equation around values and
tangents; splitting that for a backward runs the forward part at once, in place, and leaves an equation that
computes the kept values' dependents again and applies the linear part. Transposing that gives the backward: a
barrier over what the recomputation reads and the incoming gradient, the recomputation, and the transposed
linear part, again inside a region, so that higher derivatives recompute too. The construction is that of
JAX's own `jax.checkpoint` (Bradbury, Frostig et al.), with another barrier, kept values as marks in the
jaxpr, and callbacks run once.

Limits: under forward-mode alone nothing is recomputed and there is no barrier. A `while` loop in a body can
be recomputed but not transposed, as everywhere in JAX.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jec
from jax.interpreters import ad, batching

from recoup import _compat
from recoup._barrier import barrier_p, barrier_params
from recoup._regions import jaxprs, marking
from recoup._regions.names import diagnostic_p, saveable
from recoup._scopes import region_scope
from recoup.errors import EmptyRegionError

FORWARD = "forward"
BACKWARD = "backward"
RECOMPUTED = "rematted_computation"  # the scope under which JAX's own tools look for recomputed operations

region_p: Any = jec.Primitive("recoup_region")
region_p.multiple_results = True


def region_params(
    jaxpr: Any, name: str, policy: Any, captured: Sequence[bool], *, empty: bool
) -> dict[str, Any]:
    """Parameters of a region's equation: an open jaxpr without constants, and which inputs were captured."""
    return {
        "jaxpr": jaxpr,
        "name": name,
        "policy": policy,
        "captured": tuple(captured),
        "empty": empty,
        "stage": FORWARD,
    }


def _flags(captured: Sequence[bool], count: int) -> list[bool]:
    """Which inputs were captured; none, once a split of the call around the region has shuffled them."""
    return list(captured) if len(captured) == count else [False] * count


def _evaluate(*operands: Any, jaxpr: Any, **_: Any) -> list[Any]:
    return list(jax.core.eval_jaxpr(jaxpr, (), *operands))


def _abstract(*_: Any, jaxpr: Any, **__: Any) -> tuple[list[Any], Any]:
    return [v.aval for v in jaxpr.outvars], jaxpr.effects


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, captured: tuple[bool, ...], **params: Any
) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not ad.Zero for t in tangents]
    both, consts, out_nonzero = _compat.jvp_jaxpr(jaxprs.inline(jaxpr), nonzero)
    given = [t for t, nz in zip(tangents, nonzero, strict=True) if nz]
    captured = (*[True] * len(consts), *_flags(captured, len(primals)), *[False] * len(given))
    outs = region_p.bind(*consts, *primals, *given, jaxpr=both, captured=captured, **params)
    count = len(jaxpr.outvars)
    out_primals, rest = list(outs[:count]), iter(outs[count:])
    out_tangents = [
        next(rest) if nz else _compat.zero_tangent(p) for p, nz in zip(out_primals, out_nonzero, strict=True)
    ]
    return out_primals, out_tangents


def _partial_eval(
    trace: Any, *tracers: Any, jaxpr: Any, name: str, captured: tuple[bool, ...], **params: Any
) -> list[Any]:
    """Runs the forward part now; returns tracers of an equation that recomputes and applies the linear
    part."""
    if params["empty"]:
        raise EmptyRegionError(
            f"region {name!r}{_compat.user_line()} records no tensor operation, so a backward has nothing to "
            "recompute; drop the region, or pass allow_empty=True if the layer may be the identity"
        )
    unknown = [not t.is_known() for t in tracers]
    body = jaxprs.inline(jaxpr)
    split = _split(body, unknown, params["policy"], name, results=False)
    if products := jaxprs.count_products(split.second):
        # Keeping what the region returns costs little if whoever reads it holds it anyway, and nothing is
        # gained unless that saves a product.
        other = _split(body, unknown, params["policy"], name, results=True)
        split = other if jaxprs.count_products(other.second) < products else split
    if params["policy"] is not None:
        marking.report_misses(split.marks, name)
    marking.report_recomputed_producers(split.first, split.second, name)
    first, second = split.first, split.second

    known = [t.pval.get_known() for t, u in zip(tracers, unknown, strict=True) if not u]
    with jax.named_scope(region_scope(name)):
        outs = jax.core.eval_jaxpr(first, (), *[x for x, u in zip(known, split.used_known, strict=True) if u])
    results, kept = outs[: split.num_results], outs[split.num_results :][: split.num_kept]

    operands = [trace.new_instantiated_const(x) for x in kept]
    operands += [trace.instantiate_const(t) for t, u in zip(tracers, split.used_inputs, strict=True) if u]
    params |= {
        "jaxpr": second,
        "name": name,
        "captured": (
            *[False] * len(kept),
            *[c for c, u in zip(_flags(captured, len(tracers)), split.used_inputs, strict=True) if u],
        ),
    }
    avals = [v.aval for v in second.outvars]
    out_tracers = _compat.stage_later(trace, operands, avals, region_p, params, second.effects)
    now, later = iter(results), iter(out_tracers)
    return [next(later) if u else next(now) for u in split.out_unknown]


class _Split(NamedTuple):
    """A region's values and tangents in two: `first` returns the known results, then the kept values."""

    first: Any
    second: Any  # reads kept values, then inputs
    used_known: list[bool]  # which known inputs the first reads
    used_inputs: list[bool]  # which inputs the second reads
    out_unknown: list[bool]
    num_results: int
    num_kept: int
    marks: marking.Marks


def _split(body: Any, unknown: list[bool], policy: Any, name: str, *, results: bool) -> _Split:
    marked, marks = marking.mark(body, unknown, policy, results=results)
    first, second, out_unknown, out_again, num_kept = _compat.split_by_saving(marked, unknown, saveable)
    # Of the second part only the results that the first cannot give; then only what these read.
    wanted = [u for u, again in zip(out_unknown, out_again, strict=True) if again]
    second, used = _compat.dce_open(jaxprs.without_callbacks(second), wanted)
    known_results = len(out_unknown) - sum(out_unknown)
    # Diagnostics stay although nothing here reads them.
    seen = [v for eqn in first.eqns if eqn.primitive is diagnostic_p for v in eqn.outvars]
    first = first.replace(outvars=[*first.outvars, *seen], debug_info=_compat.no_names(first))
    wanted = [*[True] * known_results, *used[:num_kept], *[True] * len(seen)]
    first, used_known = _compat.dce_open(first, wanted)
    kept = sum(used[:num_kept])
    return _Split(first, second, used_known, used[num_kept:], out_unknown, known_results, kept, marks)


def _transpose(
    cts: Sequence[Any], *operands: Any, jaxpr: Any, name: str, captured: tuple[bool, ...], **params: Any
) -> list[Any]:
    linear = [isinstance(x, ad.UndefinedPrimal) for x in operands]
    first, first_consts, rest, rest_consts = _compat.split_by_data(jaxpr, linear)
    first, used = _compat.dce_open(first, [True] * len(first.outvars))
    known = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
    all_captured = _flags(captured, len(operands))
    known_captured = [c for c, is_linear in zip(all_captured, linear, strict=True) if not is_linear]
    inputs = [x for x, u in zip([*first_consts, *known], used, strict=True) if u]
    flags = [*[True] * len(first_consts), *known_captured]
    inputs_captured = [c for c, u in zip(flags, used, strict=True) if u]
    linear_avals = [x.aval for x in operands if isinstance(x, ad.UndefinedPrimal)]
    arriving = [ct for ct in cts if type(ct) is not ad.Zero]
    zero: list[bool] = []

    def backward(*args: Any) -> list[Any]:
        values, given = list(args[: len(inputs)]), iter(args[len(inputs) + len(rest_consts) :])
        consts = args[len(inputs) : len(inputs) + len(rest_consts)]
        values, ordered = _order(first, values, inputs_captured, list(given))
        ordered_cts = iter(ordered)
        with jax.named_scope(RECOMPUTED):
            again = jax.core.eval_jaxpr(first, (), *values)
        full = [ct if type(ct) is ad.Zero else next(ordered_cts) for ct in cts]
        in_cts = _compat.transpose_linear(rest, [*consts, *again], linear_avals, full)
        zero[:] = [type(ct) is ad.Zero for ct in in_cts]
        return [ct for ct in in_cts if type(ct) is not ad.Zero]

    args = [*inputs, *rest_consts, *arriving]
    body, consts = _compat.trace_flat(backward, [jax.typeof(x) for x in args], f"backward of region {name!r}")
    captured = (*[True] * len(consts), *inputs_captured, *[True] * len(rest_consts), *[False] * len(arriving))
    params |= {"jaxpr": body, "name": name, "captured": captured, "stage": BACKWARD}
    outs = iter(region_p.bind(*consts, *args, **params))
    in_cts = iter(
        [_compat.zero_cotangent(a) if z else next(outs) for a, z in zip(linear_avals, zero, strict=True)]
    )
    return [next(in_cts) if is_linear else None for is_linear in linear]


def _order(
    first: Any, values: list[Any], captured: Sequence[bool], cts: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Puts the barrier in front of a recomputation: over the values that it must read late, and the
    gradient."""
    groups = jaxprs.read_groups(first)
    if not groups:
        return values, cts
    members = sorted({i for group in groups for i in group})
    position = {old: new for new, old in enumerate(members)}
    params = barrier_params(
        len(cts),
        groups=tuple(tuple(position[i] for i in group) for group in groups),
        captured=tuple(position[i] for i in members if captured[i]),
    )
    outs = barrier_p.bind(*[values[i] for i in members], *cts, **params)
    for index, out in zip(members, outs, strict=False):
        values[index] = out
    return values, list(outs[len(members) :])


def _batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any, captured: Any, **params: Any
) -> tuple[list[Any], list[Any]]:
    body, consts, out_batched = _compat.batch_jaxpr(jaxpr, axis_data, dims)
    captured = (*[True] * len(consts), *_flags(captured, len(operands)))
    outs = region_p.bind(*consts, *operands, jaxpr=body, captured=captured, **params)
    return outs, [0 if b else None for b in out_batched]


def _dce(used: Sequence[bool], eqn: Any) -> tuple[list[bool], Any]:
    if not any(used) and not eqn.effects and not eqn.params["empty"]:
        return [False] * len(eqn.invars), None
    body, used_inputs = _compat.dce_open(eqn.params["jaxpr"], used)
    if eqn.params["empty"]:
        return [True] * len(eqn.invars), eqn
    flags = _flags(eqn.params["captured"], len(eqn.invars))
    captured = tuple(c for c, u in zip(flags, used_inputs, strict=True) if u)
    return used_inputs, eqn.replace(
        invars=[v for v, u in zip(eqn.invars, used_inputs, strict=True) if u],
        outvars=[v for v, u in zip(eqn.outvars, used, strict=True) if u],
        params=dict(eqn.params, jaxpr=body, captured=captured),
        effects=body.effects,
    )


def _lower(ctx: Any, *operands: Any, jaxpr: Any, name: str, **_: Any) -> Sequence[Any]:
    return _compat.lower_inline(ctx, jaxpr, region_scope(name), *operands)


def _split_in_call(policy: Any, unknown: Any, inst: Any, eqn: Any) -> Any:
    """Inside another region of JAX's, or a call that is split, a region is an ordinary call: the outer one
    owns."""
    params = dict(eqn.params, captured=())
    return _SPLIT_CALL(policy, unknown, inst, eqn.replace(params=params))


_SPLIT_CALL = _compat.call_split_rule("jaxpr")

region_p.def_impl(_evaluate)
region_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[region_p] = _jvp
ad.primitive_transposes[region_p] = _transpose
batching.fancy_primitive_batchers[region_p] = _batch
_compat.register_split_rules(region_p, _partial_eval, _split_in_call)
_compat.register_dce_rule(region_p, _dce)
_compat.register_lowering_in_place(region_p, _lower)
