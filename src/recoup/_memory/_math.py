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


@rule("exp")
def _exp(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x = xs[0]
    if not x.dtype.startswith("complex"):
        return [low.map("exponential", eqn, xs)]
    # exp(a) cos b, exp(a) sin b; where exp(a) overflows, exp(a/2) twice
    g = low.g
    a, b = _part(g, x, "real"), _part(g, x, "imag")
    whole, half = _op(g, "exponential", a), _op(g, "exponential", _op(g, "multiply", a, _const(g, 0.5, a)))
    infinite = _op(g, "compare", whole, _const(g, float("inf"), a), attrs="EQ")
    parts = []
    for turn in ("cosine", "sine"):
        t = _op(g, turn, b)
        careful = _op(g, "multiply", _op(g, "multiply", half, t), half)
        parts.append(_op(g, "select", infinite, careful, _op(g, "multiply", whole, t)))
    real_line = _op(g, "compare", b, _const(g, 0.0, b), attrs="EQ")
    parts = [
        _op(g, "select", real_line, whole, parts[0]),
        _op(g, "select", real_line, _const(g, 0.0, b), parts[1]),
    ]
    return [rules.elementwise(g, "complex", x.dtype, tuple(parts))]


def _part(g: Graph, x: Node, which: str) -> Node:
    if x.op == "complex":
        return x.operands[which == "imag"]
    return rules.elementwise(g, which, "float64" if x.dtype == "complex128" else "float32", (x,))


@rule("real", "imag")
def _real(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return [_part(low.g, xs[0], eqn.primitive.name)]


@rule("bitcast_convert_type")
def _bitcast_convert(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    if squeeze(shape) == xs[0].shape:
        return [rules.elementwise(low.g, "bitcast-convert", dtype, (xs[0],))]
    return [low.g.add("bitcast-convert", squeeze(shape), dtype, (xs[0],))]
