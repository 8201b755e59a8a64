"""A schedule made better where it stands: cheap values dropped, dear ones kept again while they fit. No JAX.

Idea: the dynamic program prices whole zones, and thinning drops whole boundaries, so a schedule often has
room under its peak at the moments that one recomputed value would occupy. Candidates are ranked by the
recomputation that keeping them saves (their own, and that of what only they need) per byte; each is checked
against the memory along its own interval, all together are executed.
Source: the "restore" step of greedy rematerialization heuristics; a knapsack along a profile.
Limits: greedy; intervals are those of the schedule it starts from.
"""

from array import array
from collections.abc import Mapping, Set

import numpy as np

from recoup._planner._core import repeats_worth
from recoup._planner.assign import LOCAL, assign
from recoup._planner.layout import Layout, Zones
from recoup._planner.machine import Run, execute
from recoup._program import Program

_ROUNDS = 3
_WORTH = 1.0  # FLOPs a byte: a single elementwise operation is less


def restore(
    program: Program, plan: Layout, zones: Zones, level: Mapping[int, int], target_bytes: int
) -> Mapping[int, int] | None:
    """The assignment with as many recomputed values kept again as fit under `target_bytes`.

    Args:
      program, plan, zones: what `level` assigns.
      level: the level of every value that is not kept (see `assign`).
      target_bytes: the peak, by the machine, that must not be exceeded.

    Returns:
      None where nothing can be kept again.
    """
    best: Mapping[int, int] | None = None
    schedule = assign(program, plan, zones, level).schedule
    run = execute(program, schedule, plan.windows)
    for _ in range(_ROUNDS):
        # A spread scalar costs nothing where it is read, and a buffer where it is kept.
        candidates = level.keys() - plan.trivial
        chosen = _fitting(program, schedule, run, candidates, target_bytes)
        while chosen:
            fewer = {v: at for v, at in level.items() if v not in chosen}
            again = assign(program, plan, zones, fewer).schedule
            tried = execute(program, again, plan.windows)
            if tried.peak_bytes <= target_bytes and tried.cost < run.cost:
                best = level = fewer
                schedule, run = again, tried
                break
            chosen = chosen[: len(chosen) // 2]
        if not chosen:
            break
    return best


def without_cheap(
    program: Program, plan: Layout, level: Mapping[int, int], price: float
) -> Mapping[int, int]:
    """The assignment with fewer kept values: those go that cost less than `price` a byte to compute again.

    The dynamic program keeps every value on a boundary between zones, also one that is an elementwise
    operation away from another kept value.
    """
    fewer = dict(level)
    for v in plan.droppable:
        if v not in fewer and _costs_less(program, v, fewer, price * program.values[v].bytes):
            fewer[v] = LOCAL
    return fewer


def _costs_less(program: Program, v: int, level: Mapping[int, int], limit: float) -> bool:
    """Whether `v` can be computed again from kept values for less than `limit`."""
    ops, values = program.ops, program.values
    found = {values[v].producer}
    stack = [values[v].producer]
    total = 0.0
    while stack:
        op = ops[stack.pop()]
        total += op.cost
        if total >= limit or op.heavy:
            return False
        for read in op.reads:
            p = values[read].producer
            if p >= 0 and p not in found and read in level:
                found.add(p)
                stack.append(p)
    return True


def _fitting(
    program: Program, schedule: tuple[int, ...], run: Run, keepable: Set[int], target_bytes: int
) -> list[int]:
    """Values to keep, the best first, such that each fits along its interval on top of those before it."""
    ops, values, tables = program.ops, program.values, program.tables
    early_read, last = array("i", bytes(4 * len(ops))), array("i", bytes(4 * len(ops)))
    saved = array("d", bytes(8 * len(ops)))
    repeats_worth(tables, array("i", schedule), early_read, last, saved)
    candidates = []
    for index in np.flatnonzero(np.asarray(last) >= 0).tolist():
        size = sum(values[v].bytes for v in ops[index].writes if v in keepable)
        if size:
            candidates.append((saved[index] / size, size, index, last[index]))
    candidates.sort(reverse=True)
    live = np.array(run.live_bytes, dtype=np.int64)
    chosen: list[int] = []
    for worth, size, index, end in candidates:
        if worth < _WORTH:
            break
        start = early_read[index] + 1
        if start >= end or int(live[start:end].max()) + size <= target_bytes:
            live[start:end] += size
            chosen += [v for v in ops[index].writes if v in keepable]
    return chosen
