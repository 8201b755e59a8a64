"""A random program as it is written: lines of Python, and the type of every name in them.

Each statement is executed abstractly (`jax.eval_shape`) as soon as it is written, so the shapes of later
statements are always right and the text is the program: nothing is generated that cannot be printed.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import recoup
from benchmarks.programs import data
from benchmarks.programs.choices import Choices

FLOATS = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Size:
    """How large programs are: statements at the top level, and the lengths of axes."""

    statements: int
    rows: tuple[int, ...]
    width: tuple[int, ...]
    steps: tuple[int, ...]
    side: tuple[int, ...]


SIZES = {
    "tiny": Size(6, (2, 1, 3), (4, 1, 5), (2, 1, 3), (4, 3)),
    "small": Size(10, (8, 16, 12), (16, 8, 24), (4, 7, 3), (6, 8)),
    "medium": Size(16, (256, 512, 384), (64, 128, 96), (6, 9, 5), (16, 24)),
}


@dataclass(frozen=True)
class Value:
    """A name in the program and its type."""

    name: str
    type: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.type.shape)

    @property
    def dtype(self) -> str:
        return str(self.type.dtype)

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


@dataclass
class Whole:
    """What all parts of one program share."""

    choices: Choices
    size: Size
    double: bool
    arguments: list[Value] = field(default_factory=list)
    makers: dict[str, str] = field(default_factory=dict)  # argument -> expression that makes it
    preamble: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    names: int = 0
    rows: int = 0
    width: int = 0
    steps: int = 0
    side: int = 0

    def __post_init__(self) -> None:
        c, s = self.choices, self.size
        self.rows, self.width = c.pick(s.rows), c.pick(s.width)
        self.steps, self.side = c.pick(s.steps), c.pick(s.side)
        self.namespace = {
            "partial": partial,
            "jax": jax,
            "jnp": jnp,
            "lax": jax.lax,
            "np": np,
            "recoup": recoup,
        }
        self.namespace |= {"array": data.array}

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def define(self, text: str) -> None:
        """A line or function before the step, once."""
        if text not in self.preamble:
            self.preamble.append(text)
            exec(text, self.namespace)


class Writer:
    """One body of the program: the step's loss, or a function inside it."""

    def __init__(self, whole: Whole, values: Sequence[Value] = (), depth: int = 0):
        self.whole = whole
        self.c = whole.choices
        self.outer = list(values)  # what is visible from outside
        self.values: list[Value] = []  # made here
        self.lines: list[str] = []
        self.depth = depth

    def visible(self) -> list[Value]:
        return [*self.whole.arguments, *self.outer, *self.values]

    def argument(
        self, shape: Sequence[int], dtype: str = "float32", *, limit: int = 2, fresh: bool = False
    ) -> Value:
        """An argument of the step of this type: one that is there, or a new one. Integers are below
        `limit`."""
        whole, shape = self.whole, tuple(shape)
        special = dtype == "float32" and len(shape) > 1 and self.c.below(40) == 39
        maker = f"array({shape}, {dtype!r}, seed={len(whole.arguments)}"
        if dtype.startswith("int"):
            maker += f", limit={limit}"
        maker += ", special=True)" if special else ")"
        same = [
            v
            for v in whole.arguments
            if v.shape == shape
            and v.dtype == dtype
            and (dtype[0] != "i" or f"limit={limit}" in whole.makers[v.name])
        ]
        if same and not fresh and (dtype[0] == "i" or self.c.below(4) == 0):
            return self.c.pick(same)
        value = Value(whole.name("x"), jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
        whole.arguments.append(value)
        whole.makers[value.name] = maker
        return value

    def key(self) -> Value:
        """The step's random key."""
        whole = self.whole
        have = [v for v in whole.arguments if whole.makers[v.name].startswith("jax.random.")]
        if have:
            return have[0]
        maker = "jax.random.key(0)"
        odd = self.c.below(12)
        if odd >= 10:
            maker = "jax.random.PRNGKey(0)" if odd == 10 else "jax.random.key(0, impl='rbg')"
        value = Value(whole.name("key"), jax.eval_shape(lambda: eval(maker)))
        whole.arguments.append(value)
        whole.makers[value.name] = maker
        return value

    def constant(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """An array that the step closes over."""
        name = self.whole.name("C")
        self.whole.define(f"{name} = array({tuple(shape)}, {dtype!r}, seed={self.whole.names})")
        return name

    def some(self, *, rank: int | None = None, dtype: str | None = None, nonempty: bool = True) -> Value:
        """A floating value that is there, mostly a late one; or a new argument."""
        found = [
            v
            for v in self.visible()
            if v.floating
            and (rank is None or len(v.shape) == rank)
            and (dtype is None or v.dtype == dtype)
            and (not nonempty or 0 not in v.shape)
        ]
        recent = [v for v in found if v not in self.whole.arguments] or found
        if not recent:
            kinds = ("float64", "float32") if self.whole.double else ("float32",)
            return self.argument(self.shape(2 if rank is None else rank), dtype or self.c.pick(kinds))
        if self.c.below(3):
            return self.c.pick(recent[::-1])
        return recent[-1]

    def shape(self, rank: int) -> tuple[int, ...]:
        w = self.whole
        return ((), (w.width,), (w.rows, w.width), (w.steps, w.rows, w.width), (2, w.side, w.side, 4))[rank]

    def like(self, v: Value) -> str:
        """Another value of this type, as an expression."""
        same = [u for u in self.visible() if u.shape == v.shape and u.floating and u.name != v.name]
        if not same:
            return f"jnp.sin({v.name})"
        u = self.c.pick(same[::-1])
        return u.name if u.dtype == v.dtype else f"{u.name}.astype({v.name}.dtype)"

    def let(self, expression: str, *, count: int = 1, before: str = "") -> list[Value]:
        """`name = expression`, after the lines `before` (function definitions)."""
        names = [self.whole.name("v") for _ in range(count)]
        text = before + f"{', '.join(names)} = {expression}\n"
        made = [
            Value(n, t) for n, t in zip(names, types_of(text, names, self.visible(), self.whole), strict=True)
        ]
        self.values.extend(made)
        self.lines.extend(text.rstrip("\n").split("\n"))
        return made

    def function(
        self, params: Sequence[Value], results: Sequence[str], inner: "Writer", head: str = "", name: str = ""
    ) -> tuple[str, str]:
        """The text of a function with the body that `inner` wrote; also its name."""
        name = name or self.whole.name("f")
        body = [*inner.lines, f"return {', '.join(results)}"]
        text = head + f"def {name}({', '.join(p.name for p in params)}):\n"
        return text + textwrap.indent("\n".join(body), "    ") + "\n", name

    def inside(self, params: Sequence[Value]) -> "Writer":
        """A writer for a function inside this one."""
        return Writer(self.whole, [*self.outer, *self.values, *params], self.depth + 1)


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _names(const)
    return found


def types_of(text: str, names: Sequence[str], visible: Sequence[Value], whole: Whole) -> list[Any]:
    """The types that `names` have after executing `text`."""
    code = compile(text, "<random program>", "exec")
    used = _names(code)
    inputs = {v.name: v.type for v in visible if v.name in used}

    def run(values: dict[str, Any]) -> list[Any]:
        scope = whole.namespace | values
        exec(code, scope)
        return [scope[n] for n in names]

    types: list[Any] = jax.eval_shape(run, inputs)
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
