"""An optimized program as the compiler stores it: instructions, schedule, source lines. No JAX.

Source: `HloModuleProto` of XLA's `hlo.proto`. Limits: only what the instruments need is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from recoup._instruments.wire import fields, inner, number, numbers, text
from recoup.errors import InstrumentError

# Scopes of operations that are computed again: recoup's rewriting; `jax.checkpoint` and recoup's regions.
RECOMPUTED = ("recoup_recompute", "rematted_computation")
_BACKWARD = "transpose("
_WHAT = "the optimized program"
_TYPES = {
    1: "bool", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16",
    11: "f32", 12: "f64", 15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "i4",
    22: "u4",
}  # fmt: skip
_TUPLE = 13


@dataclass(frozen=True)
class Shape:
    """Dtype and dimensions, or the parts of a tuple."""

    dtype: str
    dims: tuple[int, ...]
    parts: tuple["Shape", ...] = ()

    def at(self, index: Sequence[int]) -> "Shape":
        """The part of a tuple at an index; itself for ()."""
        found = self
        for i in index:
            if i >= len(found.parts):
                return found
            found = found.parts[i]
        return found

    def __str__(self) -> str:
        if self.parts:
            return f"pointers[{len(self.parts)}]"  # the buffer of a tuple holds the addresses of its parts
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction. `operands` and `calls` are ids; `scope` is the name stack with the operation."""

    id: int
    name: str
    opcode: str
    shape: Shape
    scope: str
    frame: int
    operands: tuple[int, ...]
    calls: tuple[int, ...]
    tuple_index: int
    parameter: int
    computation: int

    @property
    def op(self) -> str:
        """The operation that it was made from; its own opcode where the compiler made it."""
        name = self.scope.rsplit("/", 1)[-1]
        return name.split("[")[0].rstrip(":") if self.scope and "(" not in name else self.opcode

    @property
    def backward(self) -> bool:
        """Whether it belongs to a backward pass."""
        return _BACKWARD in self.scope

    @property
    def recomputed(self) -> bool:
        """Whether it computes again what the forward pass computed."""
        return any(mark in self.scope for mark in RECOMPUTED)


@dataclass(frozen=True)
class Computation:
    """A list of instructions, by id, and the one whose result it returns."""

    id: int
    name: str
    instructions: tuple[int, ...]
    root: int


@dataclass(frozen=True)
class Module:
    """An optimized program. `schedule` holds the order of instructions of the computations that have one."""

    name: str
    entry: int
    instructions: dict[int, Instruction]
    computations: dict[int, Computation]
    schedule: dict[int, tuple[int, ...]]
    frames: tuple[tuple[str, int, str, int], ...] = field(default=())  # file, line, function, parent (from 1)

    def source(self, frame: int, libraries: Sequence[str] = ()) -> str:
        """ "file:line (function)" of a stack frame: the innermost one outside `libraries` (path prefixes)."""
        seen = 0
        while 0 < frame <= len(self.frames) and seen <= len(self.frames):
            file, line, function, parent = self.frames[frame - 1]
            if not file.startswith(tuple(libraries)):
                return f"{file}:{line} ({function})"
            frame, seen = (0, seen) if parent == frame else (parent, seen + 1)
        return ""

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """For each instruction the ids of those that read it."""
        found: dict[int, list[int]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction.id)
        return {key: tuple(ids) for key, ids in found.items()}

    @cached_property
    def late(self) -> frozenset[int]:
        """Instructions of the backward pass: by scope, or (made by the compiler) by what they read."""
        found: set[int] = set()
        for computation in self.computations.values():
            for key in computation.instructions:  # operands come first
                here = self.instructions[key]
                unmarked = not here.scope and any(operand in found for operand in here.operands)
                if here.backward or here.recomputed or unmarked:
                    found.add(key)
        return frozenset(found)

    @cached_property
    def callers(self) -> dict[int, int]:
        """For each computation the instruction that calls it (one of them)."""
        return {c: i.id for i in self.instructions.values() for c in i.calls}


def parse_module(data: bytes) -> Module:
    """A module from its serialized form.

    Raises:
      InstrumentError: it is truncated, damaged or too large.
    """
    name, entry = "", 0
    instructions: dict[int, Instruction] = {}
    computations: dict[int, Computation] = {}
    schedule: dict[int, tuple[int, ...]] = {}
    frames: tuple[tuple[str, int, str, int], ...] = ()
    for key, value in fields(data, _WHAT):
        if key == 1:
            name = text(value, _WHAT)
        elif key == 3:
            _computation(inner(value, _WHAT), instructions, computations)
        elif key == 6:
            entry = number(value, _WHAT)
        elif key == 7:
            schedule = _schedule(inner(value, _WHAT))
        elif key == 17:
            frames = _frames(inner(value, _WHAT))
    found = Module(name, entry, instructions, computations, schedule, frames)
    _check(found)
    return found


