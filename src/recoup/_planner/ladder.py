"""A deterministic ladder of schedules for one Program: each rung lower in memory and dearer than the one
before. No JAX.

Idea: for several divisions into zones, and for peaks from the plain program's down to the lowest, take the
cheapest assignment; below that, restart points are thinned out (only every m-th boundary kept). Gaps between
these are filled by dropping and restoring single values. All of them are executed by the machine, and the
Pareto front of (peak, cost) is the ladder. `fit` walks it, so a smaller budget never gives a cheaper plan.
Limits: peaks here are the machine's; the memory model and the compiler have the last word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from recoup._collector import paused
from recoup._planner.assign import assign
from recoup._planner.layout import Layout, Zones, layout, zones
from recoup._planner.machine import execute
from recoup._planner.options import Choices, choices, choose, levels
from recoup._planner.restore import restore, without_cheap
from recoup._program import Program

_CANDIDATES = 100_000  # operations times candidates, for each division into zones
_LARGE = 4_000  # operations
_JUMP = 5e-4  # of one pass: smaller jumps in cost between rungs are left as they are


@dataclass(frozen=True)
class Rung:
    """One schedule of the ladder, with what the machine saw."""

    schedule: tuple[int, ...]
    peak_bytes: int
    cost: float
    flops: float


@paused()
def ladder(
    program: Program,
    *,
    ceiling_bytes: int | None = None,
    targets: int = 40,
    resolutions: Sequence[int] = (4, 8, 16, 32, 64),
) -> tuple[Layout, list[Rung]]:
    """The rungs from the plain program down. The first rung recomputes nothing.

    Args:
      program: what to plan.
      ceiling_bytes: the plain program's temporaries, where a better instrument than the machine knows them;
        rungs are below.
      targets: how many peaks to aim at, for each division into zones.
      resolutions: into how many zones to divide an epoch; those with less than eight operations a zone are
        left out.
    """
    # Each candidate is executed, in time linear in the program: a large program gets fewer of them.
    size = max(1, len(program.ops))
    targets = max(6, min(targets, _CANDIDATES // size))
    cuts = max(6, min(28, _CANDIDATES // size))
    if size > _LARGE:
        resolutions = [n for n in resolutions if n in (8, 32, 64)]
    plan = layout(program)
    plain = execute(program, range(len(program.ops)), plan.windows)
    first = Rung(tuple(range(len(program.ops))), plain.peak_bytes, 0.0, plain.flops)
    ceiling = plain.peak_bytes if ceiling_bytes is None else min(plain.peak_bytes, ceiling_bytes)
    if not plan.crossing:
        return plan, [first]
    rungs: dict[tuple[int, ...], Rung] = {}
    made_of: dict[tuple[int, ...], tuple[Zones, Mapping[int, int]]] = {}

    def add(parts: Zones, level: Mapping[int, int]) -> None:
        schedule = assign(program, plan, parts, level).schedule
        if schedule not in rungs:
            run = execute(program, schedule, plan.windows)
            rungs[schedule] = Rung(schedule, run.peak_bytes, run.cost, run.flops)
            made_of[schedule] = (parts, level)

    divisions = {n: zones(program, plan, n) for n in resolutions if n <= max(4, len(program.ops) // 8)}
    for parts in divisions.values():
        found = choices(program, plan, parts, cuts)
        lowest = _lowest(found)
        for peak in np.geomspace(max(1, ceiling), max(1, min(lowest, ceiling)), targets):
            kept = choose(found, int(peak))
            if kept is not None:
                add(parts, levels(program, plan, parts, kept))
    # Lowest of all: few restart points, and finer zones that hold less of what is recomputed, at the price of
    # doing it again.
    for count, parts in divisions.items():
        for kept in _thinned(program, plan, parts):
            level = levels(program, plan, parts, kept)
            for held in (count, 2 * count, 4 * count):
                if held in divisions:
                    add(divisions[held], level)
    front = pareto_by(rungs.values(), ceiling + 1)
    # Between rungs: cheap values dropped from the higher one, dear ones kept again in the lower one.
    whole = sum(op.cost for op in program.ops)
    for higher, lower, peaks, price in _gaps(front, ceiling, whole, max(12, _CANDIDATES // (3 * size))):
        if higher is not None:
            parts, assigned = made_of[higher.schedule]
            add(parts, without_cheap(program, plan, assigned, price))
        parts, assigned = made_of[lower.schedule]
        for start in (assigned, without_cheap(program, plan, assigned, price / 2)):
            for at in peaks:
                better = restore(program, plan, parts, start, at)
                if better is not None:
                    add(parts, better)
    return plan, [first, *pareto_by(rungs.values(), ceiling + 1)]


def _gaps(
    front: Sequence[Rung], ceiling: int, whole: float, most: int
) -> Iterable[tuple[Rung | None, Rung, list[int], float]]:
    """Neighbours on the front, the dearest jumps in cost first.

    Yields the higher one (None: the plain program), the lower one, peaks between them, and what a byte costs
    there; `most` peaks in all.
    """
    found: list[tuple[float, Rung | None, Rung, list[int], float]] = []
    above: Rung | None = None
    for rung in front:
        high, cheaper = (ceiling, 0.0) if above is None else (above.peak_bytes, above.cost)
        if rung.cost - cheaper > _JUMP * whole and rung.peak_bytes:
            count = min(5, 1 + int(np.log(high / rung.peak_bytes) / 0.02))
            between = np.geomspace(rung.peak_bytes, max(0.99 * high, rung.peak_bytes), count + 1)
            price = (rung.cost - cheaper) / max(1, high - rung.peak_bytes)
            found.append((rung.cost - cheaper, above, rung, [int(at) for at in between[:count]], price))
        above = rung
    found.sort(key=lambda item: -item[0])
    for _, above, rung, peaks, price in found:
        yield above, rung, peaks, price
        most -= len(peaks)
        if most <= 0:
            break


class Priced(Protocol):
    """What has a peak and a cost."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def cost(self) -> float: ...


P = TypeVar("P", bound=Priced)


def pareto_by(items: Iterable[P], below: int) -> list[P]:
    """Those that no other beats in both peak and cost, from the highest peak down; all under `below`."""
    front: list[P] = []
    for item in sorted(items, key=lambda r: (r.cost, r.peak_bytes)):
        if item.peak_bytes < (front[-1].peak_bytes if front else below):
            front.append(item)
    return front


def _lowest(found: Choices) -> int:
    """The lowest peak for which there is a choice, within half a percent."""
    low, high = 0, max((o.high_bytes + o.kept_bytes for z in found.options for o in z), default=0) * 64
    while high - low > max(1, high // 256):
        middle = (low + high) // 2
        low, high = (low, middle) if choose(found, middle) is not None else (middle, high)
    return high


def _thinned(program: Program, plan: Layout, parts: Zones) -> Iterable[frozenset[int]]:
    """Every m-th boundary kept, the others restart points that are recomputed."""
    forced = [
        v
        for v, value in enumerate(program.values)
        if value.producer >= 0 and not program.ops[value.producer].pure
    ]
    for every in (1, 2, 3, 4, 6, 8):
        kept = {v for v in parts.boundary if _last_boundary(program, plan, parts, v) % every == 0}
        yield frozenset(kept | {v for v in forced if v in plan.crossing})


def _last_boundary(program: Program, plan: Layout, parts: Zones, v: int) -> int:
    own = program.values[v].producer
    return max(parts.zone[r] for r in program.readers[v] if plan.epoch[r] == plan.epoch[own])
