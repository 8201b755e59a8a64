"""The user's line behind an instruction of the optimized program, even where the compiler made it. No JAX.

Idea: most instructions carry the operation that they were made from. A stacked residual is written by an
update of one row inside a loop's body: its origin is what made the row. What the compiler inserted (copies,
transposes, zeros) has the line of what it reads, or else of what reads it; that is marked as inferred.
Limits: a fusion has one line, that of its result.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recoup._instruments.hlo import Instruction, Module
from recoup._instruments.liveness import Index, Position

_NEIGHBOURS = 64  # as many instructions are looked at in each direction for a line


@dataclass(frozen=True)
class Origin:
    """The operation, line and scope of a buffer; `instruction` is the one that they are those of."""

    instruction: Instruction
    source: str
    inferred: bool


def origin(module: Module, position: Position, libraries: Sequence[str] = ()) -> Origin:
    """Where the value at a position comes from; `libraries`: path prefixes that are not the user's code."""
    written = _written(module, position)
    made = module.instructions[position[0]] if written is None else written
    source = module.source(made.frame, libraries)
    if source:
        return Origin(made, source, inferred=False)
    for onward in (_reads, _readers, _called):
        for near in _near(module, made, onward):
            source = module.source(near.frame, libraries)
            if source:
                return Origin(near if near.scope else made, source, inferred=True)
    return Origin(made, "", inferred=True)


def _written(module: Module, position: Position) -> Instruction | None:
    """Through loops, tuples and row updates to the instruction that computed the data."""
    key, index = position
    for _ in range(_NEIGHBOURS):
        here = module.instructions.get(key)
        if here is None:
            return None
        step = _step(module, here, index)
        if step is None:
            return here
        key, index = step
    return None


def _step(module: Module, here: Instruction, index: Index) -> Position | None:
    if here.opcode == "tuple" and index and index[0] < len(here.operands):
        return here.operands[index[0]], index[1:]
    if here.opcode == "get-tuple-element" and here.operands:
        return here.operands[0], (here.tuple_index, *index)
    if here.opcode in ("bitcast", "opt-barrier", "copy") and here.operands and not here.frame:
        return here.operands[0], index
    if here.opcode == "while" and index:
        return _carried(module, here, index)
    if here.opcode == "parameter":
        return _passed(module, here, index)
    if here.opcode == "dynamic-update-slice" and len(here.operands) > 1:
        return _row(module, here.operands[1])
    if here.opcode == "fusion" and here.calls:
        return _result(module, here, index)
    return None


def _result(module: Module, fusion: Instruction, index: Index) -> Position | None:
    """The instruction inside a fusion that makes a result, if it says more than the fusion does."""
    root = module.instructions[module.computations[fusion.calls[0]].root]
    if root.opcode == "tuple" and index and index[0] < len(root.operands):
        root, index = module.instructions[root.operands[index[0]]], index[1:]
    for _ in range(_NEIGHBOURS):
        if root.opcode != "bitcast" or not root.operands:
            break
        root = module.instructions[root.operands[0]]
    if root.opcode == "dynamic-update-slice" or (root.frame and not fusion.frame):
        return root.id, index
    return None


def _carried(module: Module, loop: Instruction, index: Index) -> Position | None:
    """What a loop's body leaves in a carry; what it began with where the body leaves it alone."""
    bodies = [module.computations[c] for c in loop.calls if c in module.computations]
    for body in bodies:
        root = module.instructions.get(body.root)
        if root is None or root.opcode != "tuple" or index[0] >= len(root.operands):
            continue
        made = module.instructions[root.operands[index[0]]]
        source = module.instructions.get(made.operands[0]) if made.operands else None
        unchanged = (
            made.opcode == "get-tuple-element"
            and made.tuple_index == index[0]
            and source is not None
            and source.opcode == "parameter"
        )
        if not unchanged:
            return made.id, index[1:]
    return (loop.operands[0], index) if loop.operands else None


def _passed(module: Module, parameter: Instruction, index: Index) -> Position | None:
    """What a fusion or call passes to a parameter of its computation."""
    caller = module.instructions.get(module.callers.get(parameter.computation, -1))
    if (
        caller is None
        or caller.opcode not in ("fusion", "call")
        or parameter.parameter >= len(caller.operands)
    ):
        return None
    return caller.operands[parameter.parameter], index


def _row(module: Module, key: int) -> Position:
    """Through what only shapes a row for its place in the stack."""
    for _ in range(_NEIGHBOURS):
        here = module.instructions[key]
        if here.opcode not in ("bitcast", "reshape", "broadcast", "copy") or not here.operands:
            break
        below = module.instructions.get(here.operands[0])
        if below is None or below.opcode == "constant":
            break
        key = here.operands[0]
    return key, ()


def _near(
    module: Module, start: Instruction, onward: Callable[[Module, Instruction], list[int]]
) -> list[Instruction]:
    found: list[Instruction] = []
    seen = {start.id}
    queue = deque(onward(module, start))
    while queue and len(found) < _NEIGHBOURS:
        key = queue.popleft()
        here = module.instructions.get(key)
        if key in seen or here is None:
            continue
        seen.add(key)
        found.append(here)
        queue.extend(onward(module, here))
    return found


def _reads(module: Module, here: Instruction) -> list[int]:
    if here.opcode == "parameter":
        passed = _passed(module, here, ())
        return [passed[0]] if passed else []
    return list(here.operands)


def _readers(module: Module, here: Instruction) -> list[int]:
    return list(module.users.get(here.id, ()))


def _called(module: Module, here: Instruction) -> list[int]:
    """Inside the computations that it calls, or, inside one, the instruction that calls it."""
    inside = [module.computations[c].root for c in here.calls if c in module.computations]
    caller = module.callers.get(here.computation)
    return [*inside, *here.operands, *([caller] if caller is not None else [])]
