"""The ordering that survives the compiler: `recoup_barrier`, n operands to n results, each the same array.

Idea: a recomputation only saves memory if the compiler can neither merge it with the first computation nor
start it early. XLA's `optimization_barrier` says exactly that, where it survives: on GPU and TPU, and on CPU
from JAX 0.12 on or when compiled with `FENCE_OPTIONS`. Elsewhere (CPU, JAX <= 0.11, plain `jax.jit`) the
compiler drops it early, so the lowering uses a data dependence: `select(p, x, 0)`, where `p` is true whatever
the bits of the operands that it is computed from, which the compiler does not know. That is exact for NaN and
infinities, fuses, works on sharded arrays, and happens in place when `x` is not read again; it costs a copy
of `x` otherwise, and a pass over `x`. (Writing one element of `x` with its own value at an index that depends
on the trigger saves the pass; arenas were alike, and long chains of such writes compile in quadratic time.)
Limits: a data dependence orders values after triggers but not triggers after values; it reads one element of
each operand, so the compiler may compute that element of a fused elementwise operand early, never the
products behind it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jec
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from recoup import _compat

FENCE = "fence"
AUTO = "auto"

# Compiling with these keeps optimization barriers on CPU under JAX <= 0.11; a compiler that lacks a pass
# ignores its name. The second pass makes a call of a loop over at most a KiB, and the emitter of such calls
# aborts the process at a barrier.
FENCE_OPTIONS: dict[str, str] = {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}

barrier_p: Any = jec.Primitive("recoup_barrier")
barrier_p.multiple_results = True


def barrier(
    values: Sequence[jax.Array], triggers: Sequence[jax.Array] = (), *, mode: str = AUTO
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The operands unchanged; no result that stands for a value exists before all the operands do.

    Read the results in place of the operands from here on: what still reads an operand is not ordered.

    Args:
      values: arrays of any shape and dtype, PRNG keys included; what the recomputation reads.
      triggers: arrays that must exist first, such as the incoming gradient.
      mode: "fence" always lowers to an optimization barrier (for programs compiled with `FENCE_OPTIONS`);
        "auto" uses a data dependence where the compiler would drop one.

    Returns:
      The values and the triggers, as two lists.
    """
    params = barrier_params(len(triggers), mode=mode)
    outs = barrier_p.bind(*values, *triggers, **params)
    return list(outs[: len(values)]), list(outs[len(values) :])


