"""From a jaxpr to the small graph: elementwise, shaping, reductions, products, calls.

Calls are inlined. Loops and branches are in `_control`, indexed and windowed operations in
`_special`. Dimensions of size 1 are dropped (see `_graph`). What is not known becomes an `opaque`
node that reads its operands and writes its results, and is named in `Lowering.opaque`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recoup._memory import _rules as rules
from recoup._memory._graph import ITEM_BYTES, Graph, Node, Shape

Rule = Callable[["Lowering", Any, list[Node]], list[Node]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fun: Rule) -> Rule:
        for name in names:
            RULES[name] = fun
        return fun

    return register


def _is_key(dtype: Any) -> bool:
    return not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)


@functools.lru_cache(maxsize=256)
def _physical(dtype: Any) -> tuple[Shape, str]:
    """Extra trailing dimensions and the stored dtype (keys are arrays of words)."""
    if _is_key(dtype):
        key = jax.ShapeDtypeStruct((), dtype)  # type: ignore[no-untyped-call]
        data = jax.eval_shape(jax.random.key_data, key)
        return tuple(data.shape), data.dtype.name
    return (), np.dtype(dtype).name


def full_shape(aval: Any) -> tuple[Shape, str]:
    """An abstract value's shape as stored, and its dtype."""
    extra, dtype = _physical(aval.dtype)
    return tuple(aval.shape) + extra, dtype


def squeeze(shape: Shape) -> Shape:
    return tuple([s for s in shape if s != 1])


def places(shape: Shape) -> dict[int, int]:
    """Dimension of the full shape -> dimension of the squeezed one, for those that are kept."""
    out: dict[int, int] = {}
    for i, s in enumerate(shape):
        if s != 1:
            out[i] = len(out)
    return out


def squeezed_dims(dims: Sequence[int], shape: Shape) -> tuple[int, ...]:
    where = places(shape)
    return tuple([where[d] for d in dims if d in where])


