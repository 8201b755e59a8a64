"""The ladder of a traced step: loop trades times schedules, from the plain step down, each with a prediction
when asked.

Idea: loop pairs are traded first (a jaxpr to jaxpr change), then the rest of the program is scheduled; rungs
of all trades together form one Pareto front. The memory model, which imitates the compiler, is asked only for
the rungs that a search visits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from recoup import _loop_pairs, _memory
from recoup._host import HostMemory
from recoup._inline import Flat
from recoup._loop_bodies import Body, apply_bodies, find_bodies
from recoup._loop_pairs import Pair
from recoup._memory import Prediction
from recoup._offload import offers
from recoup._planner.ladder import Rung, ladder, pareto_by
from recoup._planner.layout import Layout, layout
from recoup._program import Program
from recoup._rewrite import rewrite
from recoup._trace import Traced, to_program

_NEAR = 3  # neighbours on the ladder whose predictions may be in any order
_BELOW = 0.75  # of a rung's peak by the machine: far below, whatever its error
_OFFERED = 6  # loop trades that are also planned with host memory


@dataclass(frozen=True, eq=False)
class Variant:
    """The program after one trade for each pair of loops, before scheduling."""

    choice: tuple[int, ...]  # for each pair, then each body, its trade; -1 for "as it is"
    flat: Flat
    program: Program
    layout: Layout
    moves: tuple[int, ...] = ()  # values that may go to host memory (see `_offload`)


@dataclass(frozen=True, eq=False)
class Step:
    """One rung: a variant and a schedule of it."""

    variant: Variant
    rung: Rung
    peak_bytes: int  # by the planner's machine: temporaries only
    cost: float  # extra, in the planner's unit
    extra_flops: float
    donated: tuple[bool, ...]
    lever: str = ""  # of the compiler (see `_levers`)

    @cached_property
    def flat(self) -> Flat:
        """The rewritten program."""
        if len(self.rung.schedule) == len(self.variant.program.ops):
            return self.variant.flat
        return rewrite(self.variant.flat, self.variant.program, self.variant.layout, self.rung.schedule)

    @cached_property
    def prediction(self) -> Prediction:
        """The memory model's view of the rewritten program."""
        apart = bool(self.variant.moves)
        deep = bool(self.lever)
        return _memory.predict(self.flat.per_device(), donated=self.donated, host_apart=apart, deep=deep)

    @property
    def predicted_bytes(self) -> int:
        """The upper end of the predicted total."""
        return self.prediction.high.total_bytes


