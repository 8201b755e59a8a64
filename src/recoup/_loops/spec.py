"""What a loop is, and the two transformations of it: the loop of (state, tangent) pairs, and the loop of a
batch.

A `Loop` holds its body (and condition) as jaxprs over flat lists of arrays; every captured tensor is an
operand. Both transformations give a `Loop` again, so that a derivative of any order, batched or not, is run
by the same engine.

Layouts: body is `(i, *consts, *carry, *x) -> (*carry, *y)`, the condition `(*consts, *carry) -> bool`. `i`
counts from zero in the order in which `xs` are read (so it falls from `length - 1` to 0 where `reverse` is
set).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from recoup import _compat

if TYPE_CHECKING:
    from recoup._plan import Plan

Mask = tuple[bool, ...]
ShapeDtype: Any = jax.ShapeDtypeStruct


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop over flat lists of arrays. Compared by identity: it is a parameter of primitives."""

    body: Any
    num_consts: int
    num_carry: int
    num_xs: int
    num_ys: int
    slots: int
    length: int | None = None
    cond: Any = None
    reverse: bool = False
    unroll: int = 1
    quiet_body: Any = None  # the body without debug prints, where it has any
    tape: int = 1  # steps between two states at least, differentiated together; needs a length and no cond
    plan: "Plan | None" = None  # how a piece is differentiated, None for as it is
    plan_bytes: int = 0  # the temporaries that this takes

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(consts, carry, xs) of a flat list."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        return list(operands[:a]), list(operands[a:b]), list(operands[b : b + self.num_xs])

    def step(
        self, i: Any, consts: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """One evaluation of the body: (carry, y)."""
        out = call(self.body, i, *consts, *carry, *x)
        return list(out[: self.num_carry]), list(out[self.num_carry :])

    def more(self, consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        """The condition; a scalar bool."""
        return call(self.cond, *consts, *carry)[0]

    def pieces(self, count: Any) -> Any:
        """How many pieces of `tape` steps `count` steps are; the last may be shorter."""
        return count if self.tape == 1 else (count + (self.tape - 1)) // self.tape

    def scaled(self, times: int) -> "Loop":
        """With as many times the bytes for a piece: what a loop of pairs or of a batch needs."""
        return replace(self, plan_bytes=self.plan_bytes * times)

    def silent(self) -> "Loop":
        """The same loop without debug prints: they belong to the forward pass and are not repeated."""
        return self if self.quiet_body is None else replace(self, body=self.quiet_body, quiet_body=None)

    def avals(self) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Abstract values of (consts, carry, x, y)."""
        consts, carry, x = self.split(list(self.body.in_avals)[1:])
        return consts, carry, x, list(self.body.out_avals)[self.num_carry :]


@dataclass(frozen=True)
class Active:
    """Which operands carry a tangent, and which carries and outputs therefore do."""

    consts: Mask
    init: Mask
    xs: Mask
    carry: Mask
    ys: Mask


def call(jaxpr: Any, *args: Any) -> list[Any]:
    """Evaluate a closed jaxpr under whatever transformation is current."""
    return list(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args))


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> Any:
    """The closed jaxpr of a function of flat arrays."""
    return jax.make_jaxpr(fun)(*[_compat.as_struct(a) for a in avals])


def differentiable(x: Any) -> bool:
    """Whether an array or abstract value of this type has tangents (real or complex floating point)."""
    return bool(jnp.issubdtype(x.dtype, np.inexact))


def reached(jaxpr: Any, inputs: Sequence[bool], through: Callable[[Any], bool]) -> list[bool]:
    """Which outputs depend on the marked inputs by a path whose values all pass `through`. Conservative."""
    core = jaxpr.jaxpr
    marked = {v for v, m in zip(core.invars, inputs, strict=True) if m and through(v.aval)}

    def is_marked(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in marked

    for eqn in core.eqns:
        if any(is_marked(v) for v in eqn.invars):
            marked.update(v for v in eqn.outvars if through(v.aval))
    return [is_marked(v) for v in core.outvars]


def activity(loop: Loop, consts: Sequence[bool], init: Sequence[bool], xs: Sequence[bool]) -> Active:
    """Follow tangents through the body until the set of carries that have one no longer grows."""
    carry = list(init)
    while True:
        out = reached(loop.body, [False, *consts, *carry, *xs], differentiable)
        grown = [a or b for a, b in zip(carry, out[: loop.num_carry], strict=True)]
        if grown == carry:
            return Active(tuple(consts), tuple(init), tuple(xs), tuple(carry), tuple(out[loop.num_carry :]))
        carry = grown


def pick(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The values whose mask is set."""
    return [v for v, m in zip(values, mask, strict=True) if m]


def merge(mask: Sequence[bool], chosen: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The inverse of `pick`: full list from the values where the mask is set and those where it is not."""
    a, b = iter(chosen), iter(others)
    return [next(a) if m else next(b) for m in mask]


def spread(mask: Sequence[bool], chosen: Sequence[Any], fill: Any = None) -> list[Any]:
    """Full list with `fill` where the mask is not set."""
    it = iter(chosen)
    return [next(it) if m else fill for m in mask]


def tangent_loop(loop: Loop, active: Active) -> Loop:
    """The loop whose carry is (carry, tangents of the active carries), and likewise consts, xs and ys.

    It has no condition: it runs as often as the loop that it was made from did.
    """
    loop = loop.silent()
    consts, carry, xs, _ = loop.avals()
    nc, nk, nx = sum(active.consts), sum(active.carry), sum(active.xs)

    def body(i: Any, *flat: Any) -> list[Any]:
        args = list(flat)
        c, args = args[: len(consts)], args[len(consts) :]
        dc, args = args[:nc], args[nc:]
        k, args = args[: len(carry)], args[len(carry) :]
        dk, args = args[:nk], args[nk:]
        x, dx = args[: len(xs)], args[len(xs) :]

        def fun(
            ac: list[Any], ak: list[Any], ax: list[Any]
        ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
            out, y = loop.step(
                i,
                merge(active.consts, ac, pick(c, invert(active.consts))),
                merge(active.carry, ak, pick(k, invert(active.carry))),
                merge(active.xs, ax, pick(x, invert(active.xs))),
            )
            return (
                pick(out, active.carry),
                pick(out, invert(active.carry)),
                pick(y, active.ys),
                pick(y, invert(active.ys)),
            )

        primals = (pick(c, active.consts), pick(k, active.carry), pick(x, active.xs))
        (ok, rk, oy, ry), (tk, _, ty, _) = jax.jvp(fun, primals, (dc, dk, dx))
        return [*merge(active.carry, ok, rk), *tk, *merge(active.ys, oy, ry), *ty]

    avals = [
        *loop.body.in_avals[:1],
        *consts, *pick(consts, active.consts),
        *carry, *pick(carry, active.carry),
        *xs, *pick(xs, active.xs),
    ]  # fmt: skip
    return replace(
        loop.scaled(2),
        body=trace(body, avals),
        cond=None,
        num_consts=len(consts) + nc,
        num_carry=len(carry) + nk,
        num_xs=len(xs) + nx,
        num_ys=loop.num_ys + sum(active.ys),
    )


def invert(mask: Sequence[bool]) -> list[bool]:
    """The other half of a mask."""
    return [not m for m in mask]


def batch_masks(
    loop: Loop, steps: bool, consts: Sequence[bool], carry: Sequence[bool], xs: Sequence[bool]
) -> tuple[list[bool], list[bool], bool]:
    """(carry, ys, stop): which carries and outputs differ between members, and whether the stopping does."""
    carry = list(carry)
    while True:
        stop = steps or (loop.cond is not None and reached(loop.cond, [*consts, *carry], lambda _: True)[0])
        out = reached(loop.body, [False, *consts, *carry, *xs], lambda _: True)
        new = [a or b or stop for a, b in zip(carry, out[: loop.num_carry], strict=True)]
        if new == carry:
            return carry, out[loop.num_carry :], stop
        carry = new


def batch_loop(
    loop: Loop,
    size: int,
    steps: bool,
    consts: Sequence[bool],
    carry: Sequence[bool],
    xs: Sequence[bool],
    axis: dict[str, Any],
) -> Loop:
    """The loop of a whole batch; batched operands have the batch in front (in `x` and `y` too).

    Where members stop at different times the loop runs until the last has stopped and holds the others still.
    With `steps` (a trip count per member) the counts are one more const; a condition that differs between
    members counts each member's steps in one more carry, the last. In both cases the initial carry follows as
    consts: a member that has stopped is fed the state that it started from, because the body may have no
    derivative at the state that it stopped at (a step size that has become 0), and 0 times infinity is not 0.
    """
    loop = loop.silent()  # a print of a whole batch is not what the user wrote
    carry, ys, stop = batch_masks(loop, steps, consts, carry, xs)
    c_avals, k_avals, x_avals, _ = loop.avals()
    nc, nk = loop.num_consts, loop.num_carry
    counted, extra = counts_members(loop, steps, stop), extra_consts(loop, steps, stop)

    def body(i: Any, *flat: Any) -> list[Any]:
        c = list(flat[:nc])
        safe = list(flat[nc + steps : nc + extra])
        rest = list(flat[nc + extra :])
        k, x = rest[:nk], rest[nk + counted :]

        def one(c: Any, n: Any, safe: Any, k: Any, x: Any) -> tuple[list[Any], Any, list[Any]]:
            if not stop:
                new, y = loop.step(i, c, k, x)
                return new, jnp.int32(1), y
            going = i < n if steps else loop.more(c, k)
            new, y = loop.step(i, c, _select(going, k, safe), x)
            return _select(going, new, k), jnp.int32(going), y

        n = flat[nc] if steps else jnp.int32(0)
        new, went, y = jax.vmap(
            one,
            in_axes=(_axes(consts), 0 if steps else None, [0] * len(safe), _axes(carry), _axes(xs)),
            axis_size=size,
            **axis,
        )(c, n, safe, k, x)
        # what does not differ between members is taken from the first: some batching rules batch every output
        new = [a if m else a[0] for a, m in zip(new, carry, strict=True)]
        y = [a if m else a[0] for a, m in zip(y, ys, strict=True)]
        return [*new, *([rest[nk] + went] if counted else []), *y]

    def more(*flat: Any) -> list[Any]:
        c, k = list(flat[:nc]), list(flat[nc + extra : nc + extra + nk])
        return [
            jnp.any(
                jax.vmap(
                    lambda c, k: loop.more(c, k),
                    in_axes=(_axes(consts), _axes(carry)),
                    axis_size=size,
                    **axis,
                )(c, k)
            )
        ]

    counts = [ShapeDtype((size,), np.int32)] if steps else []
    c_in, k_in, x_in = _many(c_avals, consts, size), _many(k_avals, carry, size), _many(x_avals, xs, size)
    safe_in = list(k_in) if stop else []
    if counted:
        k_in = [*k_in, ShapeDtype((size,), np.int32)]
    return replace(
        loop.scaled(size),
        body=trace(body, [*loop.body.in_avals[:1], *c_in, *counts, *safe_in, *k_in, *x_in]),
        cond=None if loop.cond is None else trace(more, [*c_in, *counts, *safe_in, *k_in]),
        num_consts=nc + extra,
        num_carry=nk + counted,
    )


def _axes(mask: Sequence[bool]) -> list[int | None]:
    return [0 if m else None for m in mask]


def _many(avals: Sequence[Any], mask: Sequence[bool], size: int) -> list[Any]:
    return [_compat.with_leading(a, size) if m else a for a, m in zip(avals, mask, strict=True)]


def _select(going: Any, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    return [jax.lax.select(jnp.broadcast_to(going, x.shape), x, y) for x, y in zip(a, b, strict=True)]


def extra_consts(loop: Loop, steps: bool, stop: bool) -> int:
    """How many consts `batch_loop` adds: trip counts, and states to feed to members that have stopped."""
    return steps + (loop.num_carry if stop else 0)


def counts_members(loop: Loop, steps: bool, stop: bool) -> bool:
    """Whether `batch_loop` counts each member's steps: its condition stops members at different times."""
    return stop and not steps
