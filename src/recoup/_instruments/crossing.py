"""Which values cross from the forward to the backward pass of a traced program.

Idea: JAX's own transformations write into the name stack which operations are transposed; a residual is a
value that no such operation made and one of them reads. A loop's residual is a stacked result, and what made
a row of it is found inside the body, through nested loops. A loop that holds a whole gradient (accumulation
over microbatches) has residuals inside, alive during one iteration.
Limits: the jaxpr's view. Which values the compiler will not keep is the memory model's guess (`fused`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from recoup import _compat, _cost, _memory
from recoup._inline import Flat, flatten
from recoup._program import Program
from recoup._scopes import region_of, under
from recoup._trace import to_program

_KINDS = {"computed": 0, "offloaded": 1, "argument": 2, "constant": 3}
# Operations whose result has the elements of their only operand; barriers, of each of their operands.
_SAME = frozenset({
    "copy", "copy_p", "expand_dims", "name", "recoup_keep", "reshape", "squeeze", "stop_gradient",
    "transpose",
})  # fmt: skip
_BARRIERS = frozenset({"optimization_barrier", "recoup_barrier"})


@dataclass(frozen=True)
class Residual:
    """A value that the backward pass reads.

    Attributes:
      bytes: its size; over all iterations inside a loop.
      value: shape and dtype, such as "f32[8,128]"; of one iteration inside a loop.
      kind: "computed", "offloaded" (computed, and waiting in the host's memory), "argument" or "constant" (an
        array that the function closes over).
      op: the operation that made it; source: the user's line; scope: the name stack; name: the argument, a
        name given to it, or "carry" for a loop's carry.
      needed_by: the first backward operation that reads it, and `needed_by_source`, its line.
      iterations: of the loops that stack it, all together; 0 outside loops.
      fused: the memory model expects that the compiler computes it inside its readers and keeps no copy.
      path: the loops around it, outermost first, such as ("scan of 50 at rnn.py:12",).
      duplicate: the same elements as an argument or as another residual of this list (of the same loop),
        reshaped, transposed or passed on unchanged.
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
    path: tuple[str, ...] = ()
    duplicate: bool = False

    @property
    def named(self) -> bool:
        """Whether the user gave it a name (`recoup.keep`, JAX's `checkpoint_name`)."""
        return self.kind == "computed" and self.name not in ("", "carry")

    @property
    def region(self) -> str:
        """The region (`recoup.checkpoint`) that made it; "" for none."""
        return region_of(self.scope)

    @property
    def per_iteration_bytes(self) -> int:
        """Bytes that one iteration adds; the size itself outside loops."""
        return self.bytes // self.iterations if self.iterations else self.bytes


def has_backward(flat: Flat) -> bool:
    """Whether the program, or a loop in it, takes a gradient."""
    return any(
        _backward(str(eqn.source_info.name_stack)) or any(map(has_backward, _bodies(eqn)))
        for eqn in flat.eqns
    )


def crossing(flat: Flat, program: Program, given: int | None = None) -> tuple[Residual, ...]:
    """The residuals, computed ones first, each kind largest first.

    Args:
      flat, program: a traced program that holds its backward pass.
      given: arguments from this one on are cotangents, which do not count.
    """
    found = _Search(flat, program).run(given)
    return tuple(sorted(found, key=lambda item: (_KINDS[item.kind], -item.bytes)))


def _backward(scope: str) -> bool:
    return "transpose(" in scope


def _bodies(eqn: Any) -> list[Flat]:
    return [flatten(body) for body in _cost.sub_jaxprs(eqn)]