@dataclass(frozen=True, eq=False)
class Ladder:
    """All rungs, the plain step first; each later one is dearer and, up to `refined`, lower by machine."""

    steps: tuple[Step, ...]
    pairs: tuple[Pair, ...]
    bodies: tuple[Body, ...]
    traced: Traced
    host: str = ""  # the memory that values may be moved to, or why they are not
    refined: int | None = None  # the rung from which on the general solver was asked (see `_refine`)

    def first_within(self, budget_bytes: int, scale: float | None = None, start: int = 0) -> int | None:
        """The first rung from `start` on that is predicted to be within the budget.

        Visits few rungs: predictions fall along the ladder, nearly.

        Args:
          budget_bytes: the total that it must be within.
          scale: None takes the upper end of the prediction; otherwise the estimate times this.
          start: the first rung to look at.
        """
        low, high = start, len(self.steps) - 1
        if high < low:
            return None
        if start == 0 and self._fits(0, budget_bytes, scale):
            return 0
        near = True
        if self.refined is not None:
            high = self.refined - 1
            near = any(self._fits(k, budget_bytes, scale) for k in self.last_cheap(self.refined) if k >= low)
        if low <= high:
            at = self._bisected(budget_bytes, scale, low, high)
            if self._fits(at, budget_bytes, scale):
                return at
        if not near:
            return self._in_dear_end(budget_bytes, scale, start)
        # Predictions do not fall all the way where the machine and the memory model disagree: look at every
        # rung before giving up.
        return next((k for k in range(start, len(self.steps)) if self._fits(k, budget_bytes, scale)), None)

    def _bisected(self, budget_bytes: int, scale: float | None, low: int, high: int) -> int:
        """The first of these rungs that fits, if predictions fall; if none does, the last."""
        low, high = self._around(self._guess(budget_bytes, low, high), low, high, budget_bytes, scale)
        while low < high:
            middle = (low + high) // 2
            if self._fits(middle, budget_bytes, scale):
                high = middle
            else:
                low = middle + 1
        return low

    @staticmethod
    def last_cheap(refined: int) -> range:
        """The last rungs above the refined ones: any of them may have the lowest prediction."""
        return range(refined - 1, max(-1, refined - 1 - _NEAR), -1)

    def _in_dear_end(self, budget_bytes: int, scale: float | None, start: int) -> int | None:
        """The cheapest refined rung that fits: few rungs, far apart in price, and not in order of memory.

        Left to the end are those far above, by the machine, what was seen not to fit.
        """
        assert self.refined is not None
        rungs = range(max(start, self.refined), len(self.steps))
        if not rungs:
            return None
        self._bisected(budget_bytes, scale, rungs[0], rungs[-1])
        seen = (k for k in rungs if "prediction" in vars(self.steps[k]))
        over = [self.steps[k].peak_bytes for k in seen if not self._fits(k, budget_bytes, scale)]
        far = {k for k in rungs if over and median(over) <= _BELOW * self.steps[k].peak_bytes}
        order = [*(k for k in rungs if k not in far), *sorted(far)]
        return next((k for k in order if self._fits(k, budget_bytes, scale)), None)

    def _guess(self, budget_bytes: int, start: int, last: int) -> int:
        """The rung that the machine's peaks point to, corrected by one prediction near it."""
        plain = self.steps[0].prediction.estimate
        room = budget_bytes - (plain.total_bytes - plain.temporaries_bytes)

        def first(peak_bytes: int) -> int:
            return next(
                (k for k in range(max(1, start), last) if self.steps[k].peak_bytes <= peak_bytes), last
            )

        near = self.steps[first(room)]
        return first(room - (near.prediction.high.temporaries_bytes - near.peak_bytes))

    def _around(
        self, guess: int, low: int, high: int, budget_bytes: int, scale: float | None
    ) -> tuple[int, int]:
        """Bounds of the first rung that fits, by strides that double from `guess`."""
        stride = 1
        if self._fits(guess, budget_bytes, scale):
            high = guess
            while low < high:
                probe = max(low, high - stride)
                if not self._fits(probe, budget_bytes, scale):
                    return probe + 1, high
                high, stride = probe, 2 * stride
            return low, high
        low = min(guess + 1, high)
        while low < high:
            probe = min(high, low + stride - 1)
            if self._fits(probe, budget_bytes, scale):
                return low, probe
            low, stride = min(probe + 1, high), 2 * stride
        return low, high

    def _fits(self, index: int, budget_bytes: int, scale: float | None) -> bool:
        step = self.steps[index]
        if scale is None:
            return step.predicted_bytes <= budget_bytes
        return step.prediction.estimate.total_bytes * scale <= budget_bytes

    def tradable(self) -> frozenset[int]:
        """The values that loops stack for other loops: a trade may leave them out."""
        found: set[int] = set()
        for pair in self.pairs:
            found.update(
                self.traced.program.ops[pair.forward].writes[position] for position in pair.residuals
            )
        return frozenset(found)

    def lowest(self, start: int = 0) -> int | None:
        """The rung with the smallest prediction among those from `start` on; None where there are none."""
        rungs = range(start, len(self.steps))
        return min(rungs, key=lambda k: self.steps[k].predicted_bytes, default=None)


