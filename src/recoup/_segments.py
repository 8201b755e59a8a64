"""A loop pair cut into segments: only the carry at each segment's start is held, and one segment's residuals
at a time.

Idea: n iterations become S segments of k. The forward loop stacks the carry at the start of each segment and
nothing for the backward pass; the backward loop, segment by segment from the last, runs the segment's forward
again, stacking its residuals for k iterations only, then the segment's backward. Memory S carries + k
residual rows, about twice the root of n; one more forward pass.
Source: Griewank's two-level checkpointing; Chen et al. 2016. Limits: k divides n; a prime length is not cut.
"""

from collections.abc import Sequence
from typing import Any

import jax

from recoup import _compat
from recoup._compat import DropVar, Literal, Var
from recoup._inline import flatten


def best_segment(length: int, carry_bytes: int, row_bytes: int) -> int:
    """The segment length (a proper divisor of `length`) that holds fewest bytes; 0 if there is none."""
    divisors = [k for k in range(2, length) if length % k == 0] if length < 10**6 else []
    if not divisors:
        return 0
    return min(divisors, key=lambda k: (length // k) * carry_bytes + k * row_bytes)


def segment_eqns(first: Any, second: Any, residuals: Sequence[int], k: int) -> tuple[list[Any], list[Any]]:
    """The equations that stand for the two scans `first` and `second`, cut into segments of `k` iterations.

    Args:
      first: the forward scan's equation.
      second: that of the scan which reads its residuals.
      residuals: positions among `first`'s results that only `second` reads.
      k: the length of a segment, a divisor of the loop's.
    """
    f, b = _compat.scan_parts(first), _compat.scan_parts(second)
    count = f.length // k
    f_split, b_split = f.num_consts + f.num_carry, b.num_consts + b.num_carry
    body = flatten(f.body)
    dropped = set(residuals)
    kept_ys = [p for p in range(f.num_carry, len(first.outvars)) if p not in dropped]
    without = _with_results(body, [*range(f.num_carry), *kept_ys])
    rows_of = {first.outvars[p]: p for p in residuals}
    second_rows = [rows_of.get(x) if not isinstance(x, Literal) else None for x in second.invars[b_split:]]
    # The rows in the order in which the second body reads them.
    tape = _with_results(body, [*range(f.num_carry), *(p for p in second_rows if p is not None)])
    back = _compat.close_jaxpr(*_parts(flatten(b.body)))

    def forward(*operands: Any) -> Any:
        consts, carry, xs = operands[: f.num_consts], operands[f.num_consts : f_split], operands[f_split:]

        def segment(start: Any, rows: Any) -> Any:
            end, ys = _run(without, consts, start, rows, k, f.num_carry, f.reverse, f.unroll)
            return end, (start, ys)

        split = tuple(_split(x, count, k) for x in xs)
        end, (starts, ys) = jax.lax.scan(segment, tuple(carry), split, length=count, reverse=f.reverse)
        return (*end, *(_join(y) for y in ys), *starts)

    def backward(*operands: Any) -> Any:
        consts, carry = operands[: b.num_consts], operands[b.num_consts : b_split]
        rest = list(operands[b_split:])
        own = [rest.pop(0) for p in second_rows if p is None]
        starts = [rest.pop(0) for _ in range(f.num_carry)]
        f_consts = [rest.pop(0) for _ in range(f.num_consts)]

        def segment(cotangents: Any, given: Any) -> Any:
            start, mine, rows = given
            _, taped = _run(tape, f_consts, start, rows, k, f.num_carry, f.reverse, f.unroll)
            sources, tapes = iter(mine), iter(taped)
            xs = tuple(next(sources) if p is None else next(tapes) for p in second_rows)
            return _run(back, consts, cotangents, xs, k, b.num_carry, b.reverse, b.unroll)

        pieces = (
            tuple(starts),
            tuple(_split(x, count, k) for x in own),
            tuple(_split(x, count, k) for x in rest),
        )
        end, ys = jax.lax.scan(segment, tuple(carry), pieces, length=count, reverse=b.reverse)
        return (*end, *(_join(y) for y in ys))

    starts = [Var(_compat.with_leading(v.aval, count)) for v in body.invars[f.num_consts : f_split]]
    outer = [*first.outvars[: f.num_carry], *(first.outvars[p] for p in kept_ys), *starts]
    own = [x for x, p in zip(second.invars[b_split:], second_rows, strict=True) if p is None]
    operands = [
        *second.invars[:b_split], *own, *starts, *first.invars[: f.num_consts], *first.invars[f_split:],
    ]  # fmt: skip
    return _traced(forward, first, first.invars, outer), _traced(backward, second, operands, second.outvars)


def _run(
    body: Any, consts: Any, carry: Any, xs: Any, length: int, num_carry: int, reverse: bool, unroll: Any
) -> Any:
    def step(state: Any, rows: Any) -> Any:
        outs = _compat.eval_jaxpr(body, *consts, *state, *rows)
        return tuple(outs[:num_carry]), tuple(outs[num_carry:])

    # A loop unrolled by more than a segment, or not by a divisor of it, would be refused.
    unroll = unroll if isinstance(unroll, int) and unroll and length % unroll == 0 else 1
    return jax.lax.scan(step, tuple(carry), tuple(xs), length=length, reverse=reverse, unroll=unroll)


def _split(x: Any, count: int, k: int) -> Any:
    return x.reshape((count, k, *x.shape[1:]))


def _join(y: Any) -> Any:
    return y.reshape((y.shape[0] * y.shape[1], *y.shape[2:]))


def _parts(flat: Any) -> tuple[Any, ...]:
    return flat.constvars, flat.invars, flat.outvars, flat.eqns, flat.consts


def _with_results(body: Any, positions: Sequence[int]) -> Any:
    """The body with these results only, dead code removed."""
    outs = [body.outvars[p] for p in positions]
    closed = _compat.close_jaxpr(body.constvars, body.invars, outs, body.eqns, body.consts)
    return flatten(closed).closed()


def _traced(fun: Any, like: Any, invars: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations that `fun` records, with the outer program's variables and the original's source line."""
    traced = _compat.trace_at(like, fun, [v.aval for v in invars])
    flat = flatten(traced)
    if flat.consts:
        raise AssertionError("a body's constants travel as operands")
    return placed(flat, like, invars, outvars)


def placed(traced: Any, like: Any, invars: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations of a traced program with the outer program's variables and `like`'s source line.

    A result that is an argument, a literal, or another result again (a carry that a loop hands on unchanged)
    is copied, since no equation writes it.
    """
    env: dict[Any, Any] = dict(zip(traced.invars, invars, strict=True))
    final: dict[Any, Any] = {}
    copied = []
    for v, outer in zip(traced.outvars, outvars, strict=True):
        if isinstance(v, Literal) or v in env or v in final:
            copied.append((v, outer))
        else:
            final[v] = outer
    eqns = []
    for eqn in traced.eqns:
        ins = [v if isinstance(v, Literal) else env.get(v, v) for v in eqn.invars]
        outs = [final.get(v, v) for v in eqn.outvars]
        eqns.append(eqn.replace(invars=ins, outvars=outs, source_info=like.source_info, ctx=like.ctx))
    for v, outer in copied:
        if not isinstance(outer, DropVar):
            source = v if isinstance(v, Literal) else final[v] if v in final else env[v]
            eqns.append(_compat.new_eqn([source], [outer], jax.lax.copy_p, {}, like))
    return eqns
