"""Options for each zone, and one option a zone under a peak: minimum cuts, then a dynamic program. No JAX.

Idea: with the values on zone boundaries kept, zones are independent but for the bytes they hold while earlier
zones' backward runs. A sweep of minimum cuts gives each zone a few options (bytes kept, cost, most bytes
alive meanwhile); a dynamic program over the zones of an epoch picks one each: cheapest total with, for each
zone, the bytes held by the zones before it plus its own highest moment within the peak.
Source: the persistent chain program of Rotor (Beaumont et al.) with options per block, restricted to one
recomputation a zone.
Limits: held bytes are counted in steps of 1/512 of the peak.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recoup._planner._core import cheapest
from recoup._planner.assign import LOCAL, RESTART, assign
from recoup._planner.layout import Layout, Zones
from recoup._planner.machine import execute
from recoup._planner.mincut import sweep
from recoup._program import OFFLOAD, Program

_BINS = 512


@dataclass(frozen=True)
class Option:
    """What one minimum cut means for one zone: the values it keeps there, its cost and its highest moment."""

    kept: frozenset[int]
    kept_bytes: int
    cost: float
    high_bytes: int  # the most alive in this zone's forward or backward, less what earlier zones hold


@dataclass(frozen=True)
class Choices:
    """The options of every zone, under one division into zones."""

    zones: Zones
    options: tuple[tuple[Option, ...], ...]
    epoch: tuple[int, ...]  # of each zone

    @cached_property
    def by_epoch(self) -> list[list[tuple[Option, ...]]]:
        """The options of the zones of each epoch."""
        return [
            [o for o, own in zip(self.options, self.epoch, strict=True) if own == e]
            for e in sorted(set(self.epoch))
        ]


def levels(program: Program, plan: Layout, zones: Zones, kept: frozenset[int] | set[int]) -> dict[int, int]:
    """The level of every early value that is not kept. A value that may not be recomputed is kept.

    A spread scalar or an iota is never kept: it costs nothing, and kept it would have a buffer.
    """
    level = {}
    boundary = zones.boundary
    for v in plan.droppable:
        if v not in kept or v in plan.trivial:
            level[v] = RESTART if v in boundary else LOCAL
    return level


def choices(program: Program, plan: Layout, zones: Zones, limit: int = 16) -> Choices:
    """Sweeps prices and evaluates each cut as a whole."""
    last = max(plan.epoch, default=0)
    recomputable = [
        op.pure
        and plan.epoch[i] < last
        and (op.name == OFFLOAD or not any(v in zones.boundary for v in op.writes))
        for i, op in enumerate(program.ops)
    ]
    zone_epoch = [0] * zones.count
    for i, z in enumerate(zones.zone):
        zone_epoch[z] = plan.epoch[i]
    found: list[list[Option]] = [[] for _ in range(zones.count)]
    cuts = sweep(program, plan.crossing, recomputable=recomputable, free=plan.free, limit=limit)
    for kept in (cut.kept for cut in cuts):
        for z, option in enumerate(_evaluate(program, plan, zones, kept)):
            if option not in found[z]:
                found[z].append(option)
    return Choices(zones, tuple(tuple(options) for options in found), tuple(zone_epoch))


def _evaluate(program: Program, plan: Layout, zones: Zones, kept: frozenset[int]) -> list[Option]:
    assigned = assign(program, plan, zones, levels(program, plan, zones, kept))
    run = execute(program, assigned.schedule, plan.windows)
    kept_bytes = [0] * zones.count
    members: list[set[int]] = [set() for _ in range(zones.count)]
    for v in kept:
        z = zones.zone[program.values[v].producer]
        kept_bytes[z] += program.values[v].bytes
        members[z].add(v)
    before = np.array(_held_before(zones, plan, program, kept_bytes))
    order = np.array(assigned.schedule)
    own = np.array(zones.zone)[order]
    repeat = np.ones(len(order), dtype=bool)
    repeat[np.unique(order, return_index=True)[1]] = False
    cost = np.bincount(
        own[repeat], np.asarray(program.tables.cost)[order[repeat]], minlength=zones.count
    ).tolist()
    at = np.where(np.array(assigned.zone) >= 0, assigned.zone, own)
    high = np.zeros(zones.count, dtype=np.int64)
    np.maximum.at(high, at, np.array(run.live_bytes) - before[at])
    return [Option(frozenset(members[z]), kept_bytes[z], cost[z], int(high[z])) for z in range(zones.count)]


def _held_before(zones: Zones, plan: Layout, program: Program, kept_bytes: Sequence[int]) -> list[int]:
    epoch = [0] * zones.count
    for i, z in enumerate(zones.zone):
        epoch[z] = plan.epoch[i]
    before, total = [], 0
    for z in range(zones.count):
        if z and epoch[z] != epoch[z - 1]:
            total = 0
        before.append(total)
        total += kept_bytes[z]
    return before


def choose(found: Choices, peak_bytes: int) -> frozenset[int] | None:
    """The kept values of the cheapest choice of one option a zone within `peak_bytes`, or None."""
    unit = max(1.0, peak_bytes / _BINS)
    kept: set[int] = set()
    for options in found.by_epoch:
        picked = array("h", bytes(2 * len(options)))
        kept_bins, high, cost, starts = array("i"), array("q"), array("d"), array("i", [0])
        for zone in options:
            kept_bins.extend(min(round(option.kept_bytes / unit), _BINS + 1) for option in zone)
            high.extend(option.high_bytes for option in zone)
            cost.extend(option.cost for option in zone)
            starts.append(len(high))
        if not cheapest(starts, kept_bins, high, cost, peak_bytes, unit, _BINS, picked):
            return None
        for zone, k in zip(options, picked, strict=True):
            kept |= zone[k].kept
    return frozenset(kept)
