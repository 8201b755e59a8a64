"""The binomial split, and which state to forget, computed by the compiled loop itself.

Computing the splits at run time is what makes compile time independent of a loop's length: the program holds
a few integer operations instead of a table of actions. `split` is `recoup._loops.schedules.split` in 32-bit
arithmetic; where a binomial number would overflow it is clipped, which can cost a few extra advances and
never a wrong state.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from recoup._loops.schedules import held_online

LIMIT = 2**30
COLUMNS = 24


def table(slots: int) -> np.ndarray[Any, Any]:
    """int32[slots + 1, COLUMNS]: what `s` slots reach with `t` repeats, C(s+t, t), clipped to LIMIT."""
    rows = []
    for s in range(slots + 1):
        row, reached = [], 1
        for t in range(COLUMNS):
            reached = 1 if t == 0 else reached * (s + t) // t
            row.append(min(reached, LIMIT))
        rows.append(row)
    return np.asarray(rows, np.int32)


def split(n: jax.Array, slots: jax.Array, reaches: np.ndarray[Any, Any]) -> jax.Array:
    """How far to advance before the next store: int32 scalars in, an int32 scalar in [1, max(n - 1, 1)] out.

    For `slots <= 1` the answer is `n - 1`: straight to the step that is reversed next. `reaches` is `table`
    of the most slots that are asked about. Beyond its columns (few slots and a very long loop) the numbers
    are continued one by one.
    """
    s = jnp.maximum(slots, 2)
    row = jnp.asarray(reaches)[jnp.minimum(s, reaches.shape[0] - 1)]
    # (t, C(s+t, t), C(s+t-1, t-1), C(s+t-2, t-2)): what s slots reach with t, t-1, t-2 repeats
    t = jnp.minimum(jnp.sum(row < n, dtype=jnp.int32), COLUMNS - 1)

    def grow(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        t, now, before, _ = state
        t = t + 1
        return t, jnp.minimum(now + _muldiv(now, s, t), LIMIT), now, before

    start = (t, row[t], row[jnp.maximum(t - 1, 0)], row[jnp.maximum(t - 2, 0)])
    t, now, _, before2 = lax.while_loop(lambda st: st[1] < n, grow, start)
    # C(s-1+t, t) = C(s+t, t) * s / (s+t): what s-1 slots reach with t repeats
    fewer = _muldiv(now, s, s + t)
    best = jnp.maximum(before2, n - fewer)
    best = jnp.where(slots <= 1, n - 1, best)
    return jnp.clip(best, 1, jnp.maximum(n - 1, 1))


def _muldiv(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """a * b // c without leaving 32 bits, clipped to LIMIT; exact where the quotient is a whole number below
    LIMIT."""
    whole, rest = a // c, a % c
    # (whole*c + rest) * b / c = whole*b + rest*b/c, and rest < c is small
    limit = jnp.int32(LIMIT)
    big = jnp.where(whole > limit // b, limit, whole * b)
    return jnp.minimum(big, limit - rest * b // c) + rest * b // c


def make_room(
    positions: jax.Array, rows: jax.Array, depth: jax.Array, p: jax.Array, slots: int
) -> tuple[jax.Array, ...]:
    """(positions, rows, depth) with room for a state at step `p`: where the slots that `online` fills are all
    taken, one is given up, `schedules.stores_online`.

    Only the two small index vectors move; the row that is given up comes right behind those in use.
    """
    held = held_online(slots)
    index = jnp.arange(positions.shape[0], dtype=jnp.int32)
    ahead = jnp.where(index == held - 1, p, jnp.roll(positions, -1))
    merged = (ahead - jnp.roll(positions, 1)).astype(jnp.float32)
    inner = (index > 0) & (index < held)
    free = jnp.maximum(slots + 1 - index, 1).astype(jnp.float32)
    gone = jnp.argmin(jnp.where(inner, merged / free, jnp.inf)).astype(jnp.int32)
    moved = jnp.where(
        (index >= gone) & (index < held - 1), index + 1, jnp.where(index == held - 1, gone, index)
    )
    source = jnp.where(depth == held, moved, index)
    return positions[source], rows[source], jnp.minimum(depth, held - 1)
