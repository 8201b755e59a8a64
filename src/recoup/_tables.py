"""A Program as flat arrays of machine integers, for the inner loops of the planner. No JAX.

Idea: what the loops read of each operation and value, once per program; a list of lists is a list of starts
and one of entries. Limits: 32-bit indices.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recoup._program import Program


@dataclass(frozen=True, eq=False)
class Tables:
    """`starts`, `ids`: the operations whose results an operation reads; the other lists by their names."""

    starts: "array[int]"
    ids: "array[int]"
    reads_starts: "array[int]"
    reads: "array[int]"  # values
    writes_starts: "array[int]"
    writes: "array[int]"
    producer: "array[int]"  # of each value; below 0: an argument or constant
    fusible: bytearray
    absorbs: bytearray
    dear: bytearray
    own: "array[int]"  # bytes
    workspace: "array[int]"  # bytes
    pure: bytearray
    cost: "array[float]"
    flops: "array[float]"

    @staticmethod
    def of(program: "Program") -> "Tables":
        """The tables of a program."""
        ops = program.ops
        return Tables(
            *ragged(program.sources),
            *ragged([op.reads for op in ops]),
            *ragged([op.writes for op in ops]),
            array("i", [value.producer for value in program.values]),
            bytearray(op.fusible for op in ops),
            bytearray(program.absorbs),
            bytearray(op.dear for op in ops),
            array("q", program.own_bytes),
            array("q", [op.workspace_bytes for op in ops]),
            bytearray(op.pure for op in ops),
            array("d", [op.cost for op in ops]),
            array("d", [op.flops for op in ops]),
        )


def ragged(rows: Sequence[Iterable[int]]) -> "tuple[array[int], array[int]]":
    """Rows of different lengths as starts and entries."""
    starts, entries = array("i", [0]), array("i")
    for row in rows:
        entries.extend(row)
        starts.append(len(entries))
    entries.append(0)  # so that no array is empty
    return starts, entries
