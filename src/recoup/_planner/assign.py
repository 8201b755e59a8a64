"""An assignment (what is kept, what is recomputed when) turned into a schedule. No JAX.

Idea: an assignment gives each value a level. Level 0 is kept from its first computation. Level 1 and 2 are
dropped after the early epoch; the first window that needs one recomputes it, from what is there. Once
recomputed, a level-1 value stays until its last use (it is a place to restart from); a level-2 value stays
only if it belongs to the zone whose backward is running, so that passing through a zone to reach a later one
holds nothing of it.
Limits: a recomputation always starts in the window that needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from recoup._planner.layout import Layout, Zones
from recoup._program import Program

KEPT, RESTART, LOCAL = 0, 1, 2


@dataclass(frozen=True)
class Assigned:
    """A schedule, and the zone whose backward each of its steps belongs to (-1 for early steps)."""

    schedule: tuple[int, ...]
    zone: tuple[int, ...]


def assign(program: Program, plan: Layout, zones: Zones, level: Mapping[int, int]) -> Assigned:
    """Builds the schedule of an assignment; `level` names every value that is not kept."""
    ops, values = program.ops, program.values
    schedule: list[int] = []
    zone_of: list[int] = []
    available: set[int] = set()  # values recomputed and held
    needs: dict[int, list[int]] = {}
    for window, v in plan.late_reads:
        if v in level:
            needs.setdefault(window, []).append(v)
    current, zone = 0, -1
    for i in range(len(ops)):
        if plan.window[i] != current:
            current = plan.window[i]
            needed = [v for v in needs.get(current, ()) if v not in available]
            if needed:
                zone = max(zones.zone[values[v].producer] for v in needed)
                clones = _closure(program, needed, available, level)
                for o in clones:
                    schedule.append(o)
                    zone_of.append(zone)
                    for v in ops[o].writes:
                        held = level.get(v, KEPT) == RESTART or zones.zone[o] >= zone
                        if held:
                            available.add(v)
        schedule.append(i)
        zone_of.append(zone if plan.epoch[i] > 0 else -1)
    return Assigned(tuple(schedule), tuple(zone_of))


def _closure(program: Program, needed: list[int], available: set[int], level: Mapping[int, int]) -> list[int]:
    clones: set[int] = set()
    stack = list(needed)
    while stack:
        v = stack.pop()
        producer = program.values[v].producer
        if producer < 0 or producer in clones or v in available or level.get(v, KEPT) == KEPT:
            continue
        clones.add(producer)
        stack += program.ops[producer].reads
    return sorted(clones)
