"""Rewriting, line by line: what a schedule becomes, with every barrier and everything that passes through it.

Programs, windows and schedules are small and written by hand; `rewritten.txt` says what comes out. In it `a0`
is an argument, `v0` the result of operation 0, a prime a later name of the same value (through a barrier, or
recomputed), `again` a recomputation, `barrier[1]` a window's barrier, whose last operand is its trigger, and
`barrier[0]` one that keeps a result in memory. Values are numbered arguments first; windows from 1 on are
late, in one epoch unless `epochs` says otherwise.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from recoup._compat import Literal, user_frame
from recoup._inline import Flat
from recoup._planner.layout import Layout
from recoup._rewrite import RECOMPUTE_SCOPE, SPREAD_BYTES, _Rewriter, rewrite
from recoup._trace import NEVER_REPEATED, trace
from recoup._verify import verify

ARRAYS = {
    "X": jnp.ones((64, 32)),
    "X32": jnp.ones((32, 32)),
    "X8": jnp.ones((8, 32)),
    "W": jnp.ones((32, 32)),
    "B": jnp.ones(32),
}
HALF = np.float32(0.5)


def listing(flat: Flat, ours: Flat, schedule: Sequence[int]) -> str:
    """A rewritten program as text, in the names of the program that it was made from."""
    names: dict[Any, str] = {v: f"a{i}" for i, v in enumerate(flat.invars)}
    names |= {v: f"v{i}" for i, v in enumerate(v for e in flat.eqns for v in e.outvars)}
    uses: dict[str, int] = {}

    def later(v: Any, text: str) -> str:
        base = text.rstrip("'")
        uses[base] = uses.get(base, 0) + 1
        return names.setdefault(v, base + "'" * uses[base])

    def name(v: Any) -> str:
        return names[v] if not isinstance(v, Literal) else str(v.val)

    lines, order = [], iter(schedule)
    for e in ours.eqns:
        operands = [name(v) for v in e.invars]
        if e.primitive.name == "recoup_barrier":
            outs = [later(v, text) for v, text in zip(e.outvars, operands, strict=True)]
            lines.append(f"{' '.join(outs)} = barrier[{e.params['triggers']}] {' '.join(operands)}")
            assert e.params["mode"] == "fence"
            continue
        first = flat.eqns[next(order)]
        again = RECOMPUTE_SCOPE in str(e.source_info.name_stack)
        pairs = zip(e.outvars, first.outvars, strict=True)
        outs = [names[v] if v in names else later(v, names[w]) for v, w in pairs]
        assert (e.primitive, e.params) == (first.primitive, first.params)
        lines.append(f"{'again ' * again}{' '.join(outs)} = {e.primitive.name} {' '.join(operands)}")
    return "\n".join([*lines, "-> " + " ".join(name(v) for v in ours.outvars)])


def rewritten(
    fun: Callable[..., Any],
    args: Sequence[Any],
    window: Sequence[int],
    trigger: Sequence[int],
    schedule: Sequence[int],
    crossing: Sequence[int] = (),
    epoch: Sequence[int] = (),
) -> str:
    """The listing after rewriting."""
    traced = trace(fun, tuple(args))
    assert len(window) == len(traced.program.ops), [op.name for op in traced.program.ops]
    epochs = tuple(epoch) or tuple(int(w > 0) for w in window)
    plan = Layout(epochs, tuple(window), frozenset(), frozenset(crossing), (), (), (-1, *trigger))
    ours = rewrite(traced.flat, traced.program, plan, schedule)
    verify(traced.flat, ours, NEVER_REPEATED)
    assert ours.invars == traced.flat.invars and ours.outvars == traced.flat.outvars
    assert ours.consts == traced.flat.consts and ours.like is traced.flat.like
    return listing(traced.flat, ours, schedule)


def lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


# -- what passes a window's barrier ------------------------------------------------------------------------


def chain(x: Any, w: Any, u: Any) -> Any:
    h = jnp.dot(x, w)
    s = jnp.dot(h, u)
    g = jnp.dot(s, u)
    return jnp.dot(h.T, g), jnp.dot(g, w)


def waves(x: Any, w: Any) -> Any:
    h = jnp.dot(x, w)
    s = jnp.sin(h)
    c = jnp.cos(s)
    g = jnp.dot(c, w)
    m = jnp.dot(g, w) * s
    z = jnp.dot(m, w)
    return jnp.dot(z, w), z + c


def clipped(x: Any, w: Any) -> Any:
    h = jnp.dot(x, w)
    low = lax.max(h, HALF)
    g = jnp.dot(lax.mul(lax.min(low, HALF), HALF), w)
    z = jnp.dot(lax.max(g, HALF), w)
    q = lax.max(lax.min(z, np.float32(0.25)), HALF)
    return jnp.dot(q, w), lax.add(lax.max(q, HALF), h)


def scaled(x: Any, w: Any, b: Any) -> Any:
    spread = lambda v: lax.broadcast_in_dim(v, (64, 32), (1,))
    g = jnp.dot(jnp.dot(x, w) * spread(b), w)
    return jnp.dot(g * spread(jnp.sin(b)), w)


def twice(x: Any, w: Any) -> Any:
    """Three epochs."""
    s = jnp.sin(jnp.dot(x, w))
    g = jnp.dot(s, w)
    k = jnp.dot(g * s, w)
    z = jnp.dot(k, w)
    return jnp.dot(z, w) + s, z + g


def pairs(x: Any, w: Any) -> Any:
    top, where = lax.top_k(jnp.dot(x, w), 32)
    g = jnp.dot(top, w)
    return jnp.dot(g, w), top + 1.0, where


def first(x: Any, w: Any) -> Any:
    """The first result is read in the second epoch and in the third."""
    h = jnp.dot(x, w)
    m = jnp.dot(jnp.sin(x), w) * h
    return jnp.dot(m, w) + h


def second(x: Any, w: Any) -> Any:
    """The second result is."""
    h = jnp.dot(jnp.dot(x, w), w)
    m = jnp.dot(jnp.sin(x), w) * h
    return jnp.dot(m, w) + h


def spreads(x: Any, w: Any, b: Any) -> Any:
    """An argument that is spread early and late."""
    spread = lambda v, rows: lax.broadcast_in_dim(v, (rows, 32), (1,))
    g = jnp.dot(jnp.dot(x, w) * spread(b, 64), w)
    return jnp.dot(g, w * spread(b, 32))


def vectors(x: Any, w: Any, b: Any) -> Any:
    """A vector that is spread late, and one that is spread early too."""
    spread = lambda v, rows: lax.broadcast_in_dim(v, (rows, 32), (1,))
    c, d = jnp.sin(b), jnp.cos(b)
    e = jnp.tan(d)
    g = jnp.dot(jnp.dot(x, w) * spread(c, 64), w)
    return jnp.dot(g, w * spread(c, 32)) * spread(d, 64), e


CASES = (Path(__file__).parent / "rewritten.txt").read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize("case", CASES, ids=lambda text: text.splitlines()[0].replace(" ", "_"))
def test_a_schedule_becomes(case: str) -> None:
    _, given, schedule, *expected = case.strip().splitlines()
    name, args, rest = re.fullmatch(r"(\w+)\((.*)\) (.*)", given).groups()
    numbers = {key: [int(n) for n in row.split()] for key, row in re.findall(r"(\w+) ([-\d ]+)", rest)}
    known = (chain, waves, clipped, scaled, twice, pairs, first, second, spreads, vectors)
    fun = {f.__name__: f for f in known}[name]
    found = rewritten(
        fun,
        [ARRAYS[arg] for arg in args.split(", ")],
        numbers["windows"],
        numbers["triggers"],
        [int(n) for n in schedule.removeprefix("schedule ").split()],
        numbers.get("crossing", ()),
        numbers.get("epochs", ()),
    )
    assert found.splitlines() == expected


def test_a_barrier_has_the_line_of_what_opens_it() -> None:
    """Of the first operation, of a later one; an argument has none."""
    traced = trace(chain, tuple(ARRAYS[name] for name in ("X", "W", "W")))
    made = {v: user_frame(e) for e in traced.flat.eqns for v in e.outvars}
    half = (0, 0, 0, 1, 1, 1)
    for trigger in (0, 3, 5):
        plan = Layout(half, half, frozenset(), frozenset([4, 5]), (), (), (-1, trigger))
        ours = rewrite(traced.flat, traced.program, plan, [0, 1, 2, 2, 3, 4, 5])
        (barrier,) = [e for e in ours.eqns if e.primitive.name == "recoup_barrier"]
        opens = [*traced.flat.invars, *(v for e in traced.flat.eqns for v in e.outvars)][trigger]
        assert user_frame(barrier) == made.get(opens)


def test_how_large_an_operand_may_be_to_pass_for_its_broadcast() -> None:
    for length, expands in ((SPREAD_BYTES // 4, True), (SPREAD_BYTES // 4 + 1, False), (8, True)):
        spread = lambda v: lax.broadcast_in_dim(v, (2, *v.shape), (1,)) * 2.0
        traced = trace(spread, (jax.ShapeDtypeStruct((length,), jnp.float32),))
        plan = Layout((0, 1), (0, 1), frozenset(), frozenset(), (), (), (-1, 1))
        assert _Rewriter(traced.flat, traced.program, plan)._expands(0, 0) == expands
