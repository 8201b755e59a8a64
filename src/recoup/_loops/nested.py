"""Nested scans whose outer levels hold only carries: JAX's own differentiation, static trip counts, any
order.

`n` steps are cut into segments of equal length; the outer scan keeps the carry at each segment's start, and
the segment's steps are run again before they are differentiated (one more advance a step per level). The
innermost level either stacks its residuals (`tape=True`, one advance less) or recomputes each step from its
carry. Steps that are left over when the length does not divide run as one segment more.

Source: the square-root and multi-level schemes of Griewank and Walther, chapter 12. Limits: a captured
weight's gradient has an accumulator per level, and `xs` are sliced per level; `recoup._loops.engine` has
neither.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")
Body = Callable[[Any, Any], tuple[Any, Any]]


def segment_scan(
    body: Body,
    carry: Any,
    xs: Any,
    length: int,
    segments: int | Sequence[int],
    *,
    tape: bool = True,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """`jax.lax.scan(body, carry, xs, length)` with carries kept only where segments start.

    Args:
        body: `(carry, x) -> (carry, y)`.
        carry: tree of arrays.
        xs: tree of arrays with a leading axis of `length`, or None.
        length: number of steps; need not be a multiple of anything.
        segments: how many segments, or, for more levels, the trip counts of the outer levels from the outside
            in. The innermost loop runs `length // prod(segments)` steps at a time.
        tape: keep the residuals of the innermost loop while its segment is differentiated (more memory, one
            evaluation less per step) instead of recomputing each step.
        reverse: run from the last element of `xs` to the first.
        unroll: of the innermost loop.

    Returns:
        (carry, ys), equal to the bit to what `jax.lax.scan` returns.

    Raises:
        ValueError: if a number of segments is less than one.
    """
    outer = [segments] if isinstance(segments, int) else list(segments)
    if any(k < 1 for k in outer):
        raise ValueError(f"segment_scan: segments must be at least 1, got {segments}")
    pieces = math.prod(outer)
    inner = length // pieces if pieces else 0
    if inner == 0:
        return _scan(body, carry, xs, length, tape, reverse, unroll)
    main = inner * pieces
    left = length - main
    # the steps left over run last, whichever direction that is
    cut = (lambda x: x[left:]) if reverse else (lambda x: x[:main])
    rest = (lambda x: x[:left]) if reverse else (lambda x: x[main:])
    first = xs if left == 0 else jax.tree.map(cut, xs)
    carry, ys = _levels(body, carry, first, [*outer, inner], tape, reverse, unroll)
    if left == 0:
        return carry, ys
    # not inside a scan: here the barriers of jax.checkpoint are needed
    tail = jax.checkpoint(lambda c, x: _scan(body, c, x, left, tape, reverse, unroll))
    carry, more = tail(carry, jax.tree.map(rest, xs))
    join = (lambda a, b: _concatenate(b, a)) if reverse else _concatenate
    return carry, jax.tree.map(join, ys, more)


def _levels(
    body: Body, carry: Any, xs: Any, counts: Sequence[int], tape: bool, reverse: bool, unroll: int
) -> tuple[Any, Any]:
    count, *inner = counts
    if not inner:
        return _scan(body, carry, xs, count, tape, reverse, unroll)
    steps = math.prod(inner)
    folded = jax.tree.map(lambda x: x.reshape(count, steps, *x.shape[1:]), xs)
    segment = _held(lambda c, x: _levels(body, c, x, inner, tape, reverse, unroll))
    carry, ys = jax.lax.scan(segment, carry, folded, length=count, reverse=reverse)
    return carry, jax.tree.map(lambda y: y.reshape(count * steps, *y.shape[2:]), ys)


def _scan(
    body: Body, carry: Any, xs: Any, count: int, tape: bool, reverse: bool, unroll: int
) -> tuple[Any, Any]:
    step = body if tape else _held(body)
    return jax.lax.scan(step, carry, xs, length=count, reverse=reverse, unroll=unroll)


def _held(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Inside a scan nothing can merge the recomputation back into the forward pass, so no barrier is
    needed."""
    return jax.checkpoint(fun, prevent_cse=False)


def _concatenate(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.concatenate([a, b])
