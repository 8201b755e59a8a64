"""The engine: one forward and one reverse loop that run any `Loop` with its slots updated in place.

`forward` stores states as it goes (binomially where the trip count is known when the loop starts, at growing
strides where it is not); `backward` always reverses from a stack of states, splitting binomially. Both are
plain `lax` loops whose program size does not depend on the trip count.

Where the loop has a tape, everything below that says step means a piece of so many steps, and a piece's steps
are differentiated together (`adjoint`); the last piece may be shorter.

Memory: `slots + 1` rows of the state (the extra one is the working row that a schedule needs before the step
it reverses), the state being advanced, the cotangent, and what one differentiated step keeps. The rows are
never sorted, gathered or padded afterwards: any of these makes the compiler hold them twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recoup import _compat
from recoup._loops import adjoint, runtime
from recoup._loops.schedules import DENSITY, held_online
from recoup._loops.spec import Active, Loop, pick, spread

State = list[Any]


@dataclass(frozen=True)
class Cache:
    """What the forward pass leaves for the reverse pass: trip count, stack of states, and where each one
    lies."""

    count: Any  # int32: steps run
    depth: Any  # int32: states held
    positions: Any  # int32[slots + 1]: ascending numbers of steps (of pieces, with a tape), valid below depth
    rows: Any  # int32[slots + 1]: the row of each
    slots: State  # each carry with a leading axis of slots + 1

    def flat(self) -> list[Any]:
        return [self.count, self.depth, self.positions, self.rows, *self.slots]

    @staticmethod
    def of(flat: Sequence[Any]) -> "Cache":
        count, depth, positions, rows = flat[:4]
        return Cache(count, depth, positions, rows, list(flat[4:]))


def plain(loop: Loop, count: Any, consts: State, init: State, xs: State) -> tuple[State, State, Any]:
    """Run without storing anything: (carry, ys, steps run)."""
    ys = _empty_ys(loop)
    if loop.cond is None:
        carry, ys = advance(loop, count, consts, xs, jnp.int32(0), count, init, ys)
        return carry, ys, count
    (steps, carry) = _advance_while(loop, consts, jnp.int32(0), count, init)
    return carry, ys, steps


def forward(loop: Loop, count: Any, consts: State, init: State, xs: State) -> tuple[State, State, Cache]:
    """Run and store: (carry, ys, cache). `count` is the trip count, or the most steps where there is a
    condition."""
    rows = jnp.arange(loop.slots + 1, dtype=jnp.int32)
    positions = jnp.zeros_like(rows)
    slots = [_rows_like(a, loop.slots + 1) for a in init]
    if loop.cond is not None:
        return _forward_online(
            loop, count, consts, init, xs, Cache(count, jnp.int32(0), positions, rows, slots)
        )

    reaches = runtime.table(loop.slots)
    pieces = loop.pieces(count)

    def more(state: Any) -> Any:
        return state[0] < pieces

    def stretch(state: Any) -> Any:
        p, depth, positions, carry, ys, slots = state
        slots = _store(slots, depth, carry)
        positions = lax.dynamic_update_index_in_dim(positions, p, depth, 0)
        last = pieces - 1
        end = jnp.where(p >= last, pieces, p + runtime.split(pieces - p, loop.slots - depth, reaches))
        carry, ys = _advance_pieces(loop, count, consts, xs, p, end, carry, ys)
        return end, depth + 1, positions, carry, ys, slots

    ys = _empty_ys(loop)
    zero = jnp.int32(0)
    _, depth, positions, carry, ys, slots = lax.while_loop(
        more, stretch, (zero, zero, positions, init, ys, slots)
    )
    return carry, ys, Cache(count, depth, positions, rows, slots)


def _forward_online(
    loop: Loop, most: Any, consts: State, init: State, xs: State, cache: Cache
) -> tuple[State, State, Cache]:
    held = held_online(loop.slots)

    def more(state: Any) -> Any:
        return (state[0] < most) & loop.more(consts, state[-2])

    def stretch(state: Any) -> Any:
        p, depth, positions, rows, carry, slots = state
        if held > 1:
            positions, rows, depth = runtime.make_room(positions, rows, depth, p, loop.slots)
        slots = _store(slots, rows[depth], carry)
        positions = lax.dynamic_update_index_in_dim(positions, p, depth, 0)
        end = jnp.minimum(most, p + jnp.maximum(p // (DENSITY * loop.slots), 1)) if held > 1 else most
        p, carry = _advance_while(loop, consts, p, end, carry)
        return p, depth + 1, positions, rows, carry, slots

    zero = jnp.int32(0)
    p, depth, positions, rows, carry, slots = lax.while_loop(
        more, stretch, (zero, zero, cache.positions, cache.rows, init, cache.slots)
    )
    return carry, [], Cache(p, depth, positions, rows, slots)


def backward(
    loop: Loop,
    active: Active,
    consts: State,
    xs: State,
    cache: Cache,
    ct_carry: State,
    ct_ys: State,
) -> tuple[State, State, State]:
    """Reverse the loop: cotangents of the active (consts, carry, xs).

    `ct_carry` has an entry per active carry, `ct_ys` one per output, None where there is none.
    """
    count = cache.count
    reaches = runtime.table(loop.slots)

    def descend(state: Any) -> Any:
        step, p, top, positions, carry, slots = state
        end = p + runtime.split(step + 1 - p, loop.slots - top, reaches)
        carry, _ = _advance_pieces(loop, count, consts, xs, p, end, carry, None)

        # Zero or one trip: a loop that does not run leaves the slots where they are, a branch copies them.
        def store(state: Any) -> Any:
            _, top, positions, slots = state
            positions = lax.dynamic_update_index_in_dim(positions, end, top + 1, 0)
            return False, top + 1, positions, _store(slots, cache.rows[top + 1], carry)

        wanted = (end < step, top, positions, slots)
        _, top, positions, slots = lax.while_loop(lambda s: s[0], store, wanted)
        return step, end, top, positions, carry, slots

    def reverse(state: Any) -> Any:
        step, top, positions, slots, *gradients = state
        p = positions[top]
        exact = p == step
        start = (step, p, top, positions, _read(slots, cache.rows[top]), slots)
        _, _, top, positions, carry, slots = lax.while_loop(lambda s: s[1] < s[0], descend, start)
        top = jnp.where(exact, top - 1, top)
        undone = _undo(loop, active, count, loop.tape, step, consts, xs, carry, ct_ys, *gradients)
        return step - 1, top, positions, slots, *undone

    gradients = (
        ct_carry,
        [jnp.zeros_like(c) for c in pick(consts, active.consts)],
        [jnp.zeros_like(x) for x in pick(xs, active.xs)],
    )
    step, top = loop.pieces(count) - 1, cache.depth - 1
    if loop.tape > 1 and loop.length is not None and loop.length % loop.tape:
        # the short last piece: the forward pass holds the state before it
        last = _read(cache.slots, cache.rows[top])
        left = loop.length % loop.tape
        gradients = _undo(loop, active, count, left, step, consts, xs, last, ct_ys, *gradients)
        step, top = step - 1, top - 1
    state = (step, top, cache.positions, cache.slots, *gradients)
    *_, ct, acc_consts, acc_xs = lax.while_loop(lambda s: s[0] >= 0, reverse, state)
    return acc_consts, ct, acc_xs


def _undo(
    loop: Loop,
    active: Active,
    count: Any,
    steps: int,
    piece: Any,
    consts: State,
    xs: State,
    carry: State,
    ct_ys: State,
    ct: State,
    acc_consts: State,
    acc_xs: State,
) -> tuple[State, State, State]:
    """Differentiate one piece of `steps` steps: the cotangents (carry, consts, xs) with its part added."""
    if loop.tape == 1:
        i = _index(loop, count, piece)
    else:
        first = piece * loop.tape
        i = _index(loop, count, first + steps - 1) if loop.reverse else first

    def row(a: Any) -> Any:
        if a is None:
            return None
        return _row(a, i) if loop.tape == 1 else lax.dynamic_slice_in_dim(a, i, steps)

    operands = (i, consts, carry, [row(a) for a in xs], ct, [row(a) for a in ct_ys], acc_consts)
    undo = adjoint.piece(loop, active, steps)
    if loop.plan is not None:
        from recoup._loops.planned import planned  # the planner, which few loops need

        undo = planned(undo, operands, loop.plan, loop.plan_bytes)
    ct, acc_consts, g_xs = undo(*operands)
    if loop.tape == 1:
        acc_xs = [lax.dynamic_update_index_in_dim(a, g, i, 0) for a, g in zip(acc_xs, g_xs, strict=True)]
    else:
        acc_xs = [lax.dynamic_update_slice_in_dim(a, g, i, 0) for a, g in zip(acc_xs, g_xs, strict=True)]
    return ct, acc_consts, acc_xs


def _advance_pieces(
    loop: Loop, count: Any, consts: State, xs: State, begin: Any, end: Any, carry: State, ys: State | None
) -> tuple[State, Any]:
    """Run pieces `begin` to `end`."""
    if loop.tape > 1:
        begin, end = begin * loop.tape, jnp.minimum(end * loop.tape, count)
    return advance(loop, count, consts, xs, begin, end, carry, ys)


def advance(
    loop: Loop, count: Any, consts: State, xs: State, begin: Any, end: Any, carry: State, ys: State | None
) -> tuple[State, Any]:
    """Run steps `begin` to `end`; outputs go to their place in `ys`, or nowhere if it is None."""

    def one(state: Any) -> Any:
        p, carry, ys = state
        i = _index(loop, count, p)
        carry, y = loop.step(i, consts, carry, _read(xs, i))
        if ys is not None:
            ys = [lax.dynamic_update_index_in_dim(a, b, i, 0) for a, b in zip(ys, y, strict=True)]
        return p + 1, carry, ys

    def several(state: Any) -> Any:
        for _ in range(loop.unroll):
            state = one(state)
        return state

    state = (begin, carry, ys)
    if loop.unroll > 1:
        state = lax.while_loop(lambda s: s[0] + loop.unroll <= end, several, state)
    _, carry, ys = lax.while_loop(lambda s: s[0] < end, one, state)
    return carry, ys


def _advance_while(loop: Loop, consts: State, begin: Any, end: Any, carry: State) -> tuple[Any, State]:
    """Run from step `begin` to `end` or until the condition says stop: (steps run, carry)."""

    def one(state: Any) -> Any:
        p, carry = state
        carry, _ = loop.step(p, consts, carry, [])
        return p + 1, carry

    result: tuple[Any, State] = lax.while_loop(
        lambda s: (s[0] < end) & loop.more(consts, s[1]), one, (begin, carry)
    )
    return result


def _index(loop: Loop, count: Any, step: Any) -> Any:
    return count - 1 - step if loop.reverse else step


def _row(a: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(a, i, 0, keepdims=False)


def _read(arrays: State, i: Any) -> State:
    return [_row(a, i) for a in arrays]


def _store(slots: State, row: Any, carry: State) -> State:
    return [lax.dynamic_update_index_in_dim(a, b, row, 0) for a, b in zip(slots, carry, strict=True)]


def _rows_like(a: Any, rows: int) -> Any:
    return jnp.broadcast_to(a[None], (rows, *a.shape))


def _empty_ys(loop: Loop) -> State:
    if not loop.num_ys:
        return []
    if loop.length is None:
        raise AssertionError("a loop with outputs has a static length")
    *_, rows = loop.avals()
    return [_zeros(_compat.with_leading(a, loop.length)) for a in rows]


def _zeros(aval: Any) -> Any:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        impl = jax.random.key_impl(jnp.empty((), aval.dtype))
        return jnp.broadcast_to(jax.random.key(0, impl=impl), aval.shape)
    return _compat.zeros_of(aval)


__all__ = ["Cache", "advance", "backward", "forward", "plain", "spread"]
