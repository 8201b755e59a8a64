"""Barriers: JAX's own, and recoup's as it is lowered on CPU.

A barrier that the compiler keeps is a `barrier` node. Where recoup orders by data instead (plain `jax.jit` on
a JAX whose compiler drops barriers early), the values pass through a `select` on a condition computed from
one element of each operand. Not all operands of ours are ordered: see `recoup._barrier`.
"""

from typing import Any

from recoup import _compat
from recoup._barrier import FENCE, hitting_set
from recoup._memory import _rules as rules
from recoup._memory._graph import Node
from recoup._memory._lower import Lowering, rule

WORD = "int32"


@rule("optimization_barrier")
def _barrier(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return low.barrier(xs)


@rule("recoup_barrier")
def _ours(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    params = eqn.params
    count = len(xs) - params["triggers"]
    chosen = sorted(_ordered(xs, count, params["groups"], params["captured"]))
    triggers = list(range(count, len(xs)))
    outs = list(xs)
    if params["mode"] == FENCE or not _compat.BARRIERS_NEED_OPTION:
        through = chosen + triggers
        for i, x in zip(through, low.barrier([xs[i] for i in through]), strict=True):
            outs[i] = x
        return outs
    chosen = [i for i in chosen if xs[i].size]
    condition = _condition(low, [xs[i] for i in chosen + triggers if xs[i].size])
    for i in chosen:
        x = xs[i]
        zero = low.g.scalar(0, x.shape, x.dtype)
        spread = rules.broadcast(low.g, condition, x.shape, ())
        outs[i] = low.g.add("select", x.shape, x.dtype, (spread, x, zero))
    return outs


def _ordered(xs: list[Node], count: int, groups: Any, captured: Any) -> set[int]:
    """Indices of the values that pass through."""
    if groups is None:
        return set(range(count))
    grouped = {i for group in groups for i in group}
    free = {i for i in grouped if i not in captured and xs[i].op not in ("parameter", "constant")}
    return hitting_set(groups, free, [x.size for x in xs[:count]])


def _condition(low: Lowering, xs: list[Node]) -> Node:
    """A scalar that waits for all of `xs` and is true."""
    g = low.g
    token = g.constant(0, WORD)
    for x in xs:
        one = g.add("dynamic-slice", (), x.dtype, (x, token), "element") if x.shape else x
        bits = rules.elementwise(g, "bitcast-convert", WORD, (rules.widen(g, one),))
        token = rules.elementwise(g, "add", WORD, (token, bits))
    square = rules.elementwise(g, "multiply", WORD, (token, token))
    return rules.elementwise(g, "compare", "bool", (square, g.constant(2, WORD)), "NE")
