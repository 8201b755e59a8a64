"""Building nodes with the compiler's algebraic rules applied on the way.

Each function makes one instruction the way the simplifier leaves it: reshapes and broadcasts merged
or moved, divisions by constants and by broadcasts turned into products, neutral elements dropped,
constants folded. Only rules that change which buffers exist are here. Found by reading the
compiler's own per-pass dumps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from recoup._memory._graph import Graph, Node, Shape

_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
_COMMUTE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def is_float(dtype: str) -> bool:
    return dtype[0] == "f" or (dtype[0] == "b" and dtype != "bool")


def scalar_value(node: Node) -> Any:
    """The value, if the node is a scalar constant or a broadcast of one; else None."""
    if node.op == "broadcast":
        node = node.operands[0]
    return node.attrs if node.op == "constant" and not node.shape else None


def is_unit_reshape(node: Node) -> bool:
    """A reshape that only adds or drops dimensions of size 1; kept where that keeps buffers apart."""
    return node.op == "reshape" and node.shape == node.operands[0].shape


def is_scalar_like(node: Node) -> bool:
    """A scalar, or a broadcast of one."""
    return not node.shape or (node.op == "broadcast" and not node.operands[0].shape)


def broadcast(g: Graph, x: Node, shape: Shape, dims: Sequence[int]) -> Node:
    """`x` spread to `shape`; `dims[i]` is the place of its dimension i in the result."""
    dims = tuple(dims)
    if x.shape == shape:
        return x
    if x.op == "broadcast":
        return g.add("broadcast", shape, x.dtype, (x.operands[0],), tuple([dims[d] for d in x.attrs]))
    return g.add("broadcast", shape, x.dtype, (x,), dims)


def reshape(g: Graph, x: Node, shape: Shape) -> Node:
    if x.op == "reshape":
        x = x.operands[0]
    if x.shape == shape:
        return x
    if x.op == "broadcast":
        inner = x.operands[0]
        if not inner.shape:
            return broadcast(g, inner, shape, ())
        moved = _reshape_broadcast(x, shape)
        if moved is not None:
            return broadcast(g, reshape(g, inner, moved[0]), shape, moved[1])
    return g.add("reshape", shape, x.dtype, (x,))


def _groups(a: Shape, b: Shape) -> list[tuple[int, int, int, int]] | None:
    """The finest matching pieces (a0, a1, b0, b1) of two shapes of equal size, or None."""
    out = []
    i = j = 0
    while i < len(a) or j < len(b):
        i0, j0 = i, j
        if i >= len(a) or j >= len(b):
            return None
        p, q = a[i], b[j]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                if i >= len(a):
                    return None
                p *= a[i]
                i += 1
            else:
                if j >= len(b):
                    return None
                q *= b[j]
                j += 1
        out.append((i0, i, j0, j))
    return out


def _reshape_broadcast(x: Node, shape: Shape) -> tuple[Shape, tuple[int, ...]] | None:
    """A reshape of a broadcast as a broadcast of a reshape: (operand's new shape, its new dims)."""
    groups = _groups(x.shape, shape)
    if groups is None:
        return None
    dims = set(x.attrs)
    inner: list[int] = []
    new_dims: list[int] = []
    for i0, i1, j0, j1 in groups:
        have = [d in dims for d in range(i0, i1)]
        if all(have):
            inner.extend(shape[j0:j1])
            new_dims.extend(range(j0, j1))
        elif any(have):
            return None
    if list(x.attrs) != sorted(x.attrs):
        return None
    return tuple(inner), tuple(new_dims)


def transpose(g: Graph, x: Node, perm: Sequence[int]) -> Node:
    perm = tuple(perm)
    if x.op == "transpose":
        perm = tuple([x.attrs[p] for p in perm])
        x = x.operands[0]
    if perm == tuple(range(len(perm))):
        return x
    shape = tuple([x.shape[p] for p in perm])
    if x.op == "broadcast":
        inverse = {p: i for i, p in enumerate(perm)}
        dims = [inverse[d] for d in x.attrs]
        if dims == sorted(dims):
            return broadcast(g, x.operands[0], shape, dims)
    nb = len(perm) - 2
    if x.op == "dot" and x.attrs[0] == nb and perm == (*range(nb), nb + 1, nb):
        lhs, rhs = x.operands
        return g.add("dot", shape, x.dtype, (rhs, lhs), (nb, x.attrs[2], x.attrs[1], x.attrs[3]))
    return g.add("transpose", shape, x.dtype, (x,), perm)


def reduce(g: Graph, x: Node, dims: Sequence[int], kind: str, dtype: str | None = None) -> Node:
    """A reduction over `dims` with the operation `kind`."""
    dims = tuple(sorted(dims))
    if not dims:
        return x
    exact = kind in ("maximum", "minimum")
    if x.dtype == "bfloat16" and not exact:  # in float32, rounding at each step, which no library does
        return convert(g, reduce(g, widen(g, x), dims, f"{kind} rounded", None), x.dtype)
    shape = tuple([s for i, s in enumerate(x.shape) if i not in dims])
    if x.op == "reshape":  # reduce the operand itself when whole dimensions of it go
        inner = x.operands[0]
        groups = _groups(inner.shape, x.shape)
        if groups is not None:
            inner_dims: list[int] = []
            for i0, i1, j0, j1 in groups:
                gone = [j in dims for j in range(j0, j1)]
                if all(gone):
                    inner_dims.extend(range(i0, i1))
                elif any(gone):
                    break
            else:
                return reshape(g, reduce(g, inner, inner_dims, kind, dtype), shape)
    sunk = x in g.sunk  # when reductions are simplified this is no transpose yet
    if x.op == "transpose" and not sunk:
        perm = x.attrs
        inside = reduce(g, x.operands[0], [perm[d] for d in dims], kind, dtype)
        left = [p for i, p in enumerate(perm) if i not in dims]
        return transpose(g, inside, [sorted(left).index(p) for p in left]) if left else inside
    if x.op == "broadcast" and kind == "add" and not set(dims) & set(x.attrs):  # a multiple
        count = math.prod([x.shape[d] for d in dims])
        left = [d for d in range(len(x.shape)) if d not in dims]
        once = broadcast(g, x.operands[0], shape, [left.index(d) for d in x.attrs])
        return elementwise(g, "multiply", x.dtype, (once, g.scalar(float(count), shape, x.dtype)))
    if x.op == "concatenate" and x.attrs in dims and kind != "arg":
        return _reduce_parts(g, x, dims, kind, dtype)
    if x.op == "negate" and kind == "add":
        return elementwise(g, "negate", x.dtype, (reduce(g, x.operands[0], dims, kind, dtype),))
    if x.op == "reduce" and x.attrs[1] == kind and kind != "arg":
        kept = [d for d in range(len(x.operands[0].shape)) if d not in x.attrs[0]]
        return reduce(g, x.operands[0], (*x.attrs[0], *(kept[d] for d in dims)), kind, dtype)
    whole = library_reduce(x, kind) and not sunk
    if not whole and any(x.shape[d] >= TREE for d in dims):  # in two steps, first by windows
        sizes = [(-(-s // max(1, min(s, TREE))) if i in dims else s) for i, s in enumerate(x.shape)]
        kept = [i for i, s in enumerate(sizes) if s != 1]
        part = g.add("reduce-window", tuple([sizes[i] for i in kept]), x.dtype, (x,), (dims, kind, TREE))
        return reduce(g, part, [kept.index(d) for d in dims if d in kept], kind, dtype)
    return g.add("reduce", shape, dtype or x.dtype, (x,), (dims, kind))


def _reduce_parts(g: Graph, x: Node, dims: Sequence[int], kind: str, dtype: str | None) -> Node:
    """A reduction over what is concatenated: of each part, and then of all."""
    results = []
    for part in x.operands:
        flat = len(part.shape) < len(x.shape)  # of length 1 where the parts follow each other
        inside = [d - (d > x.attrs) for d in dims if d != x.attrs] if flat else dims
        results.append(reduce(g, part, inside, kind, dtype))
    total = results[0]
    for once in results[1:]:
        total = elementwise(g, kind.split()[0], once.dtype, (total, once))
    return total


# Reductions over more than this many elements go by windows of as many (the tree reduction rewriter), if no
# library reduces them.
TREE = 32
LIBRARY_MIN_ELEMENTS = 4096


def library_reduce(x: Node, kind: str) -> bool:
    """Whether a library reduces `x`."""
    half = x.dtype in ("float16", "bfloat16") and kind != "add"
    return (
        kind in ("add", "maximum", "minimum")
        and (half or x.dtype in ("float32", "float64"))
        and x.size >= LIBRARY_MIN_ELEMENTS
    )


# Operations that the compiler leaves in bfloat16: they only move data. From JAX 0.12 on also exact ones.
MOVES = frozenset({"convert", "copy", "bitcast-convert"})
EXACT = frozenset({"abs", "negate", "maximum", "minimum", "sign", "clamp", "select", "compare"})
HALF = {"bfloat16": "float32", "float16": "float32"}


def convert(g: Graph, x: Node, dtype: str) -> Node:
    return elementwise(g, "convert", dtype, (x,), dtype)


def widen(g: Graph, x: Node) -> Node:
    """Half precision as float32; anything else as it is."""
    wide = HALF.get(x.dtype)
    return convert(g, x, wide) if wide is not None else x


def data(g: Graph, op: str, shape: Shape, dtype: str, operands: Sequence[Node], attrs: Any = None) -> Node:
    """An operation that moves elements between places; bfloat16 is moved as float32."""
    if dtype == "bfloat16" and not g.native_half:
        wide = tuple([widen(g, x) for x in operands])
        return convert(g, g.add(op, shape, "float32", wide, attrs), dtype)
    return g.add(op, shape, dtype, tuple(operands), attrs)


def concatenate(g: Graph, shape: Shape, dtype: str, xs: Sequence[Node], dim: int) -> Node:
    """A concatenation. With nothing but one scalar, spread, before or after a value it pads the value."""
    for value, others in ((xs[0], xs[1:]), (xs[-1], xs[:-1])):
        if others and all(x.op == "broadcast" and not x.operands[0].shape for x in others):
            fill = others[0].operands[0]
            if value not in others and all(x.operands[0] is fill for x in others):
                return data(g, "pad", shape, dtype, (value, fill), (dim, value is xs[0]))
    return data(g, "concatenate", shape, dtype, xs, dim)


def elementwise(g: Graph, op: str, dtype: str, args: tuple[Node, ...], attrs: Any = None) -> Node:
    """An elementwise operation on operands of one shape (scalars are spread).

    bfloat16 arithmetic is done in float32: operands are widened, the result is rounded.
    """
    native = op in MOVES or (op in EXACT and g.native_half)
    if not native and any(a.dtype == "bfloat16" for a in args):
        wide = tuple([widen(g, a) for a in args])
        if dtype != "bfloat16":
            return elementwise(g, op, dtype, wide, attrs)
        return convert(g, elementwise(g, op, "float32", wide, attrs), dtype)
    shape: Shape = ()
    for a in args:
        if a.shape:
            shape = a.shape
            break
    if shape:
        args = tuple([a if a.shape else broadcast(g, a, shape, ()) for a in args])
    done = _simplify(g, op, dtype, args, shape)
    if done is not None:
        return done
    sunk = _below_transpose(g, op, dtype, args, attrs)
    if sunk is not None:
        return sunk
    if any(map(is_unit_reshape, args)) and all(is_unit_reshape(a) or is_scalar_like(a) for a in args):
        inner = tuple([a.operands[0] if a.op == "reshape" else a for a in args])
        g.moved.update(a.operands[0] for a in args if a.op == "reshape")
        return g.add("reshape", shape, dtype, (elementwise(g, op, dtype, inner, attrs),))
    if len(args) == 2 and args[0] is not args[1] and all(a.op == "broadcast" and a.attrs for a in args):
        a, b = args
        if a.attrs == b.attrs:  # both spread alike
            inner = (a.operands[0], b.operands[0])
            return broadcast(g, elementwise(g, op, dtype, inner, attrs), shape, a.attrs)
    # one operand is spread from something smaller, the others from scalars: compute small, spread the result
    spread = None
    for a in args:
        if a.op == "broadcast":
            if a.operands[0].shape:
                if spread is not None and spread is not a:
                    return g.add(op, shape, dtype, args, attrs)
                spread = a
        elif a.shape:
            return g.add(op, shape, dtype, args, attrs)
    if spread is not None:
        small = spread.operands[0]
        inner = tuple([small if a is spread else a.operands[0] for a in args])
        return broadcast(g, elementwise(g, op, dtype, inner, attrs), shape, spread.attrs)
    if shape and all(a.op == "broadcast" for a in args):
        return broadcast(g, elementwise(g, op, dtype, tuple([a.operands[0] for a in args]), attrs), shape, ())
    return g.add(op, shape, dtype, args, attrs)


def _below_transpose(g: Graph, op: str, dtype: str, args: tuple[Node, ...], attrs: Any) -> Node | None:
    """Operands that are all transposed alike: the operation runs in their layout, then is transposed."""
    perm = None
    for a in args:
        if a.op == "transpose":
            if perm is not None and a.attrs != perm:
                return None
            perm = a.attrs
        elif not is_scalar_like(a):
            return None
    if perm is None:
        return None
    shape = next(a.operands[0].shape for a in args if a.op == "transpose")
    inner = tuple(
        [
            a.operands[0]
            if a.op == "transpose"
            else (a if not a.shape else broadcast(g, a.operands[0], shape, ()))
            for a in args
        ]
    )
    done = transpose(g, elementwise(g, op, dtype, inner, attrs), perm)
    g.sunk.add(done)
    return done


def _simplify(g: Graph, op: str, dtype: str, args: tuple[Node, ...], shape: Shape) -> Node | None:
    """The rules for single operations; None if the operation stays."""
    if len(args) == 1:
        if op == "convert":
            x = args[0]
            if x.dtype == dtype:
                return x
            value = scalar_value(x)
            if isinstance(value, int | float) and not isinstance(value, bool) and is_float(dtype):
                return g.scalar(float(value), shape, dtype)
            # widened and rounded again
            if x.op == "convert" and x.operands[0].dtype == dtype and x.nbytes > x.operands[0].nbytes:
                return x.operands[0]
            return None
        if op == "negate":
            value = scalar_value(args[0])
            if isinstance(value, int | float):
                return g.scalar(-value, shape, dtype)
        return None
    if len(args) == 2 and args[0] is args[1] and op in _IDEMPOTENT:
        return args[0]
    if len(args) != 2 or op not in _RULED:
        return None
    a, b = args
    va, vb = scalar_value(a), scalar_value(b)
    if isinstance(va, int | float) and isinstance(vb, int | float) and op in _FOLD:
        return g.scalar(_FOLD[op](va, vb), shape, dtype)
    if va is not None and op in _COMMUTE:
        a, b, va, vb = b, a, vb, va
    if (
        op == "multiply" and a.op == b.op == "multiply" and g.merges_constants
    ):  # constant arrays move outwards, into one
        c, d = a.operands[-1], b.operands[-1]
        if c.op == d.op == "constant" and c.shape == d.shape == shape:
            inner = elementwise(g, op, dtype, (a.operands[0], b.operands[0]))
            return elementwise(g, op, dtype, (inner, g.add(op, shape, dtype, (c, d))))
    if (
        op == "multiply" and g.merges_constants and is_float(dtype)
    ):  # a constant factor goes to what is spread
        for product, spread in ((a, b), (b, a)):
            if product.op == "multiply" and spread.op == "broadcast" and spread.attrs:
                factor, small = scalar_value(product.operands[1]), spread.operands[0]
                if isinstance(factor, int | float):
                    once = (small, g.scalar(factor, small.shape, dtype))
                    moved = broadcast(g, elementwise(g, op, dtype, once), shape, spread.attrs)
                    return elementwise(g, op, dtype, (product.operands[0], moved))
    if op == "multiply":  # a factor made from a mask selects
        for mask, other in ((a, b), (b, a)):
            if mask.op == "convert" and mask.operands[0].dtype == "bool":
                zero = g.scalar(0, shape, dtype)
                return elementwise(g, "select", dtype, (mask.operands[0], other, zero))
    if vb is None:
        if op == "divide" and b.op == "broadcast" and is_float(dtype) and a is not b:
            if va is not None and va == 1:
                return None
            inner = b.operands[0]
            inverse = elementwise(g, "divide", dtype, (g.scalar(1.0, inner.shape, dtype), inner))
            return elementwise(g, "multiply", dtype, (a, broadcast(g, inverse, shape, b.attrs)))
        return None
    if op in ("add", "subtract") and vb == 0:
        return a
    if op in ("multiply", "divide") and vb == 1:
        return a
    if (op == "maximum" and vb == -math.inf) or (op == "minimum" and vb == math.inf):
        return a
    if not isinstance(vb, int | float):
        return None
    if op == "divide" and is_float(dtype) and vb != 0:
        return elementwise(g, "multiply", dtype, (a, g.scalar(1.0 / vb, shape, dtype)))
    if op == "subtract" and is_float(dtype):
        return elementwise(g, "add", dtype, (a, g.scalar(-vb, shape, dtype)))
    if op in ("multiply", "add") and a.op == op and is_float(dtype) and g.merges_constants:
        inner = scalar_value(a.operands[1])
        if isinstance(inner, int | float):
            return elementwise(g, op, dtype, (a.operands[0], g.scalar(_FOLD[op](inner, vb), shape, dtype)))
    if op in _COMMUTE and a is not args[0]:
        return elementwise(g, op, dtype, (a, b)) if a.op != "broadcast" else None
    return None


_IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})
_RULED = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum"})