class Lowering:
    """Lowers one jaxpr (and, through `child`, those inside it)."""

    def __init__(
        self,
        graph: Graph,
        opaque: dict[str, None],
        constants: dict[int, int],
        *,
        barriers_hold: bool,
        far: bool = True,
        onward: list[Node] | None = None,
    ):
        self.g = graph
        self.far = far  # whether loops that were moved out of a loop are moved on, out of loops around it
        self.onward: list[Node] = [] if onward is None else onward  # those that were; all share it
        self.opaque = opaque  # what is not known, by name
        self.constants = constants  # bytes of the arrays closed over, each once
        self.barriers_hold = barriers_hold
        self.values: list[list[Node]] = []  # of each top-level equation
        self.foreign: set[Any] = set()  # variables of the jaxpr at hand that come out of, or into, a call

    def child(self, eqn: int) -> "Lowering":
        """For a computation of its own (a loop's body), attributed to the equation it is in."""
        graph = Graph()
        graph.eqn = eqn
        graph.native_half = self.g.native_half
        graph.merges_constants = self.g.merges_constants
        hold, far = self.barriers_hold, self.far
        return Lowering(graph, self.opaque, self.constants, barriers_hold=hold, far=far, onward=self.onward)

    def jaxpr(
        self, jaxpr: Any, consts: Sequence[Node], args: Sequence[Node], *, top: bool = False
    ) -> list[Node]:
        env: dict[Any, Node] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        g = self.g
        rules_get = RULES.get
        outer, self.foreign = self.foreign, set(jaxpr.invars)
        for i, eqn in enumerate(jaxpr.eqns):
            if top:
                g.eqn = i
            operands = [self.literal(v) if hasattr(v, "val") else env[v] for v in eqn.invars]
            fun = rules_get(eqn.primitive.name)
            outs = fun(self, eqn, operands) if fun is not None else self.unknown(eqn, operands)
            env.update(zip(eqn.outvars, outs, strict=True))
            if fun is _call:
                self.foreign.update(eqn.outvars)
            if top:
                self.values.append(outs)
        self.foreign = outer
        return [self.literal(v) if hasattr(v, "val") else env[v] for v in jaxpr.outvars]

    def literal(self, v: Any) -> Node:
        value = v.val
        dtype = _physical(v.aval.dtype)[1]
        if np.ndim(value) == 0:
            value = value.item() if hasattr(value, "item") else value
            return self.g.constant(value, dtype)
        return self.array(value)

    def array(self, value: Any) -> Node:
        shape, dtype = full_shape(jax.typeof(value))
        node = self.g.new("constant", squeeze(shape), dtype, (), None)
        self.constants[id(value)] = node.nbytes
        return node

    def closed(self, jaxpr: Any, args: Sequence[Node]) -> list[Node]:
        """Inlines a ClosedJaxpr."""
        return self.jaxpr(jaxpr.jaxpr, [self.const(c) for c in jaxpr.consts], args)

    def const(self, value: Any) -> Node:
        if np.ndim(value) == 0 and not _is_key(jax.typeof(value).dtype):
            return self.g.constant(np.asarray(value).item(), np.asarray(value).dtype.name)
        return self.array(value)

    def unknown(self, eqn: Any, operands: list[Node]) -> list[Node]:
        self.opaque.setdefault(eqn.primitive.name)
        return self.multi("opaque", eqn, operands, eqn.primitive.name)

    def multi(self, op: str, eqn: Any, operands: Sequence[Node], attrs: Any = None) -> list[Node]:
        """A node with one or more results, taken as they are."""
        outs = [full_shape(v.aval) if hasattr(v.aval, "shape") else ((), "uint8") for v in eqn.outvars]
        for _, dtype in outs:
            if dtype not in ITEM_BYTES:
                self.opaque.setdefault(f"dtype {dtype}")
        if len(outs) == 1:
            return [self.g.new(op, squeeze(outs[0][0]), outs[0][1], tuple(operands), attrs)]
        node = self.g.new(op, (0,), "uint8", tuple(operands), attrs)
        return [self.g.new("gte", squeeze(s), d, (node,), i) for i, (s, d) in enumerate(outs)]

    def barrier(self, xs: list[Node]) -> list[Node]:
        """Identity, but nothing is merged, moved or fused across it."""
        if not self.barriers_hold:
            return xs
        node = self.g.new("barrier", (0,), "uint8", tuple(xs))
        return [self.g.new("gte", x.shape, x.dtype, (node,), i) for i, x in enumerate(xs)]

    def spread(self, x: Node, shape: Shape, out: Shape) -> Node:
        """An operand of full shape `shape` spread to the full shape `out` (equal ranks, or a scalar)."""
        if shape == out or not x.shape:
            return x
        where = places(out)
        dims = [where[i] for i, s in enumerate(shape) if s != 1]
        return rules.broadcast(self.g, x, squeeze(out), dims)

    def map(self, op: str, eqn: Any, operands: Sequence[Node], attrs: Any = None) -> Node:
        """An elementwise operation, with its operands spread to the result's shape."""
        aval = eqn.outvars[0].aval
        out = tuple(aval.shape)
        args = []
        for v, x in zip(eqn.invars, operands, strict=True):
            shape = v.aval.shape
            args.append(x if shape == out else self.spread(x, tuple(shape), out))
        return rules.elementwise(self.g, op, _physical(aval.dtype)[1], tuple(args), attrs)


ELEMENTWISE = {
    "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum",
    "min": "minimum", "pow": "power", "rem": "remainder", "and": "and", "or": "or", "xor": "xor", "not":
    "not", "neg": "negate", "log": "log", "exp2": "exp2", "log1p": "log1p", "expm1":
    "expm1", "tanh": "tanh", "sin": "sine", "cos": "cosine", "tan": "tan", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "cbrt": "cbrt", "erf": "erf", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "round":
    "round", "is_finite": "is-finite", "atan2": "atan2", "clamp": "clamp", "population_count": "popcnt",
    "clz": "clz", "shift_left": "shift-left", "shift_right_logical": "shift-right",
    "shift_right_arithmetic": "shift-right", "nextafter": "nextafter", "reduce_precision":
    "reduce-precision", "complex": "complex", "conj": "conj", "asin":
    "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh":
    "acosh", "atanh": "atanh",   "lgamma": "lgamma", "digamma":
    "digamma", "bessel_i0e": "bessel", "bessel_i1e": "bessel", "igamma": "igamma", "igammac": "igamma",
    "regularized_incomplete_beta": "betainc",
}  # fmt: skip

COMPARE = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