def _check(module: Module) -> None:
    """Everything that is named must be there: a message cut at a field's end still reads as a message."""
    known = module.instructions.keys()
    named = [operand for i in module.instructions.values() for operand in i.operands]
    named += [key for order in module.schedule.values() for key in order]
    named += [c.root for c in module.computations.values()]
    lists = {module.entry, *module.schedule, *(c for i in module.instructions.values() for c in i.calls)}
    if not known >= set(named) or not module.computations.keys() >= lists:
        raise InstrumentError(f"{_WHAT} is truncated or damaged: it names parts that it does not hold")


def _computation(
    message: bytes, instructions: dict[int, Instruction], computations: dict[int, Computation]
) -> None:
    name, own, root = "", 0, 0
    raw = []
    for key, value in fields(message, _WHAT):
        if key == 1:
            name = text(value, _WHAT)
        elif key == 2:
            raw.append(inner(value, _WHAT))
        elif key == 5:
            own = number(value, _WHAT)
        elif key == 6:
            root = number(value, _WHAT)
    found = [_instruction(part, own) for part in raw]
    instructions.update((i.id, i) for i in found)
    computations[own] = Computation(own, name, tuple(i.id for i in found), root)


def _instruction(message: bytes, computation: int) -> Instruction:
    name = opcode = scope = ""
    shape = Shape("", ())
    frame = own = tuple_index = parameter = 0
    operands: list[int] = []
    calls: list[int] = []
    for key, value in fields(message, _WHAT):
        if key == 1:
            name = text(value, _WHAT)
        elif key == 2:
            opcode = text(value, _WHAT)
        elif key == 3:
            shape = _shape(inner(value, _WHAT))
        elif key == 7:
            for part, item in fields(inner(value, _WHAT), _WHAT):
                if part == 2:
                    scope = text(item, _WHAT)
                elif part == 15:
                    frame = number(item, _WHAT)
        elif key == 9:
            parameter = number(value, _WHAT)
        elif key == 13:
            tuple_index = number(value, _WHAT)
        elif key == 35:
            own = number(value, _WHAT)
        elif key == 36:
            operands += numbers(value, _WHAT)
        elif key == 38:
            calls += numbers(value, _WHAT)
    return Instruction(
        own, name, opcode, shape, scope, frame, tuple(operands), tuple(calls), tuple_index, parameter,
        computation,
    )  # fmt: skip


def _shape(message: bytes, depth: int = 0) -> Shape:
    kind = 0
    dims: list[int] = []
    parts: list[Shape] = []
    for key, value in fields(message, _WHAT):
        if key == 2:
            kind = number(value, _WHAT)
        elif key == 3:
            dims += numbers(value, _WHAT)
        elif key == 4 and depth < 32:
            parts.append(_shape(inner(value, _WHAT), depth + 1))
    return Shape("tuple" if kind == _TUPLE else _TYPES.get(kind, f"type{kind}"), tuple(dims), tuple(parts))


def _schedule(message: bytes) -> dict[int, tuple[int, ...]]:
    found = {}
    for _, entry in fields(message, _WHAT):
        key, order = 0, []
        for part, value in fields(inner(entry, _WHAT), _WHAT):
            if part == 1:
                key = number(value, _WHAT)
            elif part == 2:
                for item, ids in fields(inner(value, _WHAT), _WHAT):
                    if item == 1:
                        order += numbers(ids, _WHAT)
        found[key] = tuple(order)
    return found


def _frames(message: bytes) -> tuple[tuple[str, int, str, int], ...]:
    files: list[str] = []
    functions: list[str] = []
    places: list[dict[int, int]] = []
    stack: list[dict[int, int]] = []
    for key, value in fields(message, _WHAT):
        if key in (1, 2):
            (files if key == 1 else functions).append(text(value, _WHAT))
        elif key in (3, 4):
            parts = {f: number(v, _WHAT) for f, v in fields(inner(value, _WHAT), _WHAT)}
            (places if key == 3 else stack).append(parts)

    def named(names: list[str], i: int) -> str:
        return names[i - 1] if 0 < i <= len(names) else ""

    found = []
    for frame in stack:
        i = frame.get(1, 0)
        place = places[i - 1] if 0 < i <= len(places) else {}
        file, function = named(files, place.get(1, 0)), named(functions, place.get(2, 0))
        found.append((file, place.get(3, 0), function, frame.get(2, 0)))
    return tuple(found)
