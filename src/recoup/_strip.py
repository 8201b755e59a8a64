"""A flat program and its prediction as a Strip: which buffers are alive when, from which line, and why.

Idea: the memory model's simulated schedule says when each buffer lives; the jaxpr says from which line,
layer and phase it comes. A buffer of the forward pass is kept if its last reader is later than the forward
pass. A loop's stacked result is named after the operation of its body that makes a row.
Limits: phases are read off JAX's name stacks, so a hand-written gradient is all "forward". Stacked results
of equal type in one loop are told apart by their order only; they have equal sizes and lives.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from recoup import _compat, _cost
from recoup._compat import Literal
from recoup._inline import Flat, flatten
from recoup._memory import Life, Point, Prediction
from recoup._memory._copies import ALIASES
from recoup._program import Program
from recoup._report.picture import Buffer, Op, Strip
from recoup._rewrite import RECOMPUTE_SCOPE
from recoup._scopes import parts_of, region_names, region_of, region_scope
from recoup._trace import _text as type_text
from recoup._trace import to_program

INSTRUMENT = "memory model (predicted)"
_REMATTED = "rematted_computation"  # JAX's own name for what a region computes again
_LOOPS = frozenset(["scan", "while", "cond"])
# Instructions of the schedule at which nothing runs: values by another name.
_NOTHING = ALIASES | {"parameter", "constant", "gte"}


def strip(title: str, flat: Flat, prediction: Prediction) -> Strip:
    """The strip of `flat`, whose prediction is at hand."""
    program = to_program(flat)
    phases = phases_of(program)
    parts = parts_of([op.scope for op in program.ops], [op.source for op in program.ops])
    order = prediction.timeline
    run = [point for point in order if point.op not in _NOTHING]
    # positions among the operations that run: of the first from a position on, and of the last up to it
    onward = list(accumulate((point.op not in _NOTHING for point in order), initial=0))

    def op_of(point: Point) -> Op:
        if point.eqn < 0:
            return Op(point.op, "", "other")
        maker = program.ops[point.eqn]
        return Op(maker.name, maker.source, phases[point.eqn])

    ops = tuple(op_of(point) for point in run)
    rows = _Rows(flat)
    regions = [region_at(eqn) for eqn in flat.eqns]
    buffers = []
    for life in prediction.lives:
        first, last = onward[life.first], onward[life.last + 1] - 1
        if last < first:
            continue
        if life.eqn < 0:
            buffers.append(Buffer(life.nbytes, first, last, life.op, type_text(life), "", "", "other"))
            continue
        maker = program.ops[life.eqn]
        name, source = maker.name, maker.source
        if life.inside:
            name = f"{life.op} inside {maker.name}"
        elif maker.name in _LOOPS:
            name, source = rows.take(life.eqn, life) or (maker.name, source)
        elif life.op == "copy":
            name = f"copy of {maker.name}"
        region = regions[life.eqn]
        role = phases[life.eqn]
        if role == "forward" and not life.inside and _read_later(program, phases, life.eqn, ops[last]):
            role = "kept"
        buffers.append(
            Buffer(
                life.nbytes, first, last, name, type_text(life), source or maker.source,
                parts[life.eqn], role, life.inside, region,
            )
        )  # fmt: skip
    memory = prediction.estimate
    return Strip(
        title=title,
        instrument=INSTRUMENT,
        fixed_bytes=memory.total_bytes - memory.temporaries_bytes,
        low_bytes=prediction.low.total_bytes,
        estimate_bytes=memory.total_bytes,
        high_bytes=prediction.high.total_bytes,
        ops=ops,
        buffers=tuple(buffers),
        opaque=prediction.opaque,
    )


def region_at(eqn: Any) -> str:
    """The name of the region that an equation is in; of those inside it if it is a loop; "" for none."""
    return region_of(str(eqn.source_info.name_stack)) or ", ".join(region_names(name_stacks([eqn])))


def name_stacks(eqns: Sequence[Any]) -> Iterator[str]:
    """The name stacks of equations and of what is inside them, each relative to what it is inside of."""
    for eqn in eqns:
        yield str(eqn.source_info.name_stack)
        if eqn.primitive.name == "recoup_region":
            yield region_scope(eqn.params["name"])
        for body in _cost.sub_jaxprs(eqn):
            yield from name_stacks(_compat.open_jaxpr(body)[0].eqns)


def phases_of(program: Program) -> list[str]:
    """For each operation its phase: forward, backward, recomputed, or other (after the backward pass)."""
    phases: list[str] = []
    for op in program.ops:
        makers = (program.values[v].producer for v in op.reads)
        late = any(maker >= 0 and phases[maker] in ("backward", "other") for maker in makers)
        if RECOMPUTE_SCOPE in op.scope or _REMATTED in op.scope:
            phases.append("recomputed")
        elif "transpose(" in op.scope or (late and op.name == "recoup_barrier"):
            phases.append("backward")
        else:
            phases.append("other" if late else "forward")
    return phases


def _read_later(program: Program, phases: Sequence[str], eqn: int, final: Op) -> bool:
    if final.phase != "forward":
        return True
    writes = program.ops[eqn].writes
    return any(phases[reader] != "forward" for v in writes for reader in program.readers[v])


@dataclass
class _Row:
    shape: tuple[int, ...]
    dtype: str
    name: str
    source: str


class _Rows:
    """The stacked results of the program's loops, handed out to buffers of the same type."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self.free: dict[int, list[_Row]] = {}

    def take(self, eqn: int, life: Life) -> tuple[str, str] | None:
        """The operation and line of a stacked result of the type of `life`; None if there is none left."""
        if eqn not in self.free:
            self.free[eqn] = _stacked(self.flat.eqns[eqn])
        size = math.prod(life.shape)
        for row in self.free[eqn]:
            if row.dtype == life.dtype and math.prod(row.shape) == size:
                self.free[eqn].remove(row)
                return f"{row.name} (stacked by a loop)", row.source
        return None


def _stacked(eqn: Any) -> list[_Row]:
    if eqn.primitive.name != "scan":
        return []
    scan = _compat.scan_parts(eqn)
    body = flatten(scan.body)
    program = to_program(body)
    everything = [*body.constvars, *body.invars, *(v for e in body.eqns for v in e.outvars)]
    index = {var: i for i, var in enumerate(everything)}
    found = []
    for outer, inner in zip(eqn.outvars[scan.num_carry :], body.outvars[scan.num_carry :], strict=True):
        if isinstance(inner, Literal):
            continue
        maker = program.values[index[inner]].producer
        op = program.ops[maker] if maker >= 0 else None
        aval = outer.aval
        name, source = (op.name, op.source) if op else ("carry", "")
        found.append(_Row(tuple(aval.shape), str(aval.dtype), name, source))
    return found
