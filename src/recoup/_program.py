"""Program: a training step as operations and values, in the order in which it was traced. No JAX.

Idea: everything that plans or reports works on this, whatever front end made it. An operation reads and
writes values (by index); a value has bytes and one producer. Sizes are what a buffer of the value takes;
whether the compiler gives it one is said by `Op.fusible`. Limits: one order, the traced one; the compiler may
choose another (see `_memory`).
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from recoup._tables import Tables

ARGUMENT = -1
CONSTANT = -2
NAMINGS = frozenset(["name", "recoup_keep", "recoup_diagnostic"])  # operations that give a value a name
OFFLOAD = "recoup_offload"  # the device's copy of a value that lies in host memory (see `_planner.offload`)


@dataclass(frozen=True, slots=True)
class Value:
    """An array of the program. `producer` is an operation's index, ARGUMENT or CONSTANT."""

    bytes: int
    producer: int
    text: str  # such as "f32[8,128]"
    name: str = ""  # the argument's path, or a name given by the user


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of the program.

    `flops` are floating-point operations, `cost` is the planner's price of running it again (see `_cost`).
    `pure` operations give the same result when run again; `fusible` ones are computed inside their readers
    where the compiler can; `heavy` ones (products, convolutions, loops) never are. `source` is the user's
    line, `scope` the name stack.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: float
    cost: float
    pure: bool
    fusible: bool
    heavy: bool
    source: str = ""
    scope: str = ""
    dear: bool = False  # fusible, but the compiler does not compute it in more than one reader
    workspace_bytes: int = 0  # taken while it runs beside operands and results: the inside of a loop
    gathered_bytes: int = 0  # what each device receives from others where it gathers an array's parts
    detail: str = ""  # what tells two operations of one name apart: equal details and shapes mean equal work


@dataclass(frozen=True)
class Program:
    """Operations in traced order; `inputs` and `constants` exist from the start, `outputs` must survive."""

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: frozenset[int] = field(default_factory=frozenset)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value the operations that read it, in order."""
        readers: list[list[int]] = [[] for _ in self.values]
        for index, op in enumerate(self.ops):
            for value in dict.fromkeys(op.reads):
                readers[value].append(index)
        return tuple(tuple(r) for r in readers)

    def maker(self, value: int) -> Op:
        """The operation that computes a value which is no argument: what is named, not the naming."""
        op = self.ops[self.values[value].producer]
        while (op.name in NAMINGS or op.name == OFFLOAD) and self.values[op.reads[0]].producer >= 0:
            op = self.ops[self.values[op.reads[0]].producer]
        return op

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the operations whose results it reads."""
        made = [value.producer for value in self.values]
        return tuple(tuple(dict.fromkeys(made[v] for v in op.reads if made[v] >= 0)) for op in self.ops)

    @cached_property
    def own_bytes(self) -> tuple[int, ...]:
        """For each operation the bytes that it writes, results of the program apart."""
        results = set(self.outputs)
        return tuple(sum(self.values[v].bytes for v in op.writes if v not in results) for op in self.ops)

    @cached_property
    def absorbs(self) -> tuple[bool, ...]:
        """For each operation whether the compiler can compute a fusible operand inside it."""
        return tuple(op.fusible or op.name.startswith(("reduce", "arg")) for op in self.ops)

    @cached_property
    def own_results(self) -> tuple[int, ...]:
        """The results that are written into memory of their own, not into that of a donated argument."""
        spare = Counter(self.values[v].text for v in self.donated)
        found = []
        for v in dict.fromkeys(self.outputs):
            if spare[self.values[v].text] > 0:
                spare[self.values[v].text] -= 1
            elif self.values[v].producer >= 0:
                found.append(v)
        return tuple(found)

    @cached_property
    def tables(self) -> Tables:
        """The program as flat arrays."""
        return Tables.of(self)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole program."""
        return sum(op.flops for op in self.ops)

    @property
    def argument_bytes(self) -> int:
        """Bytes of the arguments."""
        return sum(self.values[v].bytes for v in self.inputs)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the arrays that the step closes over."""
        return sum(self.values[v].bytes for v in self.constants)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results; a result returned twice counts twice, as each is an array of its own."""
        return sum(self.values[v].bytes for v in self.outputs)
