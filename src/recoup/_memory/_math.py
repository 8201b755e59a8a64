"""Functions that the compiler expands: products, sums and selections around a few expensive operations.

A polynomial counts as one cheap operation on its argument, whatever its degree.
"""

from typing import Any

from recoup._memory import _rules as rules
from recoup._memory._graph import Graph, Node
from recoup._memory._lower import Lowering, full_shape, rule, squeeze


def _op(g: Graph, op: str, *args: Node, attrs: Any = None) -> Node:
    dtype = "bool" if op == "compare" else args[-1].dtype
    return rules.elementwise(g, op, dtype, args, attrs)


def _const(g: Graph, value: float, like: Node) -> Node:
    return g.scalar(value, like.shape, like.dtype)


@rule("polynomial")
def _polynomial(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    values = tuple([rules.scalar_value(c) for c in xs[1:]])
    if None in values:
        return [low.map("polynomial", eqn, xs)]
    return [_op(low.g, "polynomial", xs[0], attrs=values)]


@rule("erfc")
def _erfc(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    g, x = low.g, rules.widen(low.g, xs[0])
    if not x.shape:
        return [low.map("erfc", eqn, xs)]
    square = _op(g, "multiply", x, x)
    near = _op(
        g, "subtract", _const(g, 1.0, x), _op(g, "multiply", x, _op(g, "polynomial", square, attrs="erf"))
    )
    size = _op(g, "abs", x)
    minus = _op(g, "negate", square)
    scale = _op(g, "multiply", _op(g, "exponential", minus), _op(g, "divide", _const(g, 1.0, x), size))
    inverse = _op(g, "divide", _const(g, 1.0, x), square)
    ways = [_op(g, "polynomial", inverse, attrs=f"erfc {k}") for k in range(2)]
    which = _op(g, "compare", size, _const(g, 2.0, x), attrs="LT")
    far = _op(g, "multiply", scale, _op(g, "select", which, *ways))
    tiny = _op(g, "compare", minus, _const(g, -88.0, x), attrs="LT")
    far = _op(g, "select", tiny, _const(g, 0.0, x), far)
    negative = _op(g, "compare", x, _const(g, 0.0, x), attrs="LT")
    far = _op(g, "select", negative, _op(g, "subtract", _const(g, 2.0, x), far), far)
    value = _op(g, "select", _op(g, "compare", size, _const(g, 1.0, x), attrs="LT"), near, far)
    return [rules.convert(g, value, xs[0].dtype)]


@rule("erf_inv")
def _erf_inv(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    g, x = low.g, rules.widen(low.g, xs[0])
    w = _op(g, "negate", _op(g, "log1p", _op(g, "multiply", x, _op(g, "negate", x))))
    small = _op(g, "compare", w, _const(g, 5.0, x), attrs="LT")
    near = _op(g, "add", w, _const(g, -2.5, x))
    far = _op(g, "add", _op(g, "sqrt", w), _const(g, -3.0, x))
    p = _op(g, "polynomial", _op(g, "select", small, near, far), attrs="erf_inv")
    edge = _op(g, "compare", _op(g, "abs", x), _const(g, 1.0, x), attrs="EQ")
    large = _op(g, "multiply", x, _const(g, float("inf"), x))
    return [rules.convert(g, _op(g, "select", edge, large, _op(g, "multiply", p, x)), xs[0].dtype)]


@rule("bitcast_convert_type")
def _bitcast_convert(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    if squeeze(shape) == xs[0].shape:
        return [rules.elementwise(low.g, "bitcast-convert", dtype, (xs[0],))]
    return [low.g.add("bitcast-convert", squeeze(shape), dtype, (xs[0],))]