def _elementwise(op: str) -> Rule:
    def lower(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
        return [low.map(op, eqn, xs)]

    return lower


def _compare(direction: str) -> Rule:
    def lower(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
        return [low.map("compare", eqn, xs, direction)]

    return lower


RULES.update({name: _elementwise(op) for name, op in ELEMENTWISE.items()})
RULES.update({name: _compare(d) for name, d in COMPARE.items()})


@rule("convert_element_type")
def _convert(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    dtype = _physical(eqn.outvars[0].aval.dtype)[1]
    x = xs[0]
    value = rules.scalar_value(x)
    if isinstance(value, int | float) and dtype != "bool":
        return [low.g.scalar(float(value) if rules.is_float(dtype) else int(value), x.shape, dtype)]
    if x.op == "convert" and x.operands[0].dtype == dtype and dtype == "float32" and x.dtype == "bfloat16":
        return [x.operands[0]]  # rounded and widened again: excess precision is allowed
    return [rules.convert(low.g, x, dtype)]


@rule("copy", "copy_p", "stop_gradient", "name", "recoup_keep", "recoup_diagnostic",
      "sharding_constraint", "pvary",
      "layout_constraint",
      "reshard", "mesh_cast", "random_wrap",
      "random_unwrap", "random_clone", "convert_memory_kind")  # fmt: skip
def _identity(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return list(xs)


@rule("square")
def _square(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return [rules.elementwise(low.g, "multiply", xs[0].dtype, (xs[0], xs[0]))]


@rule("one_minus_square")
def _one_minus_square(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x = xs[0]
    one = low.g.scalar(1.0, x.shape, x.dtype)
    plus = rules.elementwise(low.g, "add", x.dtype, (x, one))
    minus = rules.elementwise(low.g, "subtract", x.dtype, (one, x))
    return [rules.elementwise(low.g, "multiply", x.dtype, (plus, minus))]


@rule("integer_pow")
def _integer_pow(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x, y = xs[0], eqn.params["y"]
    g, dtype = low.g, x.dtype
    n = abs(y)
    if n == 0:
        return [g.scalar(1.0, x.shape, dtype)]
    acc, base = None, x
    while n:
        if n & 1:
            acc = base if acc is None else rules.elementwise(g, "multiply", dtype, (acc, base))
        n >>= 1
        if n:
            base = rules.elementwise(g, "multiply", dtype, (base, base))
    assert acc is not None
    if y < 0:
        acc = rules.elementwise(g, "divide", dtype, (g.scalar(1.0, x.shape, dtype), acc))
    return [acc]


@rule("logistic")
def _logistic(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    g, x = low.g, xs[0]
    one = g.scalar(1.0, x.shape, x.dtype)
    e = rules.elementwise(g, "exponential", x.dtype, (rules.elementwise(g, "negate", x.dtype, (x,)),))
    return [rules.elementwise(g, "divide", x.dtype, (one, rules.elementwise(g, "add", x.dtype, (e, one))))]


@rule("select_n")
def _select(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    if len(xs) == 1:
        return [xs[1]]
    shape, dtype = tuple(eqn.outvars[0].aval.shape), xs[1].dtype
    args = []
    for v, x in zip(eqn.invars, xs, strict=True):
        args.append(low.spread(x, tuple(v.aval.shape), shape))
    if len(args) == 3:
        if args[1] is args[2]:
            return [args[1]]
        return [rules.elementwise(low.g, "select", dtype, (args[0], args[2], args[1]))]
    return [rules.elementwise(low.g, "select", dtype, tuple(args))]


@rule("jit", "pjit", "recoup_region", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call",
      "custom_vjp_call",
      "custom_vjp_call_jaxpr", "custom_jvp_call_jaxpr", "remat", "remat2", "checkpoint", "run_state", "call",
      "custom_lin", "composite", "shard_map")  # fmt: skip
def _call(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    prevent = eqn.params.get("prevent_cse", False)
    if prevent and eqn.params.get("differentiated"):  # jax.checkpoint's own barrier, before its backward
        held = [True] * len(xs) if prevent is True else list(prevent)
        barred = iter(low.barrier([x for x, h in zip(xs, held, strict=True) if h]))
        xs = [next(barred) if h else x for x, h in zip(xs, held, strict=True)]
    inner = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)
    if inner is None or (callable(inner) and not hasattr(inner, "eqns")):
        return low.unknown(eqn, xs)
    outer = low.g.called
    low.g.called = outer or eqn.primitive.name in ("jit", "pjit")
    try:
        if hasattr(inner, "jaxpr") and hasattr(inner, "consts"):
            return low.closed(inner, xs)
        return low.jaxpr(inner, [], xs)
    finally:
        low.g.called = outer
