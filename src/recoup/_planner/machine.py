"""The machine that executes a schedule of a Program: asserts that it is legal and follows its memory. No JAX.

A schedule is a sequence of operation indices. The first time an index appears is the operation's own
computation, later times recompute it. A use reads the most recent computation of its operand. Repeats come in
groups, each right before a first computation; a barrier stands between a group and what it reads from before
the group's window.
Source: the model machine of checkpoint_schedules (Firedrake), on graphs.
Limits: sizes follow a crude fusion rule (a fusible result that no heavy operation reads is computed inside
its readers and has no buffer); `_memory` has the faithful model.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recoup._planner import _core
from recoup._program import Program
from recoup.errors import PlanError


@dataclass(frozen=True)
class Run:
    """What the machine saw. `live_bytes[i]` is what is alive while step i runs, arguments and results
    apart."""

    live_bytes: tuple[int, ...]
    cost: float
    flops: float

    @property
    def peak_bytes(self) -> int:
        """The most that was alive at once."""
        return max(self.live_bytes, default=0)


def execute(program: Program, schedule: Sequence[int], window: Sequence[int] = ()) -> Run:
    """Executes a schedule.

    Args:
      program: what to run.
      schedule: operation indices in the order in which they run.
      window: of each operation (see `layout`); a value that waits for a later window passes a barrier and has
        a buffer.

    Raises:
      PlanError: an operation is missing, runs out of order, reads a value not yet computed, or is repeated
      although it must not.
    """
    ops, tables = program.ops, program.tables
    order = np.asarray(schedule, dtype=np.int32)
    first = _first_steps(order, len(ops))
    repeat = np.ones(len(order), dtype=bool)
    repeat[first[first >= 0]] = False
    again = order[repeat]
    if not np.frombuffer(tables.pure, np.uint8)[again].all():
        step, op = next((k, ops[i]) for k, i in enumerate(schedule) if repeat[k] and not ops[i].pure)
        raise PlanError(
            f"step {step} repeats operation {schedule[step]} ({op.name}, {op.source}), "
            "which may run only once"
        )
    once = order[~repeat]
    for k in np.flatnonzero(once != np.arange(len(once)))[:1].tolist():
        step = int(np.flatnonzero(~repeat)[k])
        raise PlanError(f"step {step} runs operation {once[k]} before operation {k}")
    steps = len(schedule)
    packed = array("i", order.tobytes())
    windows = array("i", bytes(4 * steps))
    if window:
        _core.step_windows(packed, array("i", window), windows)
    size, end, live = array("q", bytes(8 * steps)), array("i", bytes(4 * steps)), array("q", bytes(8 * steps))
    failed = _core.follow(tables, packed, windows, size, end, live)
    if failed >= 0:
        op = ops[schedule[failed]]
        raise PlanError(f"step {failed} ({op.name}, {op.source}) reads a value that is not computed yet")
    if len(once) != len(ops):
        raise PlanError(f"operation {len(once)} ({ops[len(once)].name}) is never computed")
    hosted = _hosted(program, first, np.asarray(size), np.asarray(end))
    cost = float(np.asarray(tables.cost)[again].sum())
    flops = float(np.asarray(tables.flops)[order].sum())
    return Run(tuple((np.asarray(live) - hosted).tolist()), cost, flops)


def _first_steps(order: np.ndarray, count: int) -> np.ndarray:
    """The step at which each operation runs first; -1 where it never does."""
    first = np.full(count, -1, dtype=np.int64)
    first[order[::-1]] = np.arange(len(order))[::-1]  # later assignments win
    return first


def step_windows(schedule: Sequence[int], window: Sequence[int]) -> list[int]:
    """For each step its window; a repeat belongs to that of the first computation it precedes."""
    found = array("i", bytes(4 * len(schedule)))
    _core.step_windows(array("i", schedule), array("i", window), found)
    return found.tolist()


def _hosted(program: Program, first: np.ndarray, size: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each step the bytes of temporaries that sit in the memory of results not written yet.

    The compiler places the largest temporaries first, each into a free result of at least its size.

    Args:
      program: what runs.
      first: the step at which each operation runs first.
      size: the bytes of each step's buffer.
      end: the last step that reads it.
    """
    steps = len(size)
    hosts = program.own_results
    total = np.zeros(steps, dtype=np.int64)
    if not hosts or not size.max(initial=0):
        return total
    large = np.flatnonzero(32 * size >= size.max())
    when = first[[program.values[v].producer for v in hosts]]
    room = np.array([program.values[v].bytes for v in hosts], dtype=np.int64)
    free = np.zeros(steps, dtype=np.int64)
    above = np.iinfo(np.int64).max
    for amount in np.unique(size[large])[::-1]:
        mine = when[(room >= amount) & (room < above)]
        if len(mine):
            free = free + len(mine) - np.cumsum(np.bincount(mine, minlength=steps))
        if free.any():
            who = large[size[large] == amount]
            change = np.bincount(who, minlength=steps + 1) - np.bincount(end[who] + 1, minlength=steps + 1)
            used = np.clip(np.cumsum(change[:-1]), 0, np.maximum(free, 0))
            total += used * amount
            free = free - used
        above = amount
    return total
