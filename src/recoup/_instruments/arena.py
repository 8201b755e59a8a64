"""Arena: the memory of a compiled program and who occupies its temporaries at their peak. Plain data, no JAX.

Idea: the compiler lays every temporary at an offset of one allocation. At the moment when most bytes are
alive, each byte of that allocation either belongs to a buffer alive then, or is reserved for a buffer alive
at another moment, or is padding between buffers. Counting bytes of addresses, the parts add up to the
allocation exactly.
Source: the compiler's buffer assignment (see `assignment` and `occupancy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recoup._instruments.reading import Reading, Result, place
from recoup._report.text import format_bytes, format_percent, heading, note, table
from recoup._scopes import region_of

INSTRUMENT = "compiled (buffer assignment)"
# Why a buffer is there, in the order of reports.
ROLES = ("kept", "recomputed", "forward", "backward", "other", "reserved", "padding")


@dataclass(frozen=True)
class Occupant:
    """A buffer in the arena.

    Attributes:
      bytes: of the arena's addresses that are counted as its own; these add up to the arena.
      size_bytes: of the buffer; more than `bytes` where another buffer shares addresses with it.
      offset_bytes: where it begins in the arena.
      instruction: the instruction of the optimized program that defines it; "" for padding.
      op: the operation that the instruction was made from, such as "dot_general".
      value: dtype and shape, such as "f32[256,512]".
      source: the user's line, "file:line (function)"; "" where the compiler lost it.
      scope: the name stack with the operation, such as "jit(step)/transpose(jvp())/dot_general".
      role: "kept" (made by the forward pass, read by the backward pass), "recomputed", "forward" (read by the
        forward pass only), "backward", "other" (neither: inputs prepared, an optimizer's update), "reserved"
        (not alive at the peak: these addresses serve it at another moment), "padding".
      inferred: the line is that of its operand or reader, as the compiler made the instruction itself.
    """

    bytes: int
    size_bytes: int
    offset_bytes: int
    instruction: str
    op: str
    value: str
    source: str
    scope: str
    role: str
    inferred: bool = False

    @property
    def region(self) -> str:
        """The region (`recoup.checkpoint`) that it is made in; "" for none."""
        return region_of(self.scope)


@dataclass(frozen=True)
class Moment:
    """One instruction of the schedule: the bytes of the arena alive while it runs."""

    bytes: int
    instruction: str
    op: str
    source: str


@dataclass(frozen=True)
class Arena(Result):
    """Memory of a compiled program, per device, and the breakdown of its temporaries. Prints as a table.

    Attributes:
      arguments_bytes, outputs_bytes, aliased_bytes, temporaries_bytes, constants_bytes: the compiler's memory
        analysis; constants also hold the arrays that the step closes over.
      occupants: the temporaries at their peak, largest first; their `bytes` add up to `temporaries_bytes`.
      moments: the schedule with the bytes alive at each instruction, loop bodies in their places.
      peak: index into `moments` of the peak.
      instrument: what produced the numbers.
    """

    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    constants_bytes: int
    occupants: tuple[Occupant, ...] = ()
    moments: tuple[Moment, ...] = ()
    peak: int = 0
    instrument: str = INSTRUMENT

    @property
    def total_bytes(self) -> int:
        """Arguments + outputs - aliased + temporaries + constants."""
        given = self.arguments_bytes + self.outputs_bytes - self.aliased_bytes
        return given + self.temporaries_bytes + self.constants_bytes

    @property
    def alive_bytes(self) -> int:
        """Bytes of the arena that belong to a buffer alive at the peak."""
        return sum(o.bytes for o in self.occupants if o.role not in ("reserved", "padding"))

    @property
    def attributed_bytes(self) -> int:
        """Bytes of the arena for which a source line is known."""
        return sum(o.bytes for o in self.occupants if o.source)

    def by_source(self) -> dict[str, int]:
        """Bytes by the user's line, largest first; "" collects what has none."""
        return _totals((o.source, o.bytes) for o in self.occupants)

    def by_role(self) -> dict[str, int]:
        """Bytes by role, in the order of `ROLES`."""
        found = _totals((o.role, o.bytes) for o in self.occupants)
        return {role: found[role] for role in ROLES if role in found}

    def diff(self, other: "Arena") -> "ArenaDiff":
        """Where the bytes of two programs differ, by line, operation and role."""
        return ArenaDiff(self, other)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Each part as a `Reading`."""
        covers = "one execution on one device, as the compiler laid it out"
        leaves = "the runtime, the compiler itself, scratch inside library calls, other programs"
        parts = ("arguments", "outputs", "aliased", "temporaries", "constants", "total")
        return tuple(
            Reading(self.instrument, part, getattr(self, f"{part}_bytes"), "bytes", covers, leaves)
            for part in parts
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return super().to_dict() | {
            "total_bytes": self.total_bytes,
            "alive_bytes": self.alive_bytes,
            "attributed_bytes": self.attributed_bytes,
            "by_role": self.by_role(),
        }

    def __str__(self) -> str:
        sizes = [[r.what, r.text] for r in self.readings if r.value or r.what in ("temporaries", "total")]
        lines = [heading(f"Compiled memory, {self.instrument}"), table(["", ""], sizes, right=(1,))]
        if self.temporaries_bytes and not self.occupants:
            lines.append(
                note("The backend gives no buffer assignment: who occupies the temporaries is not known")
            )
        elif self.temporaries_bytes:
            lines += ["", heading("The temporaries at their peak"), _rows(self.occupants)]
            shares = ", ".join(f"{role} {format_bytes(size)}" for role, size in self.by_role().items())
            lines.append(note(f"By role: {shares}"))
            known = format_percent(self.attributed_bytes / self.temporaries_bytes)
            lines.append(note(f"Attributed to a source line: {known}"))
        return "\n".join(lines)


@dataclass(frozen=True)
class ArenaDiff:
    """Two compiled arenas compared: the bytes of each line, operation and role that differ."""

    first: Arena
    second: Arena

    @property
    def rows(self) -> tuple[tuple[str, str, str, str, int, int], ...]:
        """(line, region, operation, role, bytes in the first, bytes in the second), largest difference
        first."""
        mine, theirs = (
            _totals(((o.source, o.region, o.op, o.role), o.bytes) for o in arena.occupants)
            for arena in (self.first, self.second)
        )
        keys = [key for key in {**mine, **theirs} if mine.get(key, 0) != theirs.get(key, 0)]
        keys.sort(key=lambda key: -abs(mine.get(key, 0) - theirs.get(key, 0)))
        return tuple((*key, mine.get(key, 0), theirs.get(key, 0)) for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("source", "region", "op", "role", "first_bytes", "second_bytes")
        return {
            "first_temporaries_bytes": self.first.temporaries_bytes,
            "second_temporaries_bytes": self.second.temporaries_bytes,
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }

    def __str__(self) -> str:
        a, b = self.first.temporaries_bytes, self.second.temporaries_bytes
        lines = [heading(f"Temporaries {format_bytes(a)} against {format_bytes(b)}")]
        rows = [[place(s), *words, format_bytes(x), format_bytes(y)] for s, *words, x, y in self.rows]
        if rows:
            headers = ["line", "region", "operation", "role", "first", "second"]
            lines.append(table(headers, rows[:_ROWS], right=(4, 5), optional=(1,)))
        if len(rows) > _ROWS:
            lines.append(f"... and {len(rows) - _ROWS} more lines")
        return "\n".join(lines)


_ROWS = 20


def _rows(occupants: Sequence[Occupant]) -> str:
    found = _totals(((o.source, o.region, o.op, o.value, o.role), o.bytes) for o in occupants)
    body = [[place(s), *words, format_bytes(n)] for (s, *words), n in found.items()]
    headers = ["line", "region", "operation", "value", "role", "bytes"]
    text = table(headers, body[:_ROWS], right=(5,), optional=(1,))
    if len(body) > _ROWS:
        rest = sum(list(found.values())[_ROWS:])
        text += f"\n  ... and {len(body) - _ROWS} more lines, {format_bytes(rest)}"
    return text


def _totals(pairs: Any) -> dict[Any, int]:
    totals: dict[Any, int] = {}
    for key, size in pairs:
        totals[key] = totals.get(key, 0) + size
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
