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

from recoup._planner._core import arrange
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
    levels = bytearray(len(program.values))
    for v, at in level.items():
        levels[v] = at
    schedule: list[int] = []
    owner: list[int] = []
    needs_starts, needs = plan.needs
    arrange(program.tables, plan.windows, zones.zones, needs_starts, needs, levels, schedule, owner)
    return Assigned(tuple(schedule), tuple(owner))
