"""Whole random steps: a loss of random statements, gradients for some inputs, an optimizer, donation.

`draw(seed, size)` gives a `Case`: the step, its arguments and its text. The same seed gives the same case
on every Python and JAX.
"""

import functools
import linecache
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from benchmarks.programs.bodies import statement
from benchmarks.programs.choices import Choices, replayed, seeded, shrink
from benchmarks.programs.writer import SIZES, Value, Whole, Writer

HEAD = """from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import recoup
from benchmarks.programs.data import array

"""


@dataclass(frozen=True)
class Case:
    """A random step.

    Attributes:
        step: The function. args: Its arguments, arrays in a flat tuple. donate: Positions of those to donate.
        description: Its Python text.
        made: The decisions that made it (see `again` and `smallest`). seed: Its seed, if it was drawn.
        size, double: As given to `draw`.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...]
    description: str
    made: tuple[int, ...] = field(repr=False)
    size: str
    double: bool
    seed: int | None = None

    @functools.cached_property
    def jaxpr(self) -> Any:
        """The step's closed jaxpr."""
        return jax.make_jaxpr(self.step)(*self.args)

    @property
    def primitives(self) -> frozenset[str]:
        """Names of all primitives in the step, inside calls, loops and branches too."""
        found: set[str] = set()
        _collect(self.jaxpr, found)
        return frozenset(found)


def draw(seed: int, size: str = "small", *, double: bool = False) -> Case:
    """The random step of this seed.

    Args:
        seed: any integer.
        size: "tiny" (a few elements), "small" (hundreds) or "medium" (100 KiB a value and more).
        double: also use float64; then call this, and run the step, under `jax.enable_x64(True)`.
    """
    return _case(seeded(seed), size, double, seed)


def again(made: Sequence[int], size: str = "small", *, double: bool = False) -> Case:
    """The random step of these decisions."""
    return _case(replayed(made), size, double, None)


def smallest(case: Case, fails: Callable[[Case], bool], attempts: int = 300) -> Case:
    """A case with a shorter text for which `fails` still holds. Only what can be traced counts."""

    def check(made: list[int]) -> bool:
        try:
            other = again(made, case.size, double=case.double)
            _ = other.jaxpr
        except Exception:
            return False  # not a program: decisions that no longer fit each other
        return len(other.description) <= len(best[0].description) and fails(other) and keep(other)

    best = [case]

    def keep(other: Case) -> bool:
        best[0] = other
        return True

    shrink(case.made, check, attempts)
    return best[0]


def _case(choices: Choices, size: str, double: bool, seed: int | None) -> Case:
    whole = Whole(choices, SIZES[size], double)
    text, donate = _step(whole)
    namespace = dict(whole.namespace)
    name = f"<random program {hash(text) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)
    args = tuple(eval(whole.makers[v.name], whole.namespace) for v in whole.arguments)
    data = "".join(f"{v.name} = {whole.makers[v.name]}\n" for v in whole.arguments)
    return Case(namespace["step"], args, donate, text + "\n" + data, tuple(choices.made), size, double, seed)


def _step(whole: Whole) -> tuple[str, tuple[int, ...]]:
    """The text of the step, and the positions of the arguments to donate."""
    c = whole.choices
    w = Writer(whole)
    for _ in range(1 + c.below(whole.size.statements)):
        statement(w)
    # most of what nothing reads goes into the loss; the rest is dead code
    text = "\n".join(w.lines)
    loose = [v for v in w.values if v.floating and not re.search(rf"\b{v.name}\b(?! =|,.* =)", text)]
    used = [_term(v) for v in loose if v is w.values[-1] or not c.chance(25)]
    aux = [v.name for v in w.values if c.below(10) == 9]
    wanted = [v for v in whole.arguments if v.floating and c.below(4)]
    body = [*w.lines, f"loss = {' + '.join(used) or 'jnp.float32(0)'}"]
    donate: list[int] = []
    if not wanted:
        lines = [*body, f"return {_tuple(['loss', *aux, *_extra(w)])}"]
        return _define(whole, lines), ()
    names = ", ".join(v.name for v in wanted)
    lines = [f"def compute({names}):", *("    " + x for x in body), f"    return loss, {_tuple(aux)}", ""]
    numbers = _tuple([str(i) for i in range(len(wanted))])
    lines.append(
        f"(loss, aux), grads = jax.value_and_grad(compute, argnums={numbers}, has_aux=True)({names})"
    )
    update = c.pick(("none", "sgd", "momentum", "adam"))
    results = ["loss", "aux"]
    if update == "none":
        results.append("grads")
    for i, v in enumerate(wanted if update != "none" else ()):
        g = f"grads[{i}].astype(jnp.float32)"
        new = f"{v.name}.astype(jnp.float32)"
        if update == "sgd":
            new = f"{new} - 0.1 * {g}"
        else:
            m = _state(whole, v)
            lines.append(f"m{i} = 0.9 * {m} + {g}")
            results.append(f"m{i}")
            if update == "momentum":
                new = f"{new} - 0.1 * m{i}"
            else:
                s = _state(whole, v)
                lines.append(f"s{i} = 0.99 * {s} * {s} + {g} * {g}")
                results.append(f"s{i}")
                new = f"{new} - 0.1 * m{i} / (jnp.sqrt(s{i}) + 1e-3)"
        results.append(f"({new}).astype({v.name}.dtype)")
    if update != "none" and c.below(2):
        state = [v for v in whole.arguments if v in wanted or v.name.startswith("s")]
        donate = [whole.arguments.index(v) for v in state]
    lines.append(f"return {_tuple([*results, *_extra(w)])}")
    return _define(whole, lines), tuple(donate)


def _term(v: Value) -> str:
    sum_ = "jnp.sum" if 0 in v.shape else "jnp.mean"
    return f"{sum_}({v.name}.astype(jnp.float32) ** 2)"


def _extra(w: Writer) -> list[str]:
    """An argument returned unchanged, or a result that does not depend on the data."""
    return [w.c.pick([v.name for v in w.whole.arguments] or ["0.0"])] if w.c.below(8) == 7 else []


def _tuple(names: Sequence[str]) -> str:
    return "()" if not names else f"({', '.join(names)},)"


def _state(whole: Whole, v: Value) -> str:
    """An argument of the step that holds an optimizer's state for `v`."""
    name = whole.name("s")
    whole.arguments.append(Value(name, jax.ShapeDtypeStruct(v.shape, "float32")))
    whole.makers[name] = f"array({v.shape}, 'float32', seed={len(whole.arguments)})"
    return name


def _define(whole: Whole, lines: Sequence[str]) -> str:
    text = HEAD + "".join(p + "\n" for p in whole.preamble)
    text += f"\ndef step({', '.join(v.name for v in whole.arguments)}):\n"
    return text + textwrap.indent("\n".join(lines), "    ") + "\n"


def _collect(jaxpr: Any, found: set[str]) -> None:
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    for eqn in inner.eqns:
        found.add(eqn.primitive.name)
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                    _collect(part, found)
