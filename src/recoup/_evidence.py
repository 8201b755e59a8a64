"""What a plan was made from, kept so that it can be drawn, and put into advice, when somebody asks.

Idea: a `Plan` is what a file stores; a report also shows the program before and after, and the curve of
the plans that were not chosen. Those are derived when `report()` is called, not before: each rung of the
curve costs a rewrite and a run of the memory model.
Limits: a stored plan that is applied shows no curve, since nothing was solved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from recoup import _advise, _compat, _memory
from recoup._inline import Flat
from recoup._ladder import Ladder, Step
from recoup._loop_pairs import Pair
from recoup._planner.layout import Layout, layout
from recoup._planner.mincut import Cut
from recoup._program import Program
from recoup._report.advice import Advice
from recoup._report.picture import Picture, Rung, Strip
from recoup._strip import name_stacks, strip
from recoup._trace import Traced

if TYPE_CHECKING:
    from recoup._plan import Plan

_RUNGS = 20  # of the curve: each costs a prediction
_PER_DEVICE = (
    "The step runs on several devices: the totals above are per device, the timelines and the curve are of "
    "whole arrays."
)

_ONE_DEVICE = "The step runs on several devices: totals, shapes, timelines and the curve are those of one."


@dataclass(frozen=True, eq=False)
class Evidence:
    """The traced step, its rewritten program, and the ladder that it was chosen from (None if it was
    stored). `lever`: of the compiler, for the rewritten program."""

    traced: Traced
    planned: Flat
    ladder: Ladder | None = None
    step: Step | None = None
    lever: str = ""

    @staticmethod
    def of(ladder: Ladder, step: Step) -> "Evidence":
        """Of a plan that carries out `step`."""
        return Evidence(ladder.traced, step.flat, ladder, step, step.lever)

    @property
    def title(self) -> str:
        """The step's name."""
        return _compat.function_name(self.traced.flat.like)

    @property
    def scopes(self) -> Iterator[str]:
        """The name stacks of the step's operations, those inside its loops too."""
        return name_stacks(self.traced.flat.eqns)

    @cached_property
    def unplanned_strip(self) -> Strip:
        """Memory over the step as it is."""
        if self.ladder is not None:
            return strip("As it is", self.traced.flat, self.ladder.steps[0].prediction)
        return self._predicted("As it is", self.traced.flat, planned=False)

    @cached_property
    def planned_strip(self) -> Strip:
        """Memory over the planned step."""
        if self.step is not None:
            return strip("Planned", self.planned, self.step.prediction)
        return self._predicted("Planned", self.planned, planned=True)

    def _predicted(self, title: str, flat: Flat, *, planned: bool) -> Strip:
        # what a plan moves to the host is not on the device
        predicted = _memory.predict(
            flat.per_device(),
            donated=self.traced.donated,
            host_apart=planned,
            deep=planned and bool(self.lever),
        )
        return strip(title, flat, predicted)

    @cached_property
    def curve(self) -> tuple[Rung, ...]:
        """Rungs of the ladder that no other beats in predicted peak and cost, of at most about `_RUNGS`."""
        if self.ladder is None:
            return ()
        steps = self.ladder.steps
        last = len(steps) - 1
        shown = {round(i * last / (_RUNGS - 1)) for i in range(_RUNGS)}
        if self.step is not None and self.lever:
            steps += (self.step,)
        work = max(self.traced.program.flops, 1.0)
        rungs = [
            Rung(
                step.prediction.low.total_bytes,
                step.prediction.estimate.total_bytes,
                step.prediction.high.total_bytes,
                step.extra_flops / work,
                step is self.step,
            )
            for i, step in enumerate(steps)
            if i in shown or step is self.step
        ]
        front: list[Rung] = []
        for rung in sorted(rungs, key=lambda r: (r.overhead, r.high_bytes)):
            if rung.chosen or not front or rung.high_bytes < front[-1].high_bytes:
                front.append(rung)
        return tuple(front)

    def advise(self, plan: "Plan") -> Advice:
        """Regions by hand that come closest to `plan`."""
        return _advise.advise(self, plan)

    def base(self) -> tuple[Flat, Program, Layout, list[tuple[Pair, Cut]]]:
        """The program in which regions are tried: with the plan's own trades of loops, and those trades."""
        if self.ladder is None or self.step is None:
            program = self.traced.program
            return self.traced.flat, program, layout(program), []
        variant = self.step.variant
        chosen = zip(self.ladder.pairs, variant.choice, strict=False)  # then the bodies'
        loops = [(pair, pair.cuts[which]) for pair, which in chosen if which >= 0]
        return variant.flat, variant.program, variant.layout, loops

    def strips(self, plan: "Plan") -> tuple[Strip, ...]:
        """Memory over the step as it is, and over the planned one if the plan changes anything."""
        return (self.unplanned_strip,) if plan.changes_nothing else (self.unplanned_strip, self.planned_strip)

    def add_to(self, picture: Picture, plan: "Plan") -> Picture:
        """The picture of `plan` with its timelines and its curve."""
        strips = self.strips(plan)
        notes = picture.notes
        if self.traced.flat.shards is not None:
            notes += (_ONE_DEVICE,)
        elif self.ladder is not None and plan.unplanned_bytes != self.ladder.steps[0].predicted_bytes:
            notes += (_PER_DEVICE,)
        unknown = sorted({name for s in strips for name in s.opaque})
        if unknown:
            notes += ("Not modelled, so not in the predictions: " + ", ".join(unknown),)
        title = self.title if self.title else picture.title
        return replace(picture, title=title, strips=strips, curve=self.curve, notes=notes)
