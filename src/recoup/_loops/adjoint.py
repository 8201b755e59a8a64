"""One piece of a loop differentiated: a step, or several together with their residuals on a tape.

With pieces of `m` steps the engine recomputes nothing between states that are `m` steps apart: each of these
steps runs once more, for its residuals, instead of once per state. The bytes of `m` residuals and fewer slots
then buy fewer evaluations than those of more slots (docs/loops.md). The tape is JAX's own: a scan whose
transposition stacks and reads what the step's linearisation needs.

A captured tensor's gradient is summed over the tape into the accumulator that the engine already has: the
tensor's tangent travels as a carry of the scan, so that the transposed scan starts from the sum so far. (JAX
would start a sum of its own at zero for a tensor that the scan closes over, one accumulator more.)

Limits: a tape needs a length known when the program is traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recoup._loops.spec import Active, Loop, invert, merge, pick

State = list[Any]
Piece = Callable[..., tuple[State, State, State]]


def piece(loop: Loop, active: Active, steps: int) -> Piece:
    """The function that differentiates `steps` steps from the state before them.

    It takes (i, consts, carry, x, ct, ct_y, sums): the smallest index of the steps among the rows of `xs`;
    operands and state; the steps' rows of `xs`; the cotangent of the active carries after the last step; the
    cotangents of the steps' rows of outputs (None where there is none); the gradients of the active consts so
    far. Rows have a leading axis of `steps` where the loop has a tape. It returns the cotangent of the active
    carries before the first step, the sums with this piece's part added, and cotangents of the rows of `xs`.
    """
    return partial(_step if loop.tape == 1 else _tape, loop, active, steps)


def _step(
    loop: Loop, active: Active, steps: int, i: Any, consts: State, carry: State, x: State, ct: State,
    ct_y: Sequence[Any], sums: State,
) -> tuple[State, State, State]:  # fmt: skip
    del steps
    wanted = [c is not None and a for c, a in zip(ct_y, active.ys, strict=True)]

    def fun(ac: State, ak: State, ax: State) -> tuple[State, State]:
        out, y = loop.step(
            i,
            merge(active.consts, ac, pick(consts, invert(active.consts))),
            merge(active.carry, ak, pick(carry, invert(active.carry))),
            merge(active.xs, ax, pick(x, invert(active.xs))),
        )
        return pick(out, active.carry), pick(y, wanted)

    _, pull = jax.vjp(fun, pick(consts, active.consts), pick(carry, active.carry), pick(x, active.xs))
    g_consts, ct, g_x = pull((ct, pick(ct_y, wanted)))
    return ct, [a + g for a, g in zip(sums, g_consts, strict=True)], g_x


def _tape(
    loop: Loop, active: Active, steps: int, i: Any, consts: State, carry: State, x: State, ct: State,
    ct_y: Sequence[Any], sums: State,
) -> tuple[State, State, State]:  # fmt: skip
    wanted = [c is not None and a for c, a in zip(ct_y, active.ys, strict=True)]
    indices = i + jnp.arange(steps, dtype=jnp.int32)
    still = pick(x, invert(active.xs))

    def fun(moving: State, rows: State, tangents: State) -> tuple[State, State, State]:
        def one(state: Any, at: Any) -> Any:
            k, t = state
            i, row, rest = at
            weights = [_moved_by(c, d) for c, d in zip(pick(consts, active.consts), t, strict=True)]
            c = merge(active.consts, weights, pick(consts, invert(active.consts)))
            out, y = loop.step(i, c, k, merge(active.xs, row, rest))
            # times one: what a scan hands through as it is, JAX would make a const again
            return (out, [d * jnp.ones((), d.dtype) for d in t]), pick(y, wanted)

        start = (merge(active.carry, moving, pick(carry, invert(active.carry))), tangents)
        (out, t), y = lax.scan(
            one, start, (indices, rows, still), length=steps, reverse=loop.reverse, unroll=loop.unroll
        )
        return pick(out, active.carry), t, y

    # the primal value of the tangents' carrier is never read
    _, pull = jax.vjp(fun, pick(carry, active.carry), pick(x, active.xs), pick(consts, active.consts))
    ct, g_x, sums = pull((ct, sums, pick(ct_y, wanted)))
    return ct, sums, g_x


@jax.custom_jvp
def _moved_by(value: Any, carrier: Any) -> Any:
    """`value`, with the tangent of `carrier`."""
    del carrier
    return value


@_moved_by.defjvp
def _moved_by_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[1]
