"""Which mechanism runs a loop: the candidates with their bytes and evaluations, and the choice. No JAX.

Predicted bytes are of the compiled temporaries; the formulas were fitted to none of the measurements that
`docs/loops.md` compares them with, they follow from what each mechanism holds:

    all         n R + 2 S
    levels      k1 S + ... + k(d-1) S + kd R + 3 S + d G      (tape; without: kd S + R for the last level)
    binomial    (s + 3) S + R + G                              (online likewise)
    ... tapes   (s + 3) S + m (R + X) + G

S: bytes of the carry; R: bytes that one step keeps for its own differentiation; G: bytes of the gradients of
captured tensors; X: bytes of a row of `xs`; n: steps; k: trip counts of the levels; s: slots; m: steps of a
tape, which are differentiated together. Evaluations count every execution of the step, the differentiated one
included, so that a plain scan has n.

Where R is large beside S and the budget, the planner that `fit` uses says what a piece of m steps can be made
to take instead of m R, and at what extra work (`Trade`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, prod

from recoup._loops.loop_plan import Candidate, LoopPlan, Sizes, Trade
from recoup._loops.schedules import (
    default_slots,
    held_online,
    level_lengths,
    online_advances,
    optimal_advances,
    taped_advances,
)
from recoup._report.text import format_bytes
from recoup.errors import BudgetError

UNKNOWN_SLOTS = 64
UNKNOWN_LENGTH = 10_000  # for which slots and plans of a step are compared where the length is unknown
LARGE = 4  # states: residuals of one step that are worth planning ...
MANY = 64  # ... unless the budget holds so many steps' residuals
MAX_LEVELS = 4
METHODS = ("auto", "all", "levels", "binomial")


def binomial_bytes(sizes: Sizes, slots: int) -> int:
    """The engine with `slots` states; counters and where each state lies take 2 KiB, 16 bytes a slot."""
    books = 2048 + 16 * (slots + 1)
    return (slots + 3) * sizes.state_bytes + sizes.residual_bytes + sizes.gradient_bytes + books


def with_slots(n: int | None, slots: int, sizes: Sizes) -> Candidate:
    """The engine with a number of slots: binomial, or online where the length is unknown."""
    if n is None:
        return Candidate("online", binomial_bytes(sizes, slots), None, slots)
    return Candidate("binomial", binomial_bytes(sizes, slots), optimal_advances(n, slots) + n, slots)


def tape_bytes(n: int, sizes: Sizes, slots: int, steps: int) -> int:
    """The engine with `slots` states and a tape of `steps` steps, their rows of `xs` included."""
    row_bytes = -(-sizes.xs_bytes // max(n, 1))
    return binomial_bytes(sizes, slots) + (steps - 1) * sizes.residual_bytes + steps * row_bytes


def with_tape(n: int, slots: int, steps: int, sizes: Sizes) -> Candidate:
    """The engine with a number of slots, `steps` steps at a time differentiated together."""
    evaluations = taped_advances(n, slots, steps) + n
    return Candidate("binomial", tape_bytes(n, sizes, slots, steps), evaluations, slots, tape_steps=steps)


def engines_within(n: int, sizes: Sizes, budget_bytes: int) -> Iterator[Candidate]:
    """The engine within so many bytes: single steps, and the tape with the fewest evaluations."""
    slots = min(slots_within(budget_bytes, sizes), max(n, 1))
    if slots >= 1:
        yield with_slots(n, slots, sizes)
    if not sizes.state_bytes:
        return
    taped, steps = [], 2
    while steps < n:
        left = budget_bytes - tape_bytes(n, sizes, 0, steps)
        slots = min(left // (sizes.state_bytes + 16), -(-n // steps))
        if slots < 1:
            break
        taped.append(with_tape(n, slots, steps, sizes))
        steps = max(steps + 1, steps * 16 // 15)
    if taped:
        yield min(taped, key=cheapest)


def planned_bytes(sizes: Sizes, slots: int, trade: Trade) -> int:
    """The engine with `slots` states and a piece of which the planner knows what it takes there."""
    return binomial_bytes(sizes, slots) - sizes.residual_bytes - sizes.gradient_bytes + trade.bytes


def with_trade(n: int | None, slots: int, trade: Trade, sizes: Sizes) -> Candidate:
    """The engine with a number of slots and a planned piece."""
    length = UNKNOWN_LENGTH if n is None else n
    advances = online_advances(length, slots) if n is None else taped_advances(length, slots, trade.steps)
    return Candidate(
        "online" if n is None else "binomial",
        planned_bytes(sizes, slots, trade),
        advances + ceil(length * (1 + trade.extra)),
        slots,
        tape_steps=trade.steps,
        trade=trade,
    )


def planned_within(
    n: int | None, sizes: Sizes, budget_bytes: int, trades: Callable[[int], list[Trade]]
) -> Iterator[Candidate]:
    """The engine with what the planner offers for a piece: for each length of a piece the cheapest."""
    steps, length = 1, UNKNOWN_LENGTH if n is None else n
    while steps == 1 or (n is not None and steps < n):
        found = []
        for trade in trades(steps):
            left = budget_bytes - planned_bytes(sizes, 0, trade)
            slots = min(left // (sizes.state_bytes + 16), max(-(-length // steps), 1))
            if slots >= 1:
                found.append(with_trade(n, slots, trade, sizes))
        if not found:
            return
        yield min(found, key=cheapest)
        steps *= 4


def cheapest(c: Candidate) -> tuple[int, int]:
    """Fewest evaluations, then fewest bytes."""
    return c.evaluations or 0, c.predicted_bytes


def with_levels(n: int, levels: int, tape: bool, sizes: Sizes) -> Candidate:
    """Nested scans."""
    counts = level_lengths(n, levels)
    last = (
        counts[-1] * sizes.residual_bytes if tape else counts[-1] * sizes.state_bytes + sizes.residual_bytes
    )
    held = sum(counts[:-1]) * sizes.state_bytes + last + 3 * sizes.state_bytes
    per_step = len(counts) if tape else len(counts) + 1
    left = n - prod(counts)
    extra = left * (sizes.residual_bytes if tape else sizes.state_bytes)
    return Candidate(
        "levels", max(held, extra) + len(counts) * sizes.gradient_bytes, per_step * n, None, counts, tape
    )


def candidates(n: int, sizes: Sizes) -> Iterator[Candidate]:
    """Everything that does not depend on a budget."""
    yield Candidate("all", n * sizes.residual_bytes + 2 * sizes.state_bytes + sizes.gradient_bytes, n)
    for levels in range(2, MAX_LEVELS + 1):
        if n >= 2**levels:
            yield with_levels(n, levels, True, sizes)
            yield with_levels(n, levels, False, sizes)


def slots_within(budget_bytes: int, sizes: Sizes) -> int:
    """The most slots whose predicted bytes are within the budget; may be less than one."""
    left = budget_bytes - binomial_bytes(sizes, 0)
    return left // (sizes.state_bytes + 16)


def choose(
    n: int | None,
    sizes: Sizes,
    checkpoints: int | None = None,
    budget_bytes: int | None = None,
    method: str = "auto",
    trades: Callable[[int], list[Trade]] | None = None,
) -> LoopPlan:
    """Choose the mechanism.

    Args:
        n: steps, None where unknown. sizes: of the loop's pieces.
        checkpoints: states to hold. budget_bytes: what the loop may take; at most one of the two.
        method: "auto", or one of "all", "levels", "binomial" to insist.
        trades: asks the planner about pieces of so many steps; only called where it may pay.

    Raises:
        ValueError: for arguments that contradict one another.
        BudgetError: where nothing fits; names the smallest.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if checkpoints is not None and budget_bytes is not None:
        raise ValueError("give checkpoints= (states held) or budget= (bytes), not both")
    if checkpoints is not None and checkpoints < 1:
        raise ValueError(f"checkpoints must be at least 1 (the initial state takes one), got {checkpoints}")
    if checkpoints is not None and method in ("all", "levels"):
        raise ValueError(f"checkpoints= sets the slots of the binomial engine; method={method!r} has none")
    if n is None:
        return _choose_unknown(sizes, checkpoints, budget_bytes, trades)
    options = list(candidates(n, sizes))
    if checkpoints is not None:
        return LoopPlan(
            n, with_slots(n, checkpoints, sizes), "a number of states was given", sizes, tuple(options)
        )
    if budget_bytes is not None:
        return _choose_within(n, sizes, budget_bytes, method, options, trades)
    return _choose_freely(n, sizes, method, options)


