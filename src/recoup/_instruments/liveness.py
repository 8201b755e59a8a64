"""From when to when each buffer of an optimized program is alive. No JAX.

Idea: the schedule orders instructions; a loop's body takes its place inside the loop. A buffer lives from the
instruction that defines it to the last one that reads it, followed through instructions that only pass values
on (tuples, bitcasts, barriers, loops' carries).
Source: XLA's HloLiveRange and HloDataflowAnalysis, whose results the serialized assignment leaves out.
Limits: a computation called from two places counts at the first; asynchronous pairs as ordinary operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from recoup._instruments.hlo import Instruction, Module

Index = tuple[int, ...]
Position = tuple[int, Index]  # an instruction, and which part of its result

PASSES = frozenset(["bitcast", "opt-barrier", "domain", "add-dependency", "copy-done", "async-done"])
INSIDE = frozenset(["while", "call", "conditional"])


@dataclass(frozen=True)
class Span:
    """Times (positions in the order of execution), both inclusive; `kept`: a backward operation reads it."""

    start: int
    end: int
    kept: bool


class Liveness:
    """The order of execution, and spans of buffers. `order[t]` is the instruction that runs at time t."""

    def __init__(self, module: Module, defined: set[Position]) -> None:
        self._module, self._defined = module, defined
        self.order: list[int] = []
        self._time: dict[int, int] = {}
        self._first: dict[int, int] = {}  # of a loop or call: when its inside begins
        self._bounds: dict[int, tuple[int, int]] = {}  # of a computation
        self._run(module.entry, 0)

    def _run(self, computation: int, depth: int) -> None:
        if computation in self._bounds or depth > 64:
            return
        began = len(self.order)
        self._bounds[computation] = (began, began)  # a damaged program may call itself
        body = self._module.computations[computation]
        for key in self._module.schedule.get(computation, body.instructions):
            instruction = self._module.instructions[key]
            self._first[key] = len(self.order)
            if instruction.opcode in INSIDE:
                for inside in instruction.calls:
                    self._run(inside, depth + 1)
            self._time[key] = len(self.order)
            self.order.append(key)
        self._bounds[computation] = (began, len(self.order) - 1)

    def span(self, position: Position) -> Span | None:
        """When the buffer defined at a position is alive; None if its instruction is not in the schedule."""
        key = position[0]
        if key not in self._time:
            return None
        instruction = self._module.instructions[key]
        start = self._first[key] if instruction.opcode == "while" else self._time[key]
        if instruction.opcode == "parameter":
            start = self._bounds[instruction.computation][0]
        end, kept = self._time[key], False
        seen: set[Position] = set()
        todo = [position]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            here = self._module.instructions[at[0]]
            if self._module.computations[here.computation].root == here.id:
                bounds = self._bounds.get(here.computation)
                if bounds is not None:
                    end = max(end, bounds[1])
                caller = self._module.callers.get(here.computation)
                if caller is not None and self._module.instructions[caller].opcode == "call":
                    todo.append((caller, at[1]))
            for reader in self._module.users.get(at[0], ()):
                if reader not in self._time:
                    continue
                onward, reads = self._through(at, self._module.instructions[reader])
                todo += onward
                if reads:
                    end = max(end, self._time[reader])
                    kept = kept or reader in self._module.late
        return Span(start, end, kept)

    def _through(self, at: Position, reader: Instruction) -> tuple[list[Position], bool]:
        """Where a value goes on under another name, and whether the reader itself reads it."""
        key, index = at
        if reader.opcode == "tuple":
            return [(reader.id, (slot, *index)) for slot in _slots(reader, key)], False
        if reader.opcode == "get-tuple-element":
            if index and index[0] == reader.tuple_index:
                return [(reader.id, index[1:])], False
            return [], not index
        if reader.opcode in PASSES:
            return [(reader.id, index)], True
        if reader.opcode == "while":
            # Carries share one buffer: the loop's own result is another value of the same place, or this one.
            return ([] if (reader.id, index) in self._defined else [(reader.id, index)]), True
        return [], True


def _slots(reader: Instruction, key: int) -> Sequence[int]:
    return [slot for slot, operand in enumerate(reader.operands) if operand == key]
