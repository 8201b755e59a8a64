"""Schedules of a bounded reverse pass, as streams of small actions. No JAX.

A loop of `n` steps is run forward once and then reversed, holding at most `slots` states. What is counted,
here and everywhere in recoup:

* an *advance* is one execution of the step that is not differentiated; the `n` advances of the forward pass
  are included, because the loop's result is needed;
* a *reverse* is one execution of the step that is differentiated; there are exactly `n`, in every schedule;
* the initial state takes one of the `slots`; the state that is being advanced (and, at the end of the forward
  pass, the state before the last step, which is where the reverse pass begins) does not.

With this convention the fewest advances are `1 + extra(n, slots)`: the binomial number of Griewank and
Walther (ACM TOMS 26, 2000, algorithm 799), whose forward sweep stops before the last step, plus that last
step.

Limits: `binomial` is optimal for equal step costs; `online` does not know `n` and is not optimal; see
`docs/loops.md`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb, isqrt

import numpy as np

DENSITY = 2  # `online` offers a state to the slots every 1 / (DENSITY slots) of the steps gone by


@dataclass(frozen=True)
class Store:
    """Keep the working state (which is the state before step `step`) in `slot`."""

    slot: int
    step: int
    store: str = "memory"


@dataclass(frozen=True)
class Advance:
    """Run the step from state `begin` to state `end`, keeping nothing on the way."""

    begin: int
    end: int


@dataclass(frozen=True)
class Load:
    """Make the state before step `step`, held in `slot`, the working state."""

    slot: int
    step: int
    store: str = "memory"


@dataclass(frozen=True)
class Free:
    """Forget what `slot` holds."""

    slot: int
    store: str = "memory"


@dataclass(frozen=True)
class Reverse:
    """Differentiate `steps` steps from `step` on, their residuals held meanwhile; the working state is the
    state before the first. Consumes the working state."""

    step: int
    steps: int = 1


@dataclass(frozen=True)
class ForwardEnd:
    """The forward pass is over: the working state is the loop's result, and is given up."""


Action = Store | Advance | Load | Free | Reverse | ForwardEnd


def reach(slots: int, repeats: int) -> int:
    """The largest loop reversible with `slots` states and `repeats` advances a step: C(slots+repeats,
    slots)."""
    return comb(slots + repeats, slots)


def extra(n: int, slots: int) -> int:
    """Fewest advances of a sweep-and-reverse of `n` steps that stops before the last one (Griewank and
    Walther).

    Raises:
        ValueError: if `n` is negative or `slots` is less than one.
    """
    if n < 0 or slots < 1:
        raise ValueError(f"extra(n={n}, slots={slots}): n must be >= 0 and slots >= 1")
    if n <= 1:
        return 0
    if slots == 1:
        return n * (n - 1) // 2
    repeats = least_repeats(n, slots)
    return repeats * n - comb(slots + repeats, repeats - 1)


def least_repeats(n: int, slots: int) -> int:
    """The smallest number of advances a step with which `n` steps can be reversed."""
    if slots == 1:
        return max(n - 1, 0)
    repeats, reached = 0, 1
    while reached < n:
        repeats += 1
        reached = reached * (slots + repeats) // repeats
    return repeats


def optimal_advances(n: int, slots: int) -> int:
    """Fewest advances, forward pass included, of any schedule of `n` steps that holds `slots` states."""
    return 0 if n == 0 else 1 + extra(n, slots)


def split(n: int, slots: int) -> int:
    """How far to advance before the next store, with `n` steps to reverse and `slots` states, one of them
    taken.

    Any value between the two bounds below is optimal; the smallest is taken. With one slot there is no store:
    the answer is `n - 1`, straight to the last step. The run-time form is `recoup._loops.runtime.split`.
    """
    if n <= 1:
        return n
    if slots == 1:
        return n - 1
    t = least_repeats(n, slots)
    lowest = max(reach(slots, t - 2) if t >= 2 else 1, n - reach(slots - 1, t))
    return min(max(lowest, 1), n - 1)


