"""Four primitives, closed under differentiation of any order, transposition and batching.

    run    (count, p)              -> outs [, cache]     the loop; p = (consts, init, xs)
    tangent(p, cache, dp)          -> douts              linear in dp
    reverse(p, cache, ct)          -> ct of p            the reverse pass, linear in ct
    second (p, cache, ct; dp, dct) -> d(ct of p)         derivative of `reverse`, linear in (dp, dct)

The derivative of a loop is the loop of (state, tangent) pairs, `tangent_loop`, so each rule is written with
the same primitives over another `Loop`:

* `tangent` is the second half of `run` over the pair loop, and its transpose is `reverse`;
* `second` is `reverse` over the pair loop with the cotangent (dct, ct), of which the part for the primal
  operands is the answer: by the symmetry of second derivatives the part for the tangents is `reverse` itself;
* the transpose of `second` at r is, for dct, `tangent` at r, and, for dp, `second` at r (symmetry once more).

`cache` holds states of the forward pass. It is a function of p that nobody differentiates: its tangent is a
symbolic zero, because whoever reads the cache also reads p and accounts for it there.

Why not `custom_vjp`: it has no forward mode, so no Hessian-vector product by forward over reverse.
Limit: a forward-mode derivative runs the primal loop beside the pair loop (3 evaluations a step instead of 2)
unless the compiler can drop the first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir

from recoup import _compat
from recoup._loops import rules
from recoup._loops.batch import batched, rest_batch, run_batch
from recoup._loops.compute import (
    State,
    compute_reverse,
    compute_run,
    compute_second,
    compute_tangent,
    parts,
    reverse_p,
    run_p,
    second_p,
    tangent_p,
)
from recoup._loops.spec import Active, Loop, pick


def _run_types(*avals: Any, loop: Loop, save: bool) -> State:
    _, init, _, ys = loop.avals()
    outs = [_compat.with_leading(a) for a in init]
    outs += [_compat.with_leading(a, loop.length or 0) for a in ys]
    if save:
        scalar = jax.core.ShapedArray((), np.dtype(np.int32))
        index = jax.core.ShapedArray((loop.slots + 1,), np.dtype(np.int32))
        outs += [scalar, scalar, index, index, *[_compat.with_leading(a, loop.slots + 1) for a in init]]
    return outs


def _tangent_types(*avals: Any, loop: Loop, active: Active) -> State:
    _, init, _, ys = loop.avals()
    return [
        *[_compat.with_leading(a) for a in pick(init, active.carry)],
        *[_compat.with_leading(a, loop.length or 0) for a in pick(ys, active.ys)],
    ]


def _reverse_types(*avals: Any, loop: Loop, active: Active, cts: Any) -> State:
    consts, init, xs, *_ = parts(loop, avals)
    wanted = [*pick(consts, active.consts), *pick(init, active.init), *pick(xs, active.xs)]
    return [_compat.with_leading(a) for a in wanted]


def _second_types(*avals: Any, loop: Loop, active: Active, cts: Any, outer: Active, dcts: Any) -> State:
    return _reverse_types(*avals, loop=loop, active=active, cts=cts)


def _register(
    prim: Any,
    fun: Callable[..., State],
    types: Callable[..., State],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None,
) -> None:
    def eager(*args: Any, **params: Any) -> Any:
        return jax.jit(lambda *a: fun(*a, **params))(*args)

    prim.multiple_results = True
    prim.def_impl(eager)
    prim.def_abstract_eval(types)
    mlir.register_lowering(prim, mlir.lower_fun(fun, multiple_results=True))
    ad.primitive_jvps[prim] = jvp
    if transpose is not None:
        ad.primitive_transposes[prim] = transpose

    def batch(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, loop: Loop, **params: Any) -> Any:
        if not any(batched(dims)):
            outs = prim.bind(*args, loop=loop, **params)
            return outs, [None] * len(outs)
        if prim is run_p:
            return run_batch(axis_data, args, dims, loop=loop, **params)
        return rest_batch(prim, axis_data, args, dims, loop, params)

    batching.fancy_primitive_batchers[prim] = batch


def register() -> None:
    """Make the primitives known to JAX; doing it again changes nothing."""
    _register(run_p, compute_run, _run_types, rules.run_jvp, None)
    _register(tangent_p, compute_tangent, _tangent_types, rules.tangent_jvp, rules.tangent_transpose)
    _register(reverse_p, compute_reverse, _reverse_types, rules.reverse_jvp, rules.reverse_transpose)
    _register(second_p, compute_second, _second_types, rules.second_jvp, rules.second_transpose)
