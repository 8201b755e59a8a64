"""A deterministic ladder of schedules for one Program: each rung lower in memory and dearer than the one
before. No JAX.

Idea: for several divisions into zones, and for peaks from the plain program's down to the lowest, take the
cheapest assignment; below that, restart points are thinned out (only every m-th boundary kept). All of them
are executed by the machine, and the Pareto front of (peak, cost) is the ladder. `fit` walks it, so a smaller
budget never gives a cheaper plan.
Limits: peaks here are the machine's; the memory model and the compiler have the last word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from recoup._planner.assign import assign
from recoup._planner.layout import Layout, Zones, layout, zones
from recoup._planner.machine import execute
from recoup._planner.options import Choices, choices, choose, levels
from recoup._program import Program

_CANDIDATES = 100_000  # operations times candidates, for each division into zones
_LARGE = 4_000  # operations


@dataclass(frozen=True)
class Rung:
    """One schedule of the ladder, with what the machine saw."""

    schedule: tuple[int, ...]
    kept: frozenset[int]
    peak_bytes: int
    cost: float
    flops: float


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
    plain = execute(program, range(len(program.ops)), plan.window)
    first = Rung(tuple(range(len(program.ops))), frozenset(), plain.peak_bytes, 0.0, plain.flops)
    ceiling = plain.peak_bytes if ceiling_bytes is None else min(plain.peak_bytes, ceiling_bytes)
    if not plan.crossing:
        return plan, [first]
    rungs: dict[tuple[int, ...], Rung] = {}

    def add(parts: Zones, kept: frozenset[int], held: Zones | None = None) -> None:
        level = levels(program, plan, parts, kept)
        schedule = assign(program, plan, held or parts, level).schedule
        if schedule not in rungs:
            run = execute(program, schedule, plan.window)
            rungs[schedule] = Rung(schedule, kept, run.peak_bytes, run.cost, run.flops)

    divisions = {n: zones(program, plan, n) for n in resolutions if n <= max(4, len(program.ops) // 8)}
    for parts in divisions.values():
        found = choices(program, plan, parts, cuts)
        lowest = _lowest(found)
        for peak in np.geomspace(max(1, ceiling), max(1, min(lowest, ceiling)), targets):
            kept = choose(found, int(peak))
            if kept is not None:
                add(parts, kept)
    # Lowest of all: few restart points, and finer zones that hold less of what is recomputed, at the price of
    # doing it again.
    for count, parts in divisions.items():
        for kept in _thinned(program, plan, parts):
            add(parts, kept)
            for finer in (2 * count, 4 * count):
                if finer in divisions:
                    add(parts, kept, divisions[finer])
    return plan, [first, *pareto_by(rungs.values(), ceiling + 1)]


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