def build(traced: Traced, *, progress: Any = None, host: HostMemory | None = None) -> Ladder:
    """Plans a traced step at every level of memory. Nothing compiles.

    Args:
      traced: the step.
      progress: told which loop trade is planned.
      host: memory that values may be moved to; None moves nothing.
    """
    pairs = _loop_pairs.find_pairs(traced.flat)
    bodies = find_bodies(traced.flat, {i for p in pairs for i in (p.forward, p.backward)}, build)
    loops: list[Pair | Body] = [*pairs, *bodies]
    program = traced.program
    price = sum(op.cost for op in program.ops)
    untouched = Rung(tuple(range(len(program.ops))), 0, 0.0, program.flops)
    variant = Variant((-1,) * len(loops), traced.flat, program, layout(program))
    plain = Step(variant, untouched, 0, 0.0, 0.0, traced.donated)
    ceiling = plain.prediction.high.temporaries_bytes
    steps: list[Step] = []
    choices = list(loop_choices(loops))
    for number, choice in enumerate(choices):
        if progress is not None and len(choices) > 1:
            progress.stage(f"planning, loop trade {number + 1} of {len(choices)}")
        as_it_is = all(c < 0 for c in choice)
        if as_it_is:
            flat, changed = traced.flat, program
        else:
            flat = apply_bodies(traced.flat, bodies, choice[len(pairs) :])
            flat = _loop_pairs.apply(flat, pairs, choice[: len(pairs)])
            changed = to_program(flat, traced.argument_names, traced.donated)
        if loops:
            plan, rungs = ladder(changed, ceiling_bytes=ceiling, targets=6, resolutions=(8,))
        else:
            plan, rungs = ladder(changed, ceiling_bytes=ceiling)
        variant = Variant(choice, flat, changed, plan)
        dearer = sum(op.cost for op in changed.ops) - price
        for rung in rungs[1:] if as_it_is else rungs:
            extra = rung.flops - program.flops
            steps.append(Step(variant, rung, rung.peak_bytes, rung.cost + dearer, extra, traced.donated))
        if host is None or number % max(1, len(choices) // _OFFERED):
            continue
        for offer in offers(flat, changed, host, traced.argument_names, traced.donated):
            plan, rungs = ladder(offer.program, ceiling_bytes=ceiling, targets=16, resolutions=(4, 8, 32))
            variant = Variant(choice, offer.flat, offer.program, plan, offer.moves)
            for rung in (found for planned in rungs[1:] for found in offer.finish(plan, planned)):
                extra = rung.flops - program.flops
                steps.append(Step(variant, rung, rung.peak_bytes, rung.cost + dearer, extra, traced.donated))
    front = pareto_by(steps, ceiling + 1 if not loops else max((s.peak_bytes for s in steps), default=0) + 1)
    return Ladder(
        (plain, *spaced(front)), tuple(pairs), tuple(bodies), traced, "" if host is None else str(host)
    )


def loop_choices(pairs: Sequence[Pair | Body], limit: int = 40) -> list[tuple[int, ...]]:
    """Trades for all loops together, from "as they are" down.

    At each step the one that frees most for its cost moves on.
    """
    state = [-1] * len(pairs)
    found = [tuple(state)]
    while True:
        best, at = -1.0, -1
        for i, pair in enumerate(pairs):
            following = state[i] + 1
            if following >= len(pair.cuts):
                continue
            now = pair.cuts[max(state[i], 0)]
            then = pair.cuts[following]
            gain = (now.bytes - then.bytes) / max(then.cost - now.cost, 1e-9) if following else 1e30
            if gain > best:
                best, at = gain, i
        if at < 0:
            break
        state[at] += 1
        found.append(tuple(state))
    if len(found) > limit:
        keep = {round(i * (len(found) - 1) / (limit - 1)) for i in range(limit)}
        found = [c for i, c in enumerate(found) if i in keep]
    return found


def spaced(front: Sequence[Step], ratio: float = 0.985) -> list[Step]:
    """Rungs at least 1.5 % apart: closer ones are within the prediction's error, and each costs a look."""
    kept: list[Step] = []
    for i, step in enumerate(front):
        if i == len(front) - 1 or not kept or step.peak_bytes <= ratio * kept[-1].peak_bytes:
            kept.append(step)
    return kept
