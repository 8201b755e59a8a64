"""Residuals: what reverse mode keeps from the forward pass for the backward pass, value by value.

Idea: in the joint program, a residual is a value that a forward operation makes (or an argument) and a
backward operation reads (see `_instruments.crossing`). Source: `jax.ad_checkpoint.print_saved_residuals`,
with bytes, lines and loops.
Limits: what the jaxpr says; the compiler may keep less (it fuses) or more (it copies): see `timeline`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from recoup import _compat
from recoup._instruments.crossing import Residual as Residual
from recoup._instruments.crossing import crossing, has_backward
from recoup._instruments.reading import Reading
from recoup._report.of_timeline import residuals_picture
from recoup._report.picture import Picture
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, heading, note, table
from recoup._trace import as_names, as_numbers, bind_static, trace


@dataclass(frozen=True)
class Residuals(Reported):
    """What reverse mode keeps. Prints as a table.

    Attributes:
      items: computed values, largest first, then those that wait in the host's memory, then arguments and
        constants that the backward pass reads.
      total_bytes: of the computed values; arguments are there anyway.
      instrument: what produced the numbers.
    """

    items: tuple[Residual, ...]
    instrument: str = "jaxpr (traced, nothing compiled)"

    @property
    def total_bytes(self) -> int:
        """Bytes of the computed values that cross from the forward to the backward pass."""
        return sum(item.bytes for item in self.items if item.kind == "computed")

    @property
    def fused_bytes(self) -> int:
        """Of the total, what the memory model expects the compiler to compute inside its readers."""
        return sum(item.bytes for item in self.items if item.fused)

    @property
    def argument_bytes(self) -> int:
        """Bytes of arguments and constants that the backward pass reads; they are there anyway."""
        return sum(item.bytes for item in self.items if item.kind in ("argument", "constant"))

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of computed values that wait in the host's memory; they are not in the total."""
        return sum(item.bytes for item in self.items if item.kind == "offloaded")

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The totals as `Reading`s."""
        leaves = "what the compiler fuses away, copies or recomputes"
        computed = "computed values that the backward pass reads, in loops over all iterations"
        given = "arguments and constants that the backward pass reads; they are there anyway"
        count = sum(item.kind == "computed" for item in self.items)
        return (
            Reading("residuals (jaxpr)", "kept", self.total_bytes, "bytes", computed, leaves),
            Reading("residuals (jaxpr)", "values kept", count, "values", computed, leaves),
            Reading("residuals (jaxpr)", "arguments read", self.argument_bytes, "bytes", given, leaves),
        )

    def by_source(self) -> dict[str, int]:
        """Bytes of computed values by the user's line, largest first."""
        totals: dict[str, int] = {}
        for item in self.items:
            if item.kind == "computed":
                totals[item.source] = totals.get(item.source, 0) + item.bytes
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))

    def diff(self, other: "Residuals") -> "ResidualsDiff":
        """What this program keeps and `other` does not, and the reverse."""
        mine, theirs = Counter(map(_key, self.items)), Counter(map(_key, other.items))
        return ResidualsDiff(
            _surplus(self.items, theirs), _surplus(other.items, mine), self.total_bytes, other.total_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "items": [
                asdict(item) | {"region": item.region, "per_iteration_bytes": item.per_iteration_bytes}
                for item in self.items
            ],
            "total_bytes": self.total_bytes,
            "fused_bytes": self.fused_bytes,
            "argument_bytes": self.argument_bytes,
            "offloaded_bytes": self.offloaded_bytes,
            "instrument": self.instrument,
        }

    def to_json(self) -> str:
        """The list as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def picture(self) -> Picture:
        """What `report` shows."""
        return residuals_picture(self.to_dict())

    def __str__(self) -> str:
        computed = [item for item in self.items if item.kind == "computed"]
        title = f"Kept for the backward pass: {format_bytes(self.total_bytes)} in {len(computed)} values"
        lines = [heading(title)]
        if computed:
            lines.append(_table(computed))
        if self.fused_bytes:
            lines.append(
                note(f"{_FUSED.strip()} expected inside its readers: {format_bytes(self.fused_bytes)}")
            )
        if any(item.duplicate for item in computed):
            lines.append(note(f"{_DUPLICATE.strip()} the elements of another value here, or of an argument"))
        offloaded = [item for item in self.items if item.kind == "offloaded"]
        if offloaded:
            lines += ["", heading(f"Offloaded to the host's memory: {format_bytes(self.offloaded_bytes)}")]
            lines.append(_table(offloaded))
        given = len(self.items) - len(computed) - len(offloaded)
        if given:
            lines.append(
                note(
                    f"Beside them {given} arguments and constants that are there anyway: "
                    f"{format_bytes(self.argument_bytes)}"
                )
            )
        lines.append(note(f"Instrument: {self.instrument}"))
        return "\n".join(lines)


@dataclass(frozen=True)
class ResidualsDiff:
    """Residuals of two programs compared: what only the first keeps, what only the second keeps."""

    only_first: tuple[Residual, ...]
    only_second: tuple[Residual, ...]
    first_total_bytes: int
    second_total_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            heading(f"{format_bytes(self.first_total_bytes)} against {format_bytes(self.second_total_bytes)}")
        ]
        for title, items in (
            ("Only the first keeps", self.only_first),
            ("Only the second keeps", self.only_second),
        ):
            if items:
                lines += ["", heading(title), _table(items)]
        return "\n".join(lines)


_FUSED, _DUPLICATE = " ~", " ="  # marks beside an operation


def _key(item: Residual) -> tuple[Any, ...]:
    return item.bytes, item.value, item.kind, item.op, item.name, item.source, item.region


def _surplus(items: Sequence[Residual], others: Mapping[Any, int]) -> tuple[Residual, ...]:
    """The items beyond those that the other list has as well."""
    left = dict(others)
    found = []
    for item in items:
        if left.get(_key(item), 0) > 0:
            left[_key(item)] -= 1
        else:
            found.append(item)
    return tuple(found)


def _table(items: Sequence[Residual], rows: int = 20) -> str:
    grouped: dict[tuple[str, str, str, str, int], list[Residual]] = {}
    regions = any(item.region for item in items)
    for item in items:
        mark = _FUSED * item.fused + _DUPLICATE * item.duplicate
        made = item.op + (f" {item.name!r}" if item.named else "") + mark
        key = (item.source or item.name, item.region, made, item.value, item.iterations)
        grouped.setdefault(key, []).append(item)
    shown = sorted(grouped.items(), key=lambda pair: -sum(i.bytes for i in pair[1]))
    body = []
    for (source, region, op, value, iterations), found in shown[:rows]:
        place = source.replace("\\", "/").rsplit("/", 1)[-1]
        place = place.partition(" (")[0] if regions else place
        count = f"{len(found)} x {iterations} steps" if iterations else str(len(found))
        body.append([place, region, op, value, count, format_bytes(sum(i.bytes for i in found))])
    headers = ["line", "region", "operation", "value", "count", "bytes"]
    text = table(headers, body, right=(4, 5), optional=(1,))
    if len(shown) > rows:
        rest = sum(i.bytes for _, found in shown[rows:] for i in found)
        text += f"\n... and {len(shown) - rows} more lines, {format_bytes(rest)}"
    return text


def residuals(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
) -> Residuals:
    """Lists what reverse mode keeps. Traces only: nothing compiles, nothing runs.

    Args:
      fun: a function to be differentiated with respect to its floating-point arguments, or a step that takes
        a gradient itself (then what that gradient keeps is listed; it is not differentiated again).
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      kwargs, static_argnums, static_argnames: as for `recoup.fit`.

    Returns:
      A `Residuals`; sizes are bytes.
    """
    numbers, names = as_numbers(static_argnums), as_names(static_argnames)
    traced = trace(fun, args, kwargs, static_argnums=numbers, static_argnames=names)
    if has_backward(traced.flat):
        return Residuals(crossing(traced.flat, traced.program))
    bound = bind_static(fun, args, kwargs or {}, numbers, names)
    results = [v.aval for v in traced.flat.outvars if _differentiable(v.aval)]
    # Cotangents are arguments: as constants, the backward pass would fold into the forward one.
    cotangents = [_compat.shape_of(aval) for aval in results]
    given = len(jax.tree.leaves((bound.args, bound.kwargs)))
    joint = trace(_differentiated(bound.fun), (bound.args, bound.kwargs, cotangents))
    items = crossing(joint.flat, joint.program, given)
    return Residuals(tuple(replace(item, name=_own_name(item.name, bound.positions)) for item in items))


def _own_name(name: str, positions: Sequence[int]) -> str:
    """An argument's name in the joint program, `args[0][i]` or `args[1]['key']`, as the function has it."""
    found = re.match(r"args\[0\]\[(\d+)\](.*)|args\[1\]\['(\w+)'\](.*)", name)
    if found is None:
        return name
    return f"args[{positions[int(found[1])]}]{found[2]}" if found[1] else f"{found[3]}{found[4]}"


def _differentiated(fun: Callable[..., Any]) -> Callable[..., Any]:
    def joint(args: Any, kwargs: Any, cotangents: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        free = [i for i, leaf in enumerate(leaves) if _differentiable(leaf)]

        def of_free(*chosen: Any) -> Any:
            full = list(leaves)
            for i, value in zip(free, chosen, strict=True):
                full[i] = value
            again, named = jax.tree.unflatten(tree, full)
            return [leaf for leaf in jax.tree.leaves(fun(*again, **named)) if _differentiable(leaf)]

        out, pull = jax.vjp(of_free, *[leaves[i] for i in free])
        return out, pull(cotangents)

    return joint


def _differentiable(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, (float, complex))
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))