def _worth_planning(sizes: Sizes, budget_bytes: int) -> bool:
    large = sizes.residual_bytes >= LARGE * max(sizes.state_bytes, 1)
    return large and sizes.residual_bytes * MANY > budget_bytes


def _choose_unknown(
    sizes: Sizes,
    checkpoints: int | None,
    budget_bytes: int | None,
    trades: Callable[[int], list[Trade]] | None,
) -> LoopPlan:
    if checkpoints is not None:
        return LoopPlan(None, with_slots(None, checkpoints, sizes), "a number of states was given", sizes)
    if budget_bytes is None:
        reason = f"the length is unknown and nothing was asked for: {UNKNOWN_SLOTS} states"
        return LoopPlan(None, with_slots(None, UNKNOWN_SLOTS, sizes), reason, sizes)
    if trades is not None and _worth_planning(sizes, budget_bytes):
        planned = list(planned_within(None, sizes, budget_bytes, trades))
        if not planned:
            raise _too_small(budget_bytes, _smallest(None, sizes, trades))
        best = replace(planned[0], evaluations=None)
        reason = f"the length is unknown: it evaluates {UNKNOWN_LENGTH} steps least often within the budget"
        return LoopPlan(None, best, reason, sizes, (), budget_bytes)
    slots = slots_within(budget_bytes, sizes)
    if slots < 1:
        raise _too_small(budget_bytes, with_slots(None, 1, sizes))
    reason = "the length is unknown: as many states as the budget holds"
    return LoopPlan(None, with_slots(None, slots, sizes), reason, sizes, (), budget_bytes)


