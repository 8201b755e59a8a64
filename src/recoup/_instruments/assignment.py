"""The compiler's buffer assignment: allocations, and the logical buffers placed in them. No JAX.

Source: `BufferAssignmentProto` of XLA's `hlo.proto`, held by every supported JAX in
`memory_analysis().serialized_buffer_assignment_proto`; no dump is needed.
Limits: XLA leaves the heap simulator's trace out of it, so who is alive when is worked out in `occupancy`.
"""

from dataclasses import dataclass

from recoup._instruments.wire import fields, inner, number, numbers
from recoup.errors import InstrumentError

_WHAT = "the buffer assignment"


@dataclass(frozen=True)
class Placed:
    """A logical buffer in an allocation: `instruction` (an id) defines its part `index` of its result."""

    instruction: int
    index: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Allocation:
    """One piece of memory of the program. `kind` is "parameter", "constant", "output", "temporary" or
    "thread-local" (inside one operation)."""

    index: int
    size_bytes: int
    kind: str
    parameter: int
    placed: tuple[Placed, ...]


def parse_assignment(data: bytes) -> tuple[Allocation, ...]:
    """The allocations of a serialized buffer assignment.

    Raises:
      InstrumentError: it is truncated, damaged or too large.
    """
    defined: dict[int, tuple[int, tuple[int, ...], int]] = {}
    raw: list[bytes] = []
    for field, value in fields(data, _WHAT):
        if field == 1:
            key, place = _logical(inner(value, _WHAT))
            defined[key] = place
        elif field == 3:
            raw.append(inner(value, _WHAT))
    return tuple(_allocation(message, defined) for message in raw)


def _logical(message: bytes) -> tuple[int, tuple[int, tuple[int, ...], int]]:
    key = size = instruction = 0
    index: list[int] = []
    for field, value in fields(message, _WHAT):
        if field == 1:
            key = number(value, _WHAT)
        elif field == 2:
            size = number(value, _WHAT)
        elif field == 3:
            for part, item in fields(inner(value, _WHAT), _WHAT):
                if part == 4:
                    instruction = number(item, _WHAT)
                elif part == 3:
                    index += numbers(item, _WHAT)
    return key, (instruction, tuple(index), size)


def _allocation(message: bytes, defined: dict[int, tuple[int, tuple[int, ...], int]]) -> Allocation:
    flags: dict[int, int] = {}
    placed = []
    for field, value in fields(message, _WHAT):
        if field == 9:
            placed.append(_placed(inner(value, _WHAT), defined))
        elif isinstance(value, int):
            flags[field] = number(value, _WHAT)
    if flags.get(5):
        kind = "parameter"
    elif flags.get(12):
        kind = "constant"
    elif flags.get(7):
        kind = "output"
    else:
        kind = "thread-local" if flags.get(3) else "temporary"
    size = flags.get(2, 0)
    if size < 0 or any(p.offset_bytes < 0 or p.offset_bytes + p.size_bytes > size for p in placed):
        raise InstrumentError(f"{_WHAT} is damaged: a buffer lies outside its allocation of {size} bytes")
    return Allocation(flags.get(1, 0), size, kind, flags.get(6, 0), tuple(placed))


def _placed(message: bytes, defined: dict[int, tuple[int, tuple[int, ...], int]]) -> Placed:
    parts = {field: number(value, _WHAT) for field, value in fields(message, _WHAT)}
    key = parts.get(1, 0)
    if key not in defined:
        raise InstrumentError(f"{_WHAT} is damaged: it places buffer {key}, which it does not define")
    instruction, index, size = defined[key]
    return Placed(instruction, index, parts.get(2, 0), parts.get(3, size))