def barrier_params(
    triggers: int,
    *,
    mode: str = AUTO,
    groups: tuple[tuple[int, ...], ...] | None = None,
    captured: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Parameters of an equation of `barrier_p`; its operands are the values, then the triggers.

    Args:
      triggers: how many of the operands, the last ones, are triggers.
      mode: as for `barrier`.
      groups: None orders every value. Otherwise the sets of values (by index) that the guarded operations
        read, directly or through each other: one of each set is ordered, the rest may pass straight through.
        Values that the program computes are ordered before its inputs, and small ones before large ones.
      captured: indices of values that are ordered only when a group leaves no choice.
    """
    if mode not in (FENCE, AUTO):
        raise ValueError(f"unknown barrier mode {mode!r}: choose {FENCE!r} or {AUTO!r}")
    return {"mode": mode, "triggers": triggers, "groups": groups, "captured": captured}


def hitting_set(groups: Sequence[Sequence[int]], free: set[int], weight: Sequence[int]) -> set[int]:
    """`free` and, for each group without a member in it, the lightest member (greedily, singletons first)."""
    chosen = set(free)
    for group in sorted(groups, key=len):
        if group and not chosen.intersection(group):
            chosen.add(min(group, key=lambda i: (weight[i], i)))
    return chosen


def _same_shapes(*avals: Any, **_: Any) -> list[Any]:
    return list(avals)


def _identity(*operands: Any, **_: Any) -> list[Any]:
    return list(operands)


def _batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], Sequence[Any]]:
    return barrier_p.bind(*operands, **params), dims


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    # Tangents pass straight through: what computes them already reads the ordered values.
    return barrier_p.bind(*primals, **params), list(tangents)


def _transpose(cotangents: Sequence[Any], *operands: Any, **_: Any) -> list[Any]:
    pairs = zip(cotangents, operands, strict=True)
    return [ct if isinstance(operand, ad.UndefinedPrimal) else None for ct, operand in pairs]


def _dce(used: Sequence[bool], eqn: Any) -> tuple[list[bool], Any]:
    """Values that nobody reads leave the barrier; triggers stay as long as any value does."""
    params = eqn.params
    count = len(eqn.invars) - params["triggers"]
    if not any(used):
        return [False] * len(eqn.invars), None
    if not any(used[:count]):
        keep = list(used)
    else:
        keep = [*used[:count], *[True] * params["triggers"]]
    if all(keep):
        return keep, eqn
    index = {old: new for new, old in enumerate(i for i, k in enumerate(keep) if k)}
    groups = params["groups"]
    if groups is not None:
        groups = tuple(g for group in groups if (g := tuple(index[i] for i in group if i in index)))
    captured = tuple(index[i] for i in params["captured"] if i in index)
    params = dict(params, triggers=sum(keep[count:]), groups=groups, captured=captured)
    outs = [v for v, k in zip(eqn.outvars, keep, strict=True) if k]
    ins = [v for v, k in zip(eqn.invars, keep, strict=True) if k]
    return keep, eqn.replace(invars=ins, outvars=outs, params=params)


barrier_p.def_impl(_identity)
barrier_p.def_abstract_eval(_same_shapes)
batching.primitive_batchers[barrier_p] = _batch
ad.primitive_jvps[barrier_p] = _jvp
ad.primitive_transposes[barrier_p] = _transpose
_compat.register_dce_rule(barrier_p, _dce)


# Lowering. Operands arrive as MLIR values (keys as their words), so shapes and types are read from these.


def _ordered(operands: Sequence[Any], count: int, params: dict[str, Any]) -> set[int]:
    """The indices of the values that pass through the barrier."""
    groups = params["groups"]
    if groups is None:
        return set(range(count))
    weight = [_elements(v) for v in operands[:count]]
    grouped = {i for group in groups for i in group}
    free = {i for i in grouped if i not in params["captured"] and not _is_input(operands[i])}
    return hitting_set(groups, free, weight)


def _is_input(value: Any) -> bool:
    """Whether a value is an argument of a function or a constant: it lives on whatever the program does."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return str(owner.owner.operation.name) == "func.func"
    return str(owner.operation.name) == "stablehlo.constant"


def _elements(value: Any) -> int:
    size = 1
    for dim in ir.RankedTensorType(value.type).shape:
        size *= dim
    return size


def _lower_fence(ctx: Any, *operands: Any, **params: Any) -> list[Any]:
    count = len(operands) - params["triggers"]
    chosen = sorted(_ordered(operands, count, params)) + list(range(count, len(operands)))
    if not chosen:
        return list(operands)
    fenced = hlo.OptimizationBarrierOp([operands[i] for i in chosen]).results
    outs = list(operands)
    for index, result in zip(chosen, fenced, strict=True):
        outs[index] = _compat.lower_with_sharding(ctx, result, ctx.avals_out[index])
    return outs


def _lower_cpu(ctx: Any, *operands: Any, mode: str, **params: Any) -> list[Any]:
    static = all(ir.RankedTensorType(v.type).has_static_shape for v in operands)
    if mode == FENCE or not _compat.BARRIERS_NEED_OPTION or not static:
        return _lower_fence(ctx, *operands, **params)
    count = len(operands) - params["triggers"]
    chosen = [i for i in sorted(_ordered(operands, count, params)) if _elements(operands[i])]
    partitioned = _compat.partitioned_automatically(ctx)
    token = None
    for operand in [operands[i] for i in chosen] + list(operands[count:]):
        if _elements(operand):
            token = _absorb(token, operand, partitioned)
    outs = list(operands)
    for index in chosen:
        outs[index] = _compat.lower_with_sharding(ctx, _select(operands[index], token), ctx.avals_out[index])
    return outs


def _i32(number: int) -> Any:
    return mlir.ir_constant(np.int32(number))


def _type(shape: Sequence[int], element: Any) -> Any:
    return ir.RankedTensorType.get(list(shape), element)


def _word() -> Any:
    return _type((), ir.IntegerType.get_signless(32))


def _absorb(token: Any, operand: Any, partitioned: bool) -> Any:
    """`token` plus the bits of an element of `operand`.

    The element's index is the token, so that no rule about slices of padded, concatenated or constant arrays
    lets the compiler guess the element; except where that would gather an array from several devices.
    """
    kind = ir.RankedTensorType(operand.type)
    shape = list(kind.shape)
    if shape:
        start = _i32(0) if token is None or partitioned else token
        longest = max(range(len(shape)), key=lambda axis: shape[axis])
        starts = [start if axis == longest else _i32(0) for axis in range(len(shape))]
        one = hlo.dynamic_slice(operand, starts, ir.DenseI64ArrayAttr.get([1] * len(shape)))
        operand = hlo.reshape(_type((), kind.element_type), one)
    bits = _bits(operand, kind.element_type)
    return bits if token is None else hlo.add(token, bits)


def _bits(scalar: Any, element: Any) -> Any:
    """A scalar of any type as 32 bits that depend on its value."""
    name = str(element)
    if isinstance(element, ir.ComplexType):
        scalar, name = hlo.real(scalar), str(element.element_type)
    if name == "f64":
        wide = hlo.bitcast_convert(_type((), ir.IntegerType.get_signless(64)), scalar)
        return hlo.convert(_word(), wide)
    if name.startswith(("f", "bf")):
        single = scalar if name == "f32" else hlo.convert(_type((), ir.F32Type.get()), scalar)
        return hlo.bitcast_convert(_word(), single)
    return scalar if name == "i32" else hlo.convert(_word(), scalar)


def _select(operand: Any, token: Any) -> Any:
    """The operand where a square is not 2 modulo 4, which is everywhere; the compiler does not know."""
    square = hlo.and_(hlo.multiply(token, token), _i32(3))
    direction = hlo.ComparisonDirectionAttr.get("NE")
    true = hlo.compare(square, _i32(2), direction)
    kind = ir.RankedTensorType(operand.type)
    name = str(kind.element_type)
    width = 8 if name.startswith("f8") else 16 if name in ("f16", "bf16") else 0
    if not width:
        return hlo.select(true, operand, _zeros(kind))
    # Narrow floats are selected as integers: the compiler widens them even to move them, which changes the
    # bits of a NaN.
    words = _type(kind.shape, ir.IntegerType.get_signless(width))
    chosen = hlo.select(true, hlo.bitcast_convert(words, operand), _zeros(words))
    return hlo.bitcast_convert(kind, chosen)


def _zeros(kind: Any) -> Any:
    element = kind.element_type
    if isinstance(element, ir.ComplexType):
        part = hlo.convert(_type((), element.element_type), _i32(0))
        zero = hlo.complex(part, part)
    else:
        zero = hlo.convert(_type((), element), _i32(0))
    return hlo.broadcast_in_dim(kind, zero, ir.DenseI64ArrayAttr.get([]))


def _lower_default(ctx: Any, *operands: Any, mode: str, **params: Any) -> list[Any]:
    del mode
    return _lower_fence(ctx, *operands, **params)


# Not cached as functions, which would hide whether an operand is an input of the program.
_compat.register_lowering_in_place(barrier_p, _lower_default)
_compat.register_lowering_in_place(barrier_p, _lower_cpu, platform="cpu")
