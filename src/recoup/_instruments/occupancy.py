"""Who occupies the arena at its peak: the buffer assignment joined with the scheduled program. No JAX.

Idea: spans of buffers (`liveness`) give the bytes alive at each moment; at the fullest one every address of
the arena is given to the buffer alive there, to the largest buffer that needs it at another moment, or to
padding. Lines come from `origin`.
Limits: temporaries placed inside arguments' and results' memory take none of the arena and are not shown. On
several temporary allocations (memory spaces) the peaks are taken at one moment of the whole program.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recoup._instruments.arena import Moment, Occupant
from recoup._instruments.assignment import Allocation, Placed
from recoup._instruments.hlo import Module
from recoup._instruments.liveness import Liveness, Position, Span
from recoup._instruments.origin import Origin, origin
from recoup.errors import InstrumentError


@dataclass(frozen=True)
class Occupancy:
    """Occupants that add up to the temporaries, the schedule with bytes alive, and the index of the peak."""

    occupants: tuple[Occupant, ...]
    moments: tuple[Moment, ...]
    peak: int


@dataclass(frozen=True)
class _Live:
    placed: Placed
    span: Span | None

    def alive(self, time: int) -> bool:
        return self.span is not None and self.span.start <= time <= self.span.end


def occupancy(module: Module, allocations: Sequence[Allocation], libraries: Sequence[str] = ()) -> Occupancy:
    """The breakdown of all temporary allocations of a program.

    Args:
      module: the optimized program.
      allocations: its buffer assignment.
      libraries: path prefixes that are not the user's code.

    Raises:
      InstrumentError: the assignment belongs to another program.
    """
    temporary = [a for a in allocations if a.kind == "temporary"]
    if any(p.instruction not in module.instructions for a in temporary for p in a.placed):
        raise InstrumentError("the buffer assignment is not that of the program: it names other instructions")
    defined: set[Position] = {(p.instruction, p.index) for a in allocations for p in a.placed}
    liveness = Liveness(module, defined)
    lives = [[_Live(p, liveness.span((p.instruction, p.index))) for p in a.placed] for a in temporary]
    limit = sum(a.size_bytes for a in temporary)
    bytes_at = _bytes_alive(lives, len(liveness.order), limit)
    peak = max(range(len(bytes_at)), key=bytes_at.__getitem__, default=0)
    origins: dict[Position, Origin] = {}

    def of(placed: Placed) -> Origin:
        position = (placed.instruction, placed.index)
        if position not in origins:
            origins[position] = origin(module, position, libraries)
        return origins[position]

    occupants: list[Occupant] = []
    for allocation, found in zip(temporary, lives, strict=True):
        # A loop's carry is several values of one place: kept if any of them is read by the backward pass.
        kept = {_place(x) for x in found if x.alive(peak) and x.span is not None and x.span.kept}
        for live, start, size in _addresses(found, allocation.size_bytes, peak):
            role = _role(live, of(live.placed), peak, kept, module.late) if live is not None else "padding"
            occupants.append(_occupant(module, live, start, size, role, of))
    occupants.sort(key=lambda o: -o.bytes)
    moments = []
    for key, size in zip(liveness.order, bytes_at, strict=True):
        here = module.instructions[key]
        moments.append(Moment(size, here.name, here.op, module.source(here.frame, libraries)))
    return Occupancy(tuple(occupants), tuple(moments), peak)


def _bytes_alive(lives: Sequence[Sequence[_Live]], times: int, limit: int) -> list[int]:
    """Bytes alive at each time; buffers that share one place (a loop's carry) count once."""
    change = [0] * (times + 1)
    for found in lives:
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for live in found:
            if live.span is not None:
                places.setdefault(_place(live), []).append((live.span.start, live.span.end))
        for (_, size), spans in places.items():
            until = -1
            for start, end in sorted(spans):
                start = max(start, until + 1)
                if start <= end:
                    change[start] += size
                    change[end + 1] -= size
                    until = end
    alive, total = [], 0
    for time in range(times):
        total += change[time]
        alive.append(min(total, limit))
    return alive


def _addresses(found: Sequence[_Live], size: int, peak: int) -> list[tuple[_Live | None, int, int]]:
    """(buffer, first address, bytes) over the whole allocation; each buffer's pieces as one."""
    edges = {0, size}
    for live in found:
        edges |= {live.placed.offset_bytes, live.placed.offset_bytes + live.placed.size_bytes}
    cuts = sorted(edges)
    # Alive first, of those the one defined last (a loop's result, not the zeros it began with); then large.
    ranked = sorted(
        found,
        key=lambda x: (
            (0, -x.span.start, 0) if x.alive(peak) and x.span is not None else (1, 0, -x.placed.size_bytes)
        ),
    )
    owner: dict[int, _Live] = {}
    position = {cut: i for i, cut in enumerate(cuts)}
    free = list(range(len(cuts)))  # the next segment at or after this one without an owner

    def next_free(i: int) -> int:
        while free[i] != i:
            free[i] = free[free[i]]
            i = free[i]
        return i

    for live in ranked:
        first = position[live.placed.offset_bytes]
        last = position[live.placed.offset_bytes + live.placed.size_bytes]
        i = next_free(first)
        while i < last:
            owner[i] = live
            free[i] = i + 1
            i = next_free(i)
    pieces: dict[int, tuple[_Live | None, int, int]] = {}
    for i in range(len(cuts) - 1):
        got = owner.get(i)
        length = cuts[i + 1] - cuts[i]
        if id(got) in pieces:
            _, start, before = pieces[id(got)]
            pieces[id(got)] = (got, start, before + length)
        else:
            pieces[id(got)] = (got, cuts[i], length)
    return list(pieces.values())


def _occupant(
    module: Module, live: _Live | None, start: int, size: int, role: str, of: Callable[[Placed], Origin]
) -> Occupant:
    if live is None:
        return Occupant(size, size, start, "", "padding", "", "", "", "padding")
    found = of(live.placed)
    here = module.instructions[live.placed.instruction]
    return Occupant(
        bytes=size,
        size_bytes=live.placed.size_bytes,
        offset_bytes=live.placed.offset_bytes,
        instruction=here.name,
        op=found.instruction.op,
        value=str(here.shape.at(live.placed.index)),
        source=found.source,
        scope=found.instruction.scope,
        role=role,
        inferred=found.inferred,
    )


def _place(live: _Live) -> tuple[int, int]:
    return live.placed.offset_bytes, live.placed.size_bytes


def _role(live: _Live, found: Origin, peak: int, kept: set[tuple[int, int]], late: frozenset[int]) -> str:
    if live.span is None or not live.alive(peak):
        return "reserved"
    made = found.instruction
    if made.recomputed:
        return "recomputed"
    if made.backward or (not made.scope and live.placed.instruction in late):
        return "backward"
    if _place(live) in kept:
        return "kept"
    return "forward" if "jvp(" in made.scope else "other"