def binomial(n: int, slots: int) -> Iterator[Action]:
    """The schedule with the fewest advances for a known number of steps."""
    positions: list[int] = []
    p = 0
    while p < n:
        positions.append(p)
        yield Store(len(positions) - 1, p)
        free = slots - (len(positions) - 1)
        end = n if p == n - 1 else (n - 1 if free <= 1 else p + split(n - p, free))
        yield Advance(p, end)
        p = end
    yield ForwardEnd()
    yield from _reverse_stack(n, slots, positions, list(range(slots + 1)))


def taped(n: int, slots: int, tape: int) -> Iterator[Action]:
    """Binomial over pieces of `tape` steps, each differentiated whole; the last piece may be shorter."""
    for action in binomial(-(-n // tape), slots):
        match action:
            case Store(slot, piece):
                yield Store(slot, piece * tape)
            case Load(slot, piece):
                yield Load(slot, piece * tape)
            case Advance(begin, end):
                yield Advance(begin * tape, min(end * tape, n))
            case Reverse(piece):
                yield Reverse(piece * tape, min(tape, n - piece * tape))
            case _:
                yield action


def taped_advances(n: int, slots: int, tape: int) -> int:
    """Advances of `taped`, forward pass included: only that one runs the shorter last piece."""
    pieces = -(-n // tape)
    return optimal_advances(pieces, slots) * tape - (pieces * tape - n)


def everything(n: int, slots: int | None = None) -> Iterator[Action]:
    """Every state is held: `n` slots, no step advanced twice."""
    yield from binomial(n, max(n, 1))


def held_online(slots: int) -> int:
    """How many of `slots` the forward pass of `online` fills; the rest serve the reverse of the last
    stretch."""
    return slots - isqrt(slots - 1)


def stores_online(n: int, slots: int) -> Iterator[tuple[int, int | None, int]]:
    """The states that the forward pass of `online` stores, as (step, which state is forgotten for it, step at
    which the next one follows).

    Once `held_online(slots)` are held, each new state replaces one (named by its place in ascending order;
    the first is kept). Without that one, two stretches become one, which is reversed with the slots that are
    free from its start on: the shortest in relation to their number is chosen. In 32-bit floats, as in
    `runtime.make_room`.
    """
    held = held_online(slots)
    at = np.zeros(held + 1, np.int64)
    free = (slots - np.arange(held - 1)).astype(np.float32)
    count = p = 0
    while p < n:
        gone = None
        if count == held:
            at[held] = p
            gone = 1 + int(np.argmin((at[2:] - at[:-2]).astype(np.float32) / free))
            at[gone:held] = at[gone + 1 :]
        else:
            at[count] = p
            count += 1
        end = n if held == 1 else min(n, p + max(p // (DENSITY * slots), 1))
        yield p, gone, end
        p = end


def online(n: int, slots: int) -> Iterator[Action]:
    """A loop whose length is known only when it ends: strides grow with the steps gone, then binomial.

    `n` is used only to stop.
    """
    positions: list[int] = []
    rows = list(range(slots + 1))
    for p, gone, end in stores_online(n, slots):
        if gone is not None:
            rows.insert(len(positions) - 1, rows.pop(gone))
            del positions[gone]
            yield Free(rows[len(positions)])
        yield Store(rows[len(positions)], p)
        positions.append(p)
        yield Advance(p, end)
    yield ForwardEnd()
    yield from _reverse_stack(n, slots, positions, rows)


def _reverse_stack(n: int, slots: int, positions: list[int], rows: list[int]) -> Iterator[Action]:
    """Reverse `n` steps from states held at `positions` (ascending, in `rows`), splitting binomially."""
    positions = list(positions)
    for step in range(n - 1, -1, -1):
        while positions[-1] < step:
            top = len(positions) - 1
            free = slots - top
            yield Load(rows[top], positions[top])
            end = step if free <= 1 else positions[top] + split(step + 1 - positions[top], free)
            yield Advance(positions[top], end)
            positions.append(end)
            yield Store(rows[top + 1], end)
        top = len(positions) - 1
        yield Load(rows[top], step)
        yield Free(rows[top])
        positions.pop()
        yield Reverse(step)


def level_lengths(n: int, levels: int) -> tuple[int, ...]:
    """Near-equal trip counts of `levels` nested loops whose product is at most `n` and misses it by little.

    The steps that are left, `n - product`, are run as a loop of their own (see `nested`). `levels` <= 4.
    """
    if levels < 1:
        raise ValueError(f"level_lengths: levels must be >= 1, got {levels}")
    if levels == 1 or n < 2**levels:
        return (n,)
    outer = max(1, round(n ** (1 / levels)))
    # an exact divisor near the root leaves no remainder loop, which would be compiled separately
    for candidate in sorted(range(max(2, outer * 2 // 3), outer * 3 // 2 + 1), key=lambda c: abs(c - outer)):
        if n % candidate == 0:
            outer = candidate
            break
    if levels == 2:
        return (outer, n // outer)
    return (outer, *level_lengths(n // outer, levels - 1))


def two_store_interval(n: int, slots: int, advance_cost: float, write_cost: float, read_cost: float) -> int:
    """Steps between states written to the second store that make the whole reverse pass cheapest.

    Costs are in any one unit: of one advance, of one state written, of one state read. Candidates are the
    lengths `reach(slots, t)` at which the recomputation per step takes its jumps, and `n` (no second store).
    The states of the second store are not limited in number.
    """
    best, best_cost = n, optimal_advances(n, slots) * advance_cost
    repeats = 1
    while True:
        interval = min(reach(slots, repeats), n)
        if interval >= n:
            return best
        whole, left = divmod(n, interval)
        advances = n + whole * extra(interval, slots) + extra(left, slots)
        pieces = whole + (left > 0)
        cost = advances * advance_cost + pieces * (write_cost + read_cost)
        if cost < best_cost:
            best, best_cost = interval, cost
        repeats += 1


def two_store(n: int, slots: int, interval: int) -> Iterator[Action]:
    """A second store (disk, host memory) holds a state every `interval` steps; each piece is reversed
    binomially.

    The recomputation of a piece starts from the second store's state, which takes one of the `slots`.
    """
    starts = list(range(0, n, max(interval, 1)))
    for index, p in enumerate(starts):
        yield Store(index, p, "second")
        yield Advance(p, min(p + interval, n))
    yield ForwardEnd()
    for index in range(len(starts) - 1, -1, -1):
        p, end = starts[index], min(starts[index] + interval, n)
        yield Load(index, p, "second")
        yield Free(index, "second")
        yield Store(0, p)
        for action in _reverse_stack(end - p, slots, [0], list(range(slots + 1))):
            yield _shift(action, p)


def _shift(action: Action, by: int) -> Action:
    match action:
        case Store(slot, step, where):
            return Store(slot, step + by, where)
        case Load(slot, step, where):
            return Load(slot, step + by, where)
        case Advance(begin, end):
            return Advance(begin + by, end + by)
        case Reverse(step, steps):
            return Reverse(step + by, steps)
    return action


def default_slots(n: int) -> int:
    """Slots when nobody gives a number: twice the square root, so that a step is advanced at most twice."""
    return max(1, 2 * isqrt(max(n, 1)))


def online_advances(n: int, slots: int) -> int:
    """Advances of `online`, forward pass included, without executing it."""
    positions: list[int] = []
    for p, gone, _ in stores_online(n, slots):
        if gone is not None:
            del positions[gone]
        positions.append(p)
    ends = [*positions[1:], n] if positions else []
    pieces = enumerate(zip(positions, ends, strict=True))
    return n + sum(extra(end - begin, slots - k) for k, (begin, end) in pieces)
