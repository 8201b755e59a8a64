"""The engine: one forward and one reverse loop that run any `Loop` with its slots updated in place.

`forward` stores states as it goes (binomially where the trip count is known when the loop starts, at doubling
strides where it is not); `backward` always reverses from a stack of states, splitting binomially. Both are
plain `lax` loops whose program size does not depend on the trip count.

Memory: `slots + 1` rows of the state (the extra one is the working row that a schedule needs before the step
it reverses), the state being advanced, the cotangent, and what one differentiated step keeps. The rows are
never sorted, gathered or padded afterwards: any of these makes the compiler hold them twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recoup import _compat
from recoup._loops import runtime
from recoup._loops.schedules import held_online
from recoup._loops.spec import Active, Loop, invert, merge, pick, spread

State = list[Any]


@dataclass(frozen=True)
class Cache:
    """What the forward pass leaves for the reverse pass: trip count, stack of states, and where each one
    lies."""

    count: Any  # int32: steps run
    depth: Any  # int32: states held
    positions: Any  # int32[slots + 1]: ascending step numbers, valid below depth
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

    def more(state: Any) -> Any:
        return state[0] < count

    def stretch(state: Any) -> Any:
        p, depth, positions, carry, ys, slots = state
        slots = _store(slots, depth, carry)
        positions = lax.dynamic_update_index_in_dim(positions, p, depth, 0)
        last = count - 1
        end = jnp.where(p >= last, count, p + runtime.split(count - p, loop.slots - depth, reaches))
        carry, ys = advance(loop, count, consts, xs, p, end, carry, ys)
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
        p, depth, stride, positions, rows, carry, slots = state
        if held > 1:
            thinned = runtime.thin(positions, rows, depth, stride)
            full = depth == held
            positions, rows, depth, stride = [
                jnp.where(full, a, b) for a, b in zip(thinned, (positions, rows, depth, stride), strict=True)
            ]
        # after a thinning of an even number of states this one is half way between two strides: it is not
        # kept
        keep = (p % stride == 0) & (depth < held)
        slots = _store(slots, rows[depth], carry)
        positions = lax.dynamic_update_index_in_dim(positions, p, depth, 0)
        depth = jnp.where(keep, depth + 1, depth)
        end = jnp.minimum(most, (p // stride + 1) * stride) if held > 1 else most
        p, carry = _advance_while(loop, consts, p, end, carry)
        return p, depth, stride, positions, rows, carry, slots

    zero = jnp.int32(0)
    p, depth, _, positions, rows, carry, slots = lax.while_loop(
        more, stretch, (zero, zero, jnp.int32(1), cache.positions, cache.rows, init, cache.slots)
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
    adjoint = _adjoint(loop, active)
    count = cache.count
    acc_consts = [jnp.zeros_like(c) for c in pick(consts, active.consts)]
    acc_xs = [jnp.zeros_like(x) for x in pick(xs, active.xs)]

    reaches = runtime.table(loop.slots)

    def descend(state: Any) -> Any:
        step, p, top, positions, carry, slots = state
        end = p + runtime.split(step + 1 - p, loop.slots - top, reaches)
        carry, _ = advance(loop, count, consts, xs, p, end, carry, None)

        # Zero or one trip: a loop that does not run leaves the slots where they are, a branch copies them.
        def store(state: Any) -> Any:
            _, top, positions, slots = state
            positions = lax.dynamic_update_index_in_dim(positions, end, top + 1, 0)
            return False, top + 1, positions, _store(slots, cache.rows[top + 1], carry)

        wanted = (end < step, top, positions, slots)
        _, top, positions, slots = lax.while_loop(lambda s: s[0], store, wanted)
        return step, end, top, positions, carry, slots

    def reverse(state: Any) -> Any:
        step, top, positions, slots, ct, acc_consts, acc_xs = state
        p = positions[top]
        exact = p == step
        start = (step, p, top, positions, _load(slots, cache.rows[top]), slots)
        _, _, top, positions, carry, slots = lax.while_loop(lambda s: s[1] < s[0], descend, start)
        top = jnp.where(exact, top - 1, top)
        i = _index(loop, count, step)
        ct_y = [None if c is None else lax.dynamic_index_in_dim(c, i, 0, keepdims=False) for c in ct_ys]
        g_consts, ct, g_xs = adjoint(i, consts, carry, _read(xs, i), ct, ct_y)
        acc_consts = [a + g for a, g in zip(acc_consts, g_consts, strict=True)]
        acc_xs = [lax.dynamic_update_index_in_dim(a, g, i, 0) for a, g in zip(acc_xs, g_xs, strict=True)]
        return step - 1, top, positions, slots, ct, acc_consts, acc_xs

    state = (count - 1, cache.depth - 1, cache.positions, cache.slots, ct_carry, acc_consts, acc_xs)
    *_, ct, acc_consts, acc_xs = lax.while_loop(lambda s: s[0] >= 0, reverse, state)
    return acc_consts, ct, acc_xs


def _adjoint(loop: Loop, active: Active) -> Callable[..., tuple[State, State, State]]:
    """One differentiated step: (i, consts, carry, x, ct_carry, ct_y) -> cotangents of the active (consts,
    carry, x)."""

    def adjoint(
        i: Any, consts: State, carry: State, x: State, ct: State, ct_y: State
    ) -> tuple[State, State, State]:
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
        result: tuple[State, State, State] = pull((ct, pick(ct_y, wanted)))
        return result

    return adjoint


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


def _read(xs: State, i: Any) -> State:
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in xs]


def _load(slots: State, row: Any) -> State:
    return [lax.dynamic_index_in_dim(a, row, 0, keepdims=False) for a in slots]


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
