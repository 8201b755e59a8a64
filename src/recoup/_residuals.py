"""Residuals: what reverse mode keeps from the forward pass for the backward pass, value by value.

Idea: in the joint program, a residual is a value that a forward operation makes (or an argument) and a
backward operation reads; which is which is written in the name stack by JAX's own transformations. A loop's
residual is a stacked result; its line is that of the operation inside the body that made a row. Source:
`jax.ad_checkpoint.print_saved_residuals`, with bytes, lines and loops.
Limits: what the jaxpr says; the compiler may keep less (it fuses) or more (it copies): see `timeline`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from recoup import _compat
from recoup._compat import Literal
from recoup._inline import Flat, flatten
from recoup._program import Program
from recoup._report.of_timeline import residuals_picture
from recoup._report.picture import Picture
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, heading, note, table
from recoup._trace import Traced, as_names, as_numbers, bind_static, to_program, trace


@dataclass(frozen=True)
class Residual:
    """A value that the backward pass reads.

    Attributes:
      bytes: its size; over all iterations inside a loop.
      value: shape and dtype, such as "f32[8,128]".
      kind: "computed", "argument" or "constant" (an array that the function closes over).
      op: the operation that made it; source: the user's line; scope: the name stack; name: the argument, or a
        name given to it.
      needed_by: the first backward operation that reads it, and `needed_by_source`, its line.
      iterations: of the loop that stacks it, 0 outside loops.
      fused: whether the compiler can compute it inside its readers instead of keeping it.
    """

    bytes: int
    value: str
    kind: str
    op: str
    source: str
    scope: str = ""
    name: str = ""
    needed_by: str = ""
    needed_by_source: str = ""
    iterations: int = 0
    fused: bool = False

    @property
    def per_iteration_bytes(self) -> int:
        """Bytes that one iteration adds; the size itself outside loops."""
        return self.bytes // self.iterations if self.iterations else self.bytes


@dataclass(frozen=True)
class Residuals(Reported):
    """What reverse mode keeps. Prints as a table.

    Attributes:
      items: computed values, largest first, then arguments and constants that the backward pass reads.
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
    def argument_bytes(self) -> int:
        """Bytes of arguments and constants that the backward pass reads; they are there anyway."""
        return sum(item.bytes for item in self.items if item.kind != "computed")

    def by_source(self) -> dict[str, int]:
        """Bytes of computed values by the user's line, largest first."""
        totals: dict[str, int] = {}
        for item in self.items:
            if item.kind == "computed":
                totals[item.source] = totals.get(item.source, 0) + item.bytes
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))

    def diff(self, other: "Residuals") -> "ResidualsDiff":
        """What this program keeps and `other` does not, and the reverse."""
        mine, theirs = list(self.items), list(other.items)
        for item in self.items:
            match = next((t for t in theirs if _same(item, t)), None)
            if match is not None:
                mine.remove(item)
                theirs.remove(match)
        return ResidualsDiff(tuple(mine), tuple(theirs), self.total_bytes, other.total_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "items": [
                asdict(item) | {"per_iteration_bytes": item.per_iteration_bytes} for item in self.items
            ],
            "total_bytes": self.total_bytes,
            "argument_bytes": self.argument_bytes,
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
        given = len(self.items) - len(computed)
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


def _same(a: Residual, b: Residual) -> bool:
    return (a.bytes, a.value, a.kind, a.op, a.name, a.source) == (
        b.bytes,
        b.value,
        b.kind,
        b.op,
        b.name,
        b.source,
    )


def _table(items: Sequence[Residual], rows: int = 20) -> str:
    grouped: dict[tuple[str, str, str, int], list[Residual]] = {}
    for item in items:
        grouped.setdefault((item.source or item.name, item.op, item.value, item.iterations), []).append(item)
    shown = sorted(grouped.items(), key=lambda pair: -sum(i.bytes for i in pair[1]))
    body = []
    for (source, op, value, iterations), found in shown[:rows]:
        place = source.replace("\\", "/").rsplit("/", 1)[-1]
        count = f"{len(found)} x {iterations} steps" if iterations else str(len(found))
        body.append([place, op, value, count, format_bytes(sum(i.bytes for i in found))])
    text = table(["line", "operation", "value", "count", "bytes"], body, right=(3, 4))
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
    if any(_backward(str(eqn.source_info.name_stack)) for eqn in traced.flat.eqns):
        return _crossing(traced)
    bound = bind_static(fun, args, kwargs or {}, numbers, names)
    results = [v.aval for v in traced.flat.outvars if _differentiable(v.aval)]
    # Cotangents are arguments: as constants, the backward pass would fold into the forward one.
    cotangents = [_compat.shape_of(aval) for aval in results]
    given = len(jax.tree.leaves((bound.args, bound.kwargs)))
    joint = trace(_differentiated(bound.fun), (bound.args, bound.kwargs, cotangents))
    return _crossing(joint, given)


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


def _backward(scope: str) -> bool:
    return "transpose(" in scope


def _crossing(traced: Traced, given: int | None = None) -> Residuals:
    """The values that cross; arguments from `given` on are cotangents, which do not."""
    program, flat = traced.program, traced.flat
    backward = [_backward(op.scope) for op in program.ops]
    cotangents = set(program.inputs[given:]) if given is not None else set()
    found = []
    for v, value in enumerate(program.values):
        readers = [r for r in program.readers[v] if backward[r]]
        if not readers or v in cotangents or (value.producer >= 0 and backward[value.producer]):
            continue
        if value.producer >= 0 and _after_backward(program, backward, value.producer):
            continue
        found.append(_describe(traced, flat, program, v, readers[0]))
    order = {"computed": 0, "argument": 1, "constant": 2}
    return Residuals(tuple(sorted(found, key=lambda item: (order[item.kind], -item.bytes))))


def _after_backward(program: Program, backward: Sequence[bool], index: int) -> bool:
    """Whether an operation reads what the backward pass made (an optimizer's update, a second gradient)."""
    return any(
        program.values[u].producer >= 0 and backward[program.values[u].producer]
        for u in program.ops[index].reads
    )


def _describe(traced: Traced, flat: Flat, program: Program, v: int, reader: int) -> Residual:
    value = program.values[v]
    use = program.ops[reader]
    common: dict[str, Any] = {"needed_by": use.name, "needed_by_source": use.source, "bytes": value.bytes}
    if value.producer < 0:
        kind = "argument" if v in program.inputs else "constant"
        return Residual(value=value.text, kind=kind, op="", source="", name=value.name, **common)
    op = program.ops[value.producer]
    eqn = flat.eqns[value.producer]
    if eqn.primitive.name == "scan":
        inner = _row(eqn, op.writes.index(v))
        if inner is not None:
            text, name, source, scope, iterations = inner
            return Residual(
                value=text,
                kind="computed",
                op=name,
                source=source or op.source,
                scope=scope,
                iterations=iterations,
                **common,
            )
    return Residual(
        value=value.text, kind="computed", op=op.name, source=op.source, scope=op.scope, name=value.name,
        fused=op.fusible, **common,
    )  # fmt: skip


def _row(eqn: Any, position: int) -> tuple[str, str, str, str, int] | None:
    """Of a scan's stacked result: a row's type, the operation that made it, line, scope, iterations."""
    scan = _compat.scan_parts(eqn)
    if position < scan.num_carry:
        return None
    body = flatten(scan.body)
    var = body.outvars[position]
    program = to_program(body)
    everything = [*body.constvars, *body.invars, *(v for e in body.eqns for v in e.outvars)]
    if isinstance(var, Literal):
        return None
    value = program.values[everything.index(var)]
    if value.producer < 0:
        return value.text, "operand of the loop", "", "", scan.length
    op = program.ops[value.producer]
    return value.text, op.name, op.source, op.scope, scan.length
