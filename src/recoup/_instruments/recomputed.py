"""The `recomputed` instrument: operations computed again, counted in the optimized program.

Idea: recoup's rewriting and JAX's own regions put a scope around what they recompute, and the compiler keeps
it with each instruction. What it merged back into the forward pass is one instruction, not two: a region
that does nothing shows as no more heavy operations in all than the plain step has.
Limits: instructions as the compiler left them, those inside fusions included; a loop's body counts once. Of
two merged instructions either scope may survive, so compare totals. What the compiler itself computes in
several fusions carries no mark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recoup import _compat
from recoup._compiling import Fitted
from recoup._instruments.hlo import Instruction, Module, parse_module
from recoup._instruments.reading import Reading, Result, place
from recoup._instruments.subject import prepare
from recoup._report.text import heading, note, table
from recoup._scopes import region_of

INSTRUMENT = "recomputed (optimized program)"
HEAVY = frozenset(["dot", "convolution", "custom-call", "sort", "while", "fft", "cholesky", "scatter"])
_FREE = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier"])


@dataclass(frozen=True)
class RecomputedOp:
    """Recomputed instructions of one line: the operation, the user's line, how many, and how many in all.

    `count` of them are recomputed; `total` are in the whole program with this operation, line and region (of
    `recoup.checkpoint`; "" for none).
    """

    op: str
    source: str
    heavy: bool
    count: int
    total: int
    region: str = ""


@dataclass(frozen=True)
class Recomputed(Result):
    """What a compiled program computes again. Prints as a table.

    Attributes:
      items: by line and operation, heavy ones (products, convolutions, loops) first.
      count, heavy_count: recomputed instructions, and heavy ones among them.
      total, heavy_total: instructions of the whole program that compute something, and heavy ones among them.
    """

    items: tuple[RecomputedOp, ...]
    total: int
    heavy_total: int
    instrument: str = INSTRUMENT

    @property
    def count(self) -> int:
        return sum(item.count for item in self.items)

    @property
    def heavy_count(self) -> int:
        return sum(item.count for item in self.items if item.heavy)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The counts as `Reading`s."""
        covers = "instructions of the optimized program whose scope says that they compute again"
        leaves = "loops' lengths (a body counts once); what the compiler itself duplicates into fusions"
        return (
            Reading(self.instrument, "recomputed", self.count, "operations", covers, leaves),
            Reading(self.instrument, "recomputed, heavy", self.heavy_count, "operations", covers, leaves),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return super().to_dict() | {"count": self.count, "heavy_count": self.heavy_count}

    def __str__(self) -> str:
        title = (
            f"Computed again: {self.count} of {self.total} operations, {self.heavy_count} of "
            f"{self.heavy_total} heavy ones"
        )
        lines = [heading(title)]
        if self.items:
            rows = [
                [
                    place(item.source),
                    item.region,
                    item.op,
                    item.count,
                    item.total,
                ]
                for item in self.items[:20]
            ]
            lines.append(
                table(["line", "region", "operation", "again", "of"], rows, right=(3, 4), optional=(1,))
            )
            if len(self.items) > 20:
                lines.append(f"  ... and {len(self.items) - 20} more lines")
        lines.append(note(f"Instrument: {self.instrument}; a loop's body counts once"))
        return "\n".join(lines)


def recomputed(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Recomputed:
    """Compiles a step and counts what it computes again. Nothing runs. Arguments as for `compiled`."""
    subject = prepare(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return recomputed_in(subject.compiled)


def recomputed_in(compiled: Any) -> Recomputed:
    """The count for a `jax.stages.Compiled`."""
    return count_recomputed(parse_module(_compat.optimized_module(compiled)), _compat.library_paths())


def count_recomputed(module: Module, libraries: Sequence[str] = ()) -> Recomputed:
    """The count for an optimized program; `libraries` are path prefixes that are not the user's code."""
    totals: dict[tuple[str, str, bool, str], int] = {}
    again: dict[tuple[str, str, bool, str], int] = {}
    for here in module.instructions.values():
        if not _computes(here):
            continue
        key = (here.op, module.source(here.frame, libraries), here.opcode in HEAVY, region_of(here.scope))
        totals[key] = totals.get(key, 0) + 1
        if here.recomputed:
            again[key] = again.get(key, 0) + 1
    items = [RecomputedOp(*key[:3], count, totals[key], key[3]) for key, count in again.items()]
    items.sort(key=lambda item: (not item.heavy, -item.count, item.source))
    heavy = sum(n for (_, _, is_heavy, _), n in totals.items() if is_heavy)
    return Recomputed(tuple(items), sum(totals.values()), heavy)


def _computes(here: Instruction) -> bool:
    """A fusion is counted by what is inside it."""
    return here.opcode not in _FREE and here.opcode != "fusion"