class _Search:
    """One program (or loop body) and what was found out about the loops in it."""

    def __init__(self, flat: Flat, program: Program, path: tuple[str, ...] = ()) -> None:
        self.flat, self.program, self.path = flat, program, path
        self._stacks: dict[int, _Stack] = {}
        self._kept: list[tuple[bool, ...]] | None = None
        self._made: dict[Any, tuple[Any, int]] = {
            var: (eqn, k) for eqn in flat.eqns for k, var in enumerate(eqn.outvars)
        }
        self._given = frozenset(flat.invars)
        self.vars = [*flat.constvars, *flat.invars, *(var for eqn in flat.eqns for var in eqn.outvars)]

    def origin(self, var: Any) -> Any:
        """The variable whose elements this one has."""
        while var in self._made:
            eqn, k = self._made[var]
            name = eqn.primitive.name
            if name not in _BARRIERS and not (name in _SAME and len(eqn.invars) == 1):
                break
            operand = eqn.invars[k if name in _BARRIERS else 0]
            if isinstance(operand, _compat.Literal):
                break
            var = operand
        return var

    def run(self, given: int | None = None) -> list[Residual]:
        program = self.program
        backward = [_backward(op.scope) for op in program.ops]
        cotangents = set(program.inputs[given:]) if given is not None else set()
        found: list[Residual] = []
        seen: set[tuple[int, Any]] = set()
        for v, value in enumerate(program.values):
            reader = next((r for r in program.readers[v] if backward[r]), None)
            made = value.producer
            if reader is None or v in cotangents or (made >= 0 and backward[made]):
                continue
            if made >= 0 and self._after_backward(backward, made):
                continue
            found.append(self._describe(v, reader, seen))
        for i, eqn in enumerate(self.flat.eqns):
            if not backward[i]:
                for body in _bodies(eqn):
                    if has_backward(body):
                        inner = _Search(body, to_program(body), (*self.path, self._loop(i)))
                        found += inner.run()
        return found

    def _after_backward(self, backward: Sequence[bool], index: int) -> bool:
        """Whether an operation reads what the backward pass made (an update, a second gradient)."""
        makers = (self.program.values[u].producer for u in self.program.ops[index].reads)
        return any(maker >= 0 and backward[maker] for maker in makers)

    def _loop(self, index: int) -> str:
        op, eqn = self.program.ops[index], self.flat.eqns[index]
        length = f" of {_compat.scan_parts(eqn).length}" if op.name == "scan" else ""
        line = op.source.replace("\\", "/").rsplit("/", 1)[-1].split(" (")[0]
        return f"{op.name}{length}" + (f" at {line}" if line else "")

    def _describe(self, v: int, reader: int, seen: set[tuple[int, Any]]) -> Residual:
        program = self.program
        value, use = program.values[v], program.ops[reader]
        found = Residual(
            bytes=value.bytes,
            value=value.text,
            kind="computed",
            op="",
            source="",
            name=value.name,
            needed_by=use.name,
            needed_by_source=use.source,
            path=self.path,
        )
        if value.producer < 0:
            return replace(found, kind="argument" if v in program.inputs else "constant")
        op = program.ops[value.producer]
        position = op.writes.index(v)
        moved = _compat.on_host(self.vars[v].aval) and op.name == "device_put"
        made = program.maker(op.reads[0] if moved and program.values[op.reads[0]].producer >= 0 else v)
        found = replace(found, op=made.name, source=made.source, scope=op.scope)
        if moved:
            return replace(found, kind="offloaded")
        if op.name != "scan":
            same = self.origin(self.vars[v])
            duplicate = (-1, same) in seen or (same in self._given and same is not self.vars[v])
            seen.add((-1, same))
            return replace(found, fused=self._fused(value.producer, position), duplicate=duplicate)
        row = self._stack(value.producer).row(position)
        if row is None:
            return found
        key = (value.producer, row.same)
        duplicate = key in seen
        seen.add(key)
        return replace(
            found,
            value=row.value,
            op=row.op,
            source=row.source or op.source,
            scope=under(op.scope, row.scope),
            name=row.name or value.name,
            iterations=row.iterations,
            path=(*self.path, self._loop(value.producer), *row.path),
            duplicate=duplicate,
        )

    def _stack(self, index: int) -> "_Stack":
        if index not in self._stacks:
            self._stacks[index] = _Stack(self.flat.eqns[index])
        return self._stacks[index]

    def _fused(self, index: int, position: int) -> bool:
        if self.path:  # a loop's body is not predicted alone
            return False
        if self._kept is None:
            self._kept = _memory.buffers(self.flat.per_device())
        return not self._kept[index][position]


@dataclass(frozen=True)
class _Row:
    """What made a row of a stacked result; `iterations` and `path` of the loops inside the loop included.

    `same` is the variable of the body whose elements the row has.
    """

    same: Any
    value: str
    op: str
    source: str
    scope: str
    name: str
    iterations: int
    path: tuple[str, ...]


class _Stack:
    """The body of a scan, and what made each row of its stacked results."""

    def __init__(self, eqn: Any) -> None:
        self._scan = _compat.scan_parts(eqn)
        self._search: _Search | None = None
        self._index: dict[Any, int] = {}

    def row(self, position: int) -> _Row | None:
        """None for a carry, whose last value is no row, and for a constant."""
        if position < self._scan.num_carry:
            return None
        if self._search is None:
            body = flatten(self._scan.body)
            self._search = _Search(body, to_program(body))
            self._index = {var: i for i, var in enumerate(self._search.vars)}
        search, length = self._search, self._scan.length
        var = search.flat.outvars[position]
        if isinstance(var, _compat.Literal):
            return None
        value = search.program.values[self._index[var]]
        if value.producer < 0:
            return self._given(var, value.text)
        op = search.program.ops[value.producer]
        if op.name == "scan":
            inner = search._stack(value.producer).row(op.writes.index(self._index[var]))
            if inner is not None:
                path = (search._loop(value.producer), *inner.path)
                scope = under(op.scope, inner.scope)
                return replace(inner, same=var, scope=scope, iterations=length * inner.iterations, path=path)
        made = search.program.maker(self._index[var])
        return _Row(search.origin(var), value.text, made.name, made.source, op.scope, value.name, length, ())

    def _given(self, var: Any, text: str) -> _Row:
        """A row that the body was given: a carry, whose line is where the next one is made, or an operand."""
        assert self._search is not None
        flat, program = self._search.flat, self._search.program
        slot = flat.invars.index(var) - self._scan.num_consts if var in flat.invars else -1
        made = flat.outvars[slot] if 0 <= slot < self._scan.num_carry else None
        producer = program.values[self._index[made]].producer if made in self._index else -1
        if producer < 0:
            return _Row(var, text, "operand of the loop", "", "", "", self._scan.length, ())
        op = program.ops[producer]
        return _Row(var, text, op.name, op.source, op.scope, "carry", self._scan.length, ())
