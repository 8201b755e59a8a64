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
    ops = program.ops
    seen = bytearray(len(ops))
    next_first = 0
    cost = flops = 0.0
    for step, index in enumerate(schedule):
        op = ops[index]
        if seen[index]:
            if not op.pure:
                raise PlanError(
                    f"step {step} repeats operation {index} ({op.name}, {op.source}), which may run only once"
                )
            cost += op.cost
        elif index != next_first:
            raise PlanError(f"step {step} runs operation {index} before operation {next_first}")
        else:
            next_first += 1
            seen[index] = 1
        flops += op.flops
    steps = len(schedule)
    packed = array("i", schedule)
    windows = array("i", bytes(4 * steps))
    if window:
        _core.step_windows(packed, array("i", window), windows)
    size, end, live = array("q", bytes(8 * steps)), array("i", bytes(4 * steps)), array("q", bytes(8 * steps))
    failed = _core.follow(program.tables, packed, windows, size, end, live)
    if failed >= 0:
        op = ops[schedule[failed]]
        raise PlanError(f"step {failed} ({op.name}, {op.source}) reads a value that is not computed yet")
    if next_first != len(ops):
        raise PlanError(f"operation {next_first} ({ops[next_first].name}) is never computed")
    hosted = _hosted(program, packed, np.asarray(size), np.asarray(end))
    return Run(tuple((np.asarray(live) - hosted).tolist()), cost, flops)


def step_windows(schedule: Sequence[int], window: Sequence[int]) -> list[int]:
    """For each step its window; a repeat belongs to that of the first computation it precedes."""
    found = array("i", bytes(4 * len(schedule)))
    _core.step_windows(array("i", schedule), array("i", window), found)
    return found.tolist()


def _hosted(program: Program, schedule: "array[int]", size: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each step the bytes of temporaries that sit in the memory of results not written yet.

    The compiler places the largest temporaries first, each into a free result of at least its size.
    """
    steps = len(schedule)
    hosts = program.own_results
    largest = int(size.max(initial=0))
    total = np.zeros(steps, dtype=np.int64)
    if not hosts or not largest:
        return total
    written = np.full(len(program.ops), -1, dtype=np.int64)
    order = np.asarray(schedule)
    written[order[::-1]] = np.arange(steps)[::-1]  # the first time each operation runs
    when = np.array([written[program.values[v].producer] for v in hosts])
    room = np.array([program.values[v].bytes for v in hosts], dtype=np.int64)
    free = np.zeros(steps, dtype=np.int64)
    above = np.iinfo(np.int64).max
    position = np.arange(steps)
    for amount in sorted({int(s) for s in size if 32 * s >= largest}, reverse=True):
        joins = np.zeros(steps + 1, dtype=np.int64)
        mine = (room >= amount) & (room < above)
        np.add.at(joins, np.zeros(int(mine.sum()), dtype=np.int64), 1)
        np.add.at(joins, when[mine], -1)
        free = free + np.cumsum(joins)[:-1]
        alive = np.zeros(steps + 1, dtype=np.int64)
        who = size == amount
        np.add.at(alive, position[who], 1)
        np.add.at(alive, end[who] + 1, -1)
        used = np.clip(np.cumsum(alive)[:-1], 0, np.maximum(free, 0))
        total += used * amount
        free = free - used
        above = amount
    return total