def _smallest(n: int | None, sizes: Sizes, trades: Callable[[int], list[Trade]]) -> Candidate:
    """The engine with one slot and the smallest plan of a step."""
    return with_trade(n, 1, min(trades(1), key=lambda trade: trade.bytes), sizes)


def _choose_within(
    n: int,
    sizes: Sizes,
    budget_bytes: int,
    method: str,
    options: list[Candidate],
    trades: Callable[[int], list[Trade]] | None,
) -> LoopPlan:
    smallest = [with_slots(n, 1, sizes)]
    engines = list(engines_within(n, sizes, budget_bytes))
    everything = options[0].predicted_bytes <= budget_bytes and method == "auto"
    asked = not everything and method in ("auto", "binomial") and _worth_planning(sizes, budget_bytes)
    if trades is not None and asked:
        # the planner's numbers for a step as it is take the place of the formula's too
        engines = list(planned_within(n, sizes, budget_bytes, trades))
        smallest = [_smallest(n, sizes, trades)]
    options = [*options, *engines]
    if method != "auto":
        options = [c for c in options if c.method == method]
    fitting = [c for c in options if c.predicted_bytes <= budget_bytes]
    if not fitting:
        raise _too_small(budget_bytes, min([*options, *smallest], key=lambda c: c.predicted_bytes))
    best = min(fitting, key=cheapest)
    others = tuple(c for c in options if c is not best)
    return LoopPlan(
        n, best, "it evaluates the step least often within the budget", sizes, others, budget_bytes
    )


def _choose_freely(n: int, sizes: Sizes, method: str, options: list[Candidate]) -> LoopPlan:
    limit_bytes = binomial_bytes(sizes, default_slots(n))
    engine = min(engines_within(n, sizes, limit_bytes), key=cheapest)
    everything = options[0]
    options.append(engine)

    def plan(best: Candidate, reason: str) -> LoopPlan:
        return LoopPlan(n, best, reason, sizes, tuple(c for c in options if c is not best))

    if method == "all" or (method == "auto" and n < 4):
        return plan(everything, "it was asked for" if method == "all" else "the loop is too short to cut")
    if method == "binomial":
        return plan(engine, "it was asked for; in the bytes of twice the square root of the length in slots")
    two = [with_levels(n, 2, tape, sizes) for tape in (True, False)]
    best = two[0] if two[0].predicted_bytes <= 2 * two[1].predicted_bytes else two[1]
    options[:] = [c for c in options if c.levels != best.levels or c.tape != best.tape] + [best]
    if method == "levels":
        return plan(best, "it was asked for")
    if prod(best.levels) != n:
        return plan(engine, f"{n} steps do not divide into segments near the square root")
    if sizes.gradient_bytes > sizes.state_bytes:
        return plan(
            engine, "gradients of captured tensors would need an accumulator per level of nested scans"
        )
    if sizes.xs_bytes > best.predicted_bytes:
        return plan(engine, "nested scans would copy slices of the large xs")
    return plan(best, "segments near the square root of the length, differentiated by JAX itself")


def _too_small(budget_bytes: int, smallest: Candidate) -> BudgetError:
    return BudgetError(
        f"the loop cannot run within {format_bytes(budget_bytes)}: the smallest is {smallest.label} with "
        f"{format_bytes(smallest.predicted_bytes)} predicted. Give at least that, make the state or the "
        "residuals of one step smaller (recoup.checkpoint in the body), or use fewer captured tensors that "
        "need a gradient"
    )


__all__ = ["Candidate", "LoopPlan", "Sizes", "choose", "held_online"]
