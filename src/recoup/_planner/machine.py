"""The machine that executes a schedule of a Program: asserts that it is legal and follows its memory. No JAX.

A schedule is a sequence of operation indices. The first time an index appears is the operation's own computation, later times
recompute it. A use reads the most recent computation of its operand. Repeats come in groups, each right before a first
computation; a barrier stands between a group and what it reads from before the group's window.
Source: the model machine of checkpoint_schedules (Firedrake), on graphs. Limits: sizes follow a crude fusion rule (a fusible
result that no heavy operation reads is computed inside its readers and has no buffer); `_memory` has the faithful model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from recoup._program import Program
from recoup.errors import PlanError


@dataclass(frozen=True)
class Run:
    """What the machine saw. `live_bytes[i]` is what is alive while step i runs, arguments and results apart."""

    live_bytes: tuple[int, ...]
    cost: float
    flops: float

    @property
    def peak_bytes(self) -> int:
        """The most that was alive at once."""
        return max(self.live_bytes, default=0)


def execute(program: Program, schedule: Sequence[int]) -> Run:
    """Executes a schedule.

    Raises:
      PlanError: an operation is missing, runs out of order, reads a value not yet computed, or is repeated although it must not.
    """
    ops, values = program.ops, program.values
    current = [-1] * len(values)  # the step that computed what a use reads now
    done = [False] * len(ops)
    sources: list[list[int]] = []  # for each step the steps that it reads
    group: list[int] = []  # the number of first computations before a step's group began
    firsts = 0
    in_repeats = False
    window = 0
    next_first = 0
    cost = flops = 0.0
    for step, index in enumerate(schedule):
        op = ops[index]
        repeat = done[index]
        if repeat and not op.pure:
            raise PlanError(
                f"step {step} repeats operation {index} ({op.name}, {op.source}), which may run only once"
            )
        if not repeat:
            if index != next_first:
                raise PlanError(f"step {step} runs operation {index} before operation {next_first}")
            next_first += 1
            done[index] = True
            firsts += 1
            in_repeats = False
        elif not in_repeats:
            in_repeats = True
            window = firsts
        read = []
        for v in op.reads:
            if values[v].producer < 0:
                continue
            if current[v] < 0:
                raise PlanError(
                    f"step {step} ({op.name}, {op.source}) reads a value that is not computed yet"
                )
            read.append(current[v])
        sources.append(read)
        group.append(window)
        for v in op.writes:
            current[v] = step
        if repeat:
            cost += op.cost
        flops += op.flops
    if next_first != len(ops):
        raise PlanError(f"operation {next_first} ({ops[next_first].name}) is never computed")
    live = _memory(program, schedule, sources, group)
    return Run(tuple(live), cost, flops)


def _memory(
    program: Program, schedule: Sequence[int], sources: Sequence[Sequence[int]], group: Sequence[int]
) -> list[int]:
    ops, values = program.ops, program.values
    steps = len(schedule)
    last = [-1] * steps
    # A value needs a buffer if it is not fusible, a heavy operation reads it, or it is read across a barrier.
    buffered = [not ops[i].fusible for i in schedule]
    for step in range(steps):
        op = ops[schedule[step]]
        inside = op.fusible or op.name.startswith(("reduce", "arg"))
        for source in sources[step]:
            if not inside or group[source] != group[step]:
                buffered[source] = True
    results = set(program.outputs)
    change = [0] * (steps + 1)
    for step in range(steps - 1, -1, -1):
        end = max(step, last[step])
        reach = step if buffered[step] else end
        for source in sources[step]:
            if reach > last[source]:
                last[source] = reach
        if buffered[step]:
            size = sum(values[v].bytes for v in ops[schedule[step]].writes if v not in results)
            change[step] += size
            change[end + 1] -= size
    live, total = [], 0
    for step in range(steps):
        total += change[step]
        live.append(total + ops[schedule[step]].workspace_bytes)
    return live
