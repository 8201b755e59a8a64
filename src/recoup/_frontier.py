"""The curve of peak memory against recomputation: plain data, with its knee. JAX only where a step is traced.

Idea: a step's ladder already holds schedules from the plain step down to the lowest; the curve is the
memory model's view of some of them, about as long as one plan. A graph's curve is a chain of searches, each
starting from the schedule before (`_solve._curve`), in one search's time.
What is dominated is left out: along the points peaks fall and costs rise, by construction, and `plan` at a
point's peak costs no more than that point.
Limits: peaks of a step are predictions (their upper end); between two points there may be other rungs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recoup._graph import Graph
from recoup._report.of_plan import BOUND
from recoup._report.picture import Figure, Picture, Rung
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, format_percent, heading, table
from recoup._solve import Schedule, curve
from recoup._solve._bounds import given_profile, peak_bound
from recoup._solve._curve import knee

MACHINE = "model machine (exact for the graph)"
MODEL = "memory model (predicted, upper end)"
_KINDS = {MACHINE: "counted", MODEL: "predicted"}


@dataclass(frozen=True)
class Point:
    """One trade.

    Attributes:
      peak_bytes: the highest memory: of a step its total, of a graph the bytes held by any step.
      overhead: extra work as a share of one full pass (of a step: of its FLOPs).
      extra: the same in FLOPs of a step, or in the graph's unit of cost.
      bound: no schedule within this peak has a smaller `overhead`, where known (graphs); else 0.
      schedule: of a graph, the schedule; None for a step.
    """

    peak_bytes: int
    overhead: float
    extra: float
    bound: float = 0.0
    schedule: Schedule | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Frontier(Reported):
    """The curve, from the highest peak to the lowest. Prints as a table.

    Attributes:
      points: peaks fall, overheads rise.
      knee: index of the point farthest below the straight line between the ends: past it, bytes get dear.
      lower_bound_bytes: no plan has a lower peak.
      bound: what sets that bound.
      instrument: what produced the peaks.
      unit: what `extra` counts: "FLOPs", or "cost".
    """

    points: tuple[Point, ...]
    knee: int
    lower_bound_bytes: int
    bound: str
    instrument: str
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data; schedules are left out."""
        data = {k: v for k, v in vars(self).items() if k != "points"}
        points = [{k: v for k, v in vars(p).items() if k != "schedule"} for p in self.points]
        return {"points": points, **data}

    def to_json(self) -> str:
        """The curve as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def picture(self) -> Picture:
        """What `report` shows; the knee is marked."""
        highest, lowest, knee = self.points[0], self.points[-1], self.points[self.knee]
        figures = [
            Figure("Highest", highest.peak_bytes, "bytes", self.instrument, _KINDS[self.instrument]),
            Figure("At the knee", knee.peak_bytes, "bytes", self.instrument, _KINDS[self.instrument]),
            Figure("Its extra work", knee.overhead, "share", f"counted {self.unit}", "counted"),
        ]
        if self.lower_bound_bytes:
            figures.append(Figure("No plan is below", self.lower_bound_bytes, "bytes", BOUND, "proved"))
        rungs = tuple(
            Rung(p.peak_bytes, p.peak_bytes, p.peak_bytes, p.overhead, i == self.knee)
            for i, p in enumerate(self.points)
        )
        share = format_percent(knee.overhead, signed=True)
        return Picture(
            title="Frontier",
            headline=f"{format_bytes(highest.peak_bytes)} down to {format_bytes(lowest.peak_bytes)}. "
            f"Bytes get dear past {format_bytes(knee.peak_bytes)}, at {share} {self.unit}.",
            figures=tuple(figures),
            bound_bytes=self.lower_bound_bytes,
            bound=self.bound,
            work=self.unit,
            curve=rungs,
            curve_instrument=self.instrument,
            mark="knee",
        )

    def __str__(self) -> str:
        top = self.points[0].peak_bytes
        rows = [
            [
                format_bytes(p.peak_bytes),
                format_percent(p.peak_bytes / top) if top else "",
                format_percent(p.overhead, signed=True),
                "<- knee" if i == self.knee else "",
            ]
            for i, p in enumerate(self.points)
        ]
        lines = [
            heading(f"Frontier: peak by the {self.instrument}"),
            table(["peak", "of the highest", f"extra {self.unit}", ""], rows, right=(0, 1, 2)),
        ]
        if self.lower_bound_bytes:
            lines.append(f"No plan can be below {format_bytes(self.lower_bound_bytes)}, set by {self.bound}.")
        return "\n".join(lines)


def frontier(
    step: Callable[..., Any] | Graph,
    *args: Any,
    points: int = 24,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    regions: str = "respect",
    budgets: Sequence[int] | None = None,
    time_limit: float = 12.0,
    order: str = "free",
    seed: int = 0,
) -> Frontier:
    """The whole curve of peak memory against recomputation, in not much more than one plan. Nothing compiles.

    Args:
      step: a step, as for `recoup.plan`, or a `Graph`, as for `recoup.solve`.
      *args: the step's arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      points: at most this many points.
      kwargs, donate_argnums, static_argnums, static_argnames, regions: as for `recoup.plan`; steps only.
      budgets, time_limit, order, seed: of a graph: the bytes to solve for (else `points` of them, evenly
        spread), seconds for all together, and as for `recoup.solve`.

    Raises:
      TypeError: a graph with arguments, or budgets for a step.
    """
    if isinstance(step, Graph):
        if args or kwargs:
            raise TypeError("frontier() of a graph takes no arguments of a step")
        return _of_graph(step, points, budgets, time_limit, order, seed)
    if budgets is not None:
        raise TypeError("frontier() of a step chooses its own points; budgets= is for graphs")
    from recoup import _ladder
    from recoup._bound import lower_bound
    from recoup._compiling import trace_step
    from recoup._progress import Progress
    from recoup._refine import refined

    with Progress() as progress:
        progress.stage("tracing")
        traced = trace_step(step, args, kwargs, donate_argnums, static_argnums, static_argnames, regions)
        progress.stage(f"planning {len(traced.program.ops)} operations")
        ladder = refined(_ladder.build(traced, progress=progress), lambda _: False, progress)
        chosen = _spread([rung.peak_bytes for rung in ladder.steps[1:]], points - 1)
        found: list[Point] = []
        flops = max(1.0, traced.program.flops)
        for number, rung in enumerate([ladder.steps[0], *(ladder.steps[1 + i] for i in chosen)]):
            progress.stage(f"predicting rung {number + 1} of {len(chosen) + 1}")
            found.append(Point(rung.predicted_bytes, rung.extra_flops / flops, rung.extra_flops))
        least, where = lower_bound(traced.program, ladder.tradable())
    kept = _front(found)
    at = knee([p.peak_bytes for p in kept], [p.overhead for p in kept])
    return Frontier(tuple(kept), at, least, where, MODEL, "FLOPs")


def _of_graph(
    graph: Graph, points: int, budgets: Sequence[int] | None, time_limit: float, order: str, seed: int
) -> Frontier:
    found = curve(graph, budgets, points=points, time_limit=time_limit, order=order, seed=seed)
    total = graph.total_cost or 1.0
    kept = _front(
        [
            Point(s.peak_bytes, s.overhead, s.extra_cost, max(0.0, s.lower_bound / total - 1), s)
            for s in found.points
        ]
    )
    if not kept:  # every budget was below what anything reaches: the curve is the one pass that is known
        kept = [Point(int(given_profile(graph).max(initial=0)), 0.0, 0.0)]
    least, operation = peak_bound(graph)
    at = knee([p.peak_bytes for p in kept], [p.overhead for p in kept])
    return Frontier(tuple(kept), at, least, f"operation {operation}", MACHINE, "cost")


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats, from the highest peak down."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.extra, p.peak_bytes)):
        if not kept or point.peak_bytes < kept[-1].peak_bytes:
            kept.append(point)
    return kept


def _spread(peaks: Sequence[int], count: int) -> list[int]:
    """Indices of at most `count` falling peaks, evenly apart in the logarithm, both ends among them."""
    if len(peaks) <= count:
        return list(range(len(peaks)))
    if count < 2:
        return [len(peaks) - 1][:count]
    # every rung is at least a fixed ratio below the one before, so that even in the index is even enough
    return sorted({round(i * (len(peaks) - 1) / (count - 1)) for i in range(count)})
