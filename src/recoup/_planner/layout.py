"""How a Program divides: epochs (early, late), windows of the late part, zones of the early part. No JAX.

Idea: memory is highest where the most bytes wait to be read later; that point splits a step into what came
before (the forward pass) and after (the backward pass), however the gradient was taken. Several such peaks
(two losses, unrolled microbatches) make several epochs. A late epoch is divided into windows at heavy
operations that later heavy ones depend on: there a barrier can hold recomputations back. An early epoch is
divided into zones at its narrowest points, as articulation points divide a chain.
Limits: positions are those of the traced order.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recoup._program import Program
from recoup._tables import ragged

SMALL_BYTES = 4096  # not worth a recomputation, nor a place in a barrier


@dataclass(frozen=True)
class Layout:
    """For each operation its epoch and window, and the first operation of each window (late epochs only)."""

    epoch: tuple[int, ...]
    window: tuple[int, ...]  # 0 in the first epoch, then counting up through all late epochs
    free: frozenset[int]  # values that are there anyway: arguments, constants, results, small ones
    crossing: frozenset[int]  # values read in a later epoch than their own, `free` ones apart
    droppable: tuple[int, ...]  # early values that may be recomputed
    late_reads: tuple[tuple[int, int], ...]  # in order: a window, and an earlier epoch's value that it reads
    trigger: tuple[int, ...]  # for each window the value whose arrival opens it; -1 for window 0

    trivial: frozenset[int] = frozenset()  # droppable ones made of next to nothing

    @cached_property
    def windows(self) -> "array[int]":
        """`window` as an array."""
        return array("i", self.window)

    @cached_property
    def needs(self) -> "tuple[array[int], array[int]]":
        """`late_reads` by window: starts and values."""
        rows: list[list[int]] = [[] for _ in range(max(self.window, default=0) + 1)]
        for window, v in self.late_reads:
            rows[window].append(v)
        return ragged(rows)


@dataclass(frozen=True)
class Zones:
    """For each operation the zone (counting up through the program), and the values that zones hand on to
    later ones."""

    zone: tuple[int, ...]
    boundary: frozenset[int]
    count: int

    @cached_property
    def zones(self) -> "array[int]":
        """`zone` as an array."""
        return array("i", self.zone)


def crossing_bytes(program: Program, within: Sequence[int] | None = None) -> np.ndarray:
    """For each position, the bytes of values made at or before it and read after it.

    `within` gives each operation's epoch: then only reads of the value's own epoch count.
    """
    change = np.zeros(len(program.ops) + 1, dtype=np.int64)
    results = set(program.outputs)
    for v, value in enumerate(program.values):
        if value.producer < 0 or v in results:
            continue
        readers = program.readers[v]
        if within is not None:
            readers = tuple(r for r in readers if within[r] == within[value.producer])
        if readers:
            change[value.producer] += value.bytes
            change[readers[-1]] -= value.bytes
    return np.cumsum(change)[:-1]


def layout(program: Program) -> Layout:
    """Finds epochs and windows."""
    count, values = len(program.ops), program.values
    curve = crossing_bytes(program)
    results = set(program.outputs)
    free = {
        v
        for v, value in enumerate(program.values)
        if value.producer < 0 or v in results or value.bytes < SMALL_BYTES
    }
    splits = peaks(curve, 0.3 * float(curve.max())) if count and curve.max() > 0 else []
    epoch = np.zeros(count, dtype=np.int64)
    for split in splits:
        epoch[split + 1 :] += 1
    epochs = tuple(int(e) for e in epoch)
    crossing = frozenset(
        v
        for v, value in enumerate(program.values)
        if v not in free and any(epochs[r] > epochs[value.producer] for r in program.readers[v])
    )
    window, trigger = _windows(program, epochs)
    late = tuple(
        (window[i], v)
        for i, op in enumerate(program.ops)
        if epochs[i]
        for v in op.reads
        if v in crossing and epochs[program.values[v].producer] < epochs[i]
    )
    last = max(epochs, default=0)
    droppable = tuple(
        v
        for v, value in enumerate(program.values)
        if v not in free and epochs[value.producer] < last and program.ops[value.producer].pure
    )
    trivial = frozenset(
        v for v in droppable if (op := program.ops[values[v].producer]).fusible and free.issuperset(op.reads)
    )
    return Layout(epochs, window, frozenset(free), crossing, droppable, late, trigger, trivial)


def peaks(curve: np.ndarray, prominence: float) -> list[int]:
    """Positions of the maxima from which the curve falls by `prominence` on both sides (it ends at 0)."""
    found: list[int] = []
    top, top_at, bottom, rising = 0.0, -1, 0.0, True
    for position, value in enumerate([*curve.tolist(), 0.0]):
        if rising:
            if value > top:
                top, top_at = value, position
            elif value <= top - prominence and top_at >= 0:
                found.append(top_at)
                bottom, rising = value, False
        elif value < bottom:
            bottom = value
        elif value >= bottom + prominence:
            top, top_at, rising = value, position, True
    return found


def _windows(program: Program, epoch: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ops = program.ops
    leads = [False] * len(ops)  # a heavy operation depends on this one
    ahead = [False] * len(program.values)
    for i in range(len(ops) - 1, -1, -1):
        leads[i] = any(ahead[v] for v in ops[i].writes)
        if leads[i] or ops[i].heavy:
            for v in ops[i].reads:
                ahead[v] = True
    window, trigger, current = [], [-1], 0
    opened = -1
    newest = -1  # the newest value that is read later: it opens the first window of a late epoch
    recent = -1  # or, where each is read right away only, the newest of all: an epoch always has a window
    for i, op in enumerate(ops):
        if epoch[i] > 0:
            if i and epoch[i] != epoch[i - 1]:
                opened = newest if newest >= 0 else recent
            if opened >= 0:
                current += 1
                trigger.append(opened)
                opened = -1
            if op.heavy and leads[i]:
                opened = max(op.writes, key=lambda v: (bool(program.readers[v]), program.values[v].bytes))
        window.append(current)
        read = [v for v in op.writes if program.readers[v]]
        recent = read[0] if read else recent
        if any(program.readers[v][-1] > i + 1 for v in read):
            newest = read[0]
    return tuple(window), tuple(trigger)


def zones(program: Program, plan: Layout, count: int) -> Zones:
    """Divides the early epochs into about `count` zones each, at narrow points."""
    ops, values = program.ops, program.values
    narrow = crossing_bytes(program, plan.epoch)
    produced = np.zeros(len(ops), dtype=np.float64)
    for v in plan.crossing:
        produced[values[v].producer] += values[v].bytes
    starts: list[int] = []
    last = max(plan.epoch, default=0)
    for e in range(last):
        members = [i for i in range(len(ops)) if plan.epoch[i] == e]
        if not members:
            continue
        first, end = members[0], members[-1] + 1
        along = np.cumsum(produced[first:end])
        spacing = along[-1] / count if along[-1] else 0.0
        order = np.argsort(narrow[first : end - 1], kind="stable")
        chosen: list[float] = [0.0, float(along[-1])]
        for offset in order:
            here = float(along[offset])
            if all(abs(here - other) >= 0.75 * spacing for other in chosen):
                chosen.append(here)
                starts.append(first + int(offset) + 1)
            if len(chosen) >= count + 1:
                break
        starts.append(end)
    mark = np.zeros(len(ops) + 1, dtype=np.int64)
    for s in starts:
        mark[s] += 1
    zone = np.cumsum(mark)[: len(ops)]
    boundary = set()
    for v, value in enumerate(values):
        p = value.producer
        if p < 0 or v in plan.free or plan.epoch[p] >= last:
            continue
        for r in program.readers[v]:
            if plan.epoch[r] == plan.epoch[p] and zone[r] != zone[p]:
                boundary.add(v)
                break
    return Zones(tuple(int(z) for z in zone), frozenset(boundary), int(zone[-1]) + 1 if len(ops) else 0)
