"""From a jaxpr to the small graph: operations that shape, move, reduce and multiply."""

from math import prod
from typing import Any

from recoup import _compat
from recoup._memory import _products as products
from recoup._memory import _rules as rules
from recoup._memory._graph import Graph, Node, Shape
from recoup._memory._lower import RULES, Lowering, Rule, full_shape, places, rule, squeeze, squeezed_dims


@rule("reshape", "squeeze", "expand_dims")
def _reshape(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x = xs[0]
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
        shape = tuple(eqn.invars[0].aval.shape)
        x = rules.transpose(low.g, x, squeezed_dims(eqn.params["dimensions"], shape))
    return [rules.reshape(low.g, x, squeeze(full_shape(eqn.outvars[0].aval)[0]))]


@rule("broadcast_in_dim")
def _broadcast(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    out, _ = full_shape(eqn.outvars[0].aval)
    inn, _ = full_shape(eqn.invars[0].aval)
    where = places(out)
    dims = eqn.params["broadcast_dimensions"]
    extra = tuple(range(len(out) - (len(inn) - len(dims)), len(out)))
    kept = [where[d] for d, s in zip((*dims, *extra), inn, strict=True) if s != 1]
    return [rules.broadcast(low.g, xs[0], squeeze(out), kept)]


@rule("transpose")
def _transpose(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, _ = full_shape(eqn.invars[0].aval)
    perm = list(eqn.params["permutation"])
    perm += range(len(perm), len(shape))
    return [rules.transpose(low.g, xs[0], squeezed_dims(perm, shape))]


def cut(g: Graph, x: Node, shape: Shape, out: Shape) -> Node | None:
    """A slice of full shape `out` of an operand of full shape `shape`, if it is a smaller broadcast."""
    if x.op != "broadcast" or len(shape) != len(out):
        return None
    inn, to = places(shape), places(out)
    full = {place: d for d, place in inn.items()}
    kept = [full[d] for d in x.attrs]
    if any(shape[d] != out[d] for d in kept):
        return None
    return rules.broadcast(g, x.operands[0], squeeze(out), [to[d] for d in kept])


def part(g: Graph, x: Node, shape: Shape, start: Shape, stop: Shape, strides: Shape | None = None) -> Node:
    """A slice of an operand of full shape `shape`; of one part, if it is inside one of what is concatenated.

    What is spread is cut before it is spread.
    """
    if all(a == 0 and b == s for a, b, s in zip(start, stop, shape, strict=True)) and not strides:
        return x
    steps = strides or (1,) * len(shape)
    out = tuple([-(-(b - a) // s) for a, b, s in zip(start, stop, steps, strict=True)])
    spread = cut(g, x, shape, out)
    if spread is not None:
        return spread
    if x.op == "concatenate":
        at = {place: d for d, place in places(shape).items()}[x.attrs]
        begin = 0
        for y in x.operands:
            size = y.shape[x.attrs] if len(y.shape) == len(x.shape) else 1
            if begin <= start[at] and stop[at] <= begin + size:
                inside = (*shape[:at], size, *shape[at + 1 :])
                moved = [(*t[:at], t[at] - begin, *t[at + 1 :]) for t in (start, stop)]
                return part(g, y, inside, moved[0], moved[1], strides)
            begin += size
    return rules.data(g, "slice", squeeze(out), x.dtype, (x,), (start, stop, strides))


def strip(g: Graph, x: Node, shape: Shape, axis: int, start: int, size: int) -> Node:
    """A slice of full shape `shape` along one dimension."""
    low, high = [0] * len(shape), list(shape)
    low[axis], high[axis] = start, start + size
    return part(g, x, shape, tuple(low), tuple(high))


REDUCE = {"reduce_sum": "add", "reduce_max": "maximum", "reduce_min": "minimum", "reduce_prod": "multiply",
          "reduce_and": "and", "reduce_or": "or", "reduce_xor": "xor"}  # fmt: skip


def _reduce(kind: str) -> Rule:
    def lower(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
        dims = squeezed_dims(eqn.params["axes"], tuple(eqn.invars[0].aval.shape))
        if not xs[0].size:
            out, dtype = full_shape(eqn.outvars[0].aval)
            return [low.g.scalar(0, squeeze(out), dtype)]
        return [rules.reduce(low.g, xs[0], dims, kind)]

    return lower


RULES.update({name: _reduce(kind) for name, kind in REDUCE.items()})


@rule("argmax", "argmin")
def _arg(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x = xs[0]
    dims = squeezed_dims(eqn.params["axes"], tuple(eqn.invars[0].aval.shape))
    dtype = eqn.outvars[0].aval.dtype.name
    out = squeeze(tuple(eqn.outvars[0].aval.shape))
    if not dims:
        return [low.g.scalar(0, out, dtype)]
    iota = low.g.add("iota", x.shape, dtype, (), dims[0])
    return [low.g.add("reduce", out, dtype, (x, iota), (dims, "arg"))]


@rule("dot_general")
def _dot(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    ls, rs = tuple(eqn.invars[0].aval.shape), tuple(eqn.invars[1].aval.shape)
    dtype = eqn.outvars[0].aval.dtype.name
    if not xs[0].size or not xs[1].size:
        return [low.g.scalar(0, squeeze(tuple(eqn.outvars[0].aval.shape)), dtype)]
    contract = (squeezed_dims(lc, ls), squeezed_dims(rc, rs))
    batch = (squeezed_dims(lb, ls), squeezed_dims(rb, rs))
    return [products.dot(low.g, xs[0], xs[1], contract, batch, dtype)]


@rule("concatenate")
def _concatenate(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    out = full_shape(eqn.outvars[0].aval)[0]
    xs = [x for x in xs if x.nbytes] or xs[:1]
    if len(xs) == 1:
        return [xs[0]]
    dim = sum(1 for s in out[: eqn.params["dimension"]] if s != 1)
    return [rules.concatenate(low.g, squeeze(out), xs[0].dtype, xs, dim)]


@rule("stack")
def _stack(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    out = full_shape(eqn.outvars[0].aval)[0]
    if len(xs) == 1 or not prod(out):
        return [rules.reshape(low.g, xs[0], squeeze(out))]
    dim = sum(1 for s in out[: eqn.params["axis"]] if s != 1)
    return [rules.concatenate(low.g, squeeze(out), xs[0].dtype, xs, dim)]


@rule("pad")
def _pad(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    config = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    if all(c == (0, 0, 0) for c in config):
        return [xs[0]]
    shape = squeeze(tuple(eqn.outvars[0].aval.shape))
    if not xs[0].size:
        return [rules.broadcast(low.g, xs[1], shape, ())]
    grown = tuple([(max(low_, 0), max(high, 0), inner) for low_, high, inner in config])
    x, sizes = xs[0], tuple(eqn.invars[0].aval.shape)
    if any(any(c) for c in grown):
        sizes = tuple([s + a + b + max(0, s - 1) * i for s, (a, b, i) in zip(sizes, grown, strict=True)])
        x = rules.data(low.g, "pad", squeeze(sizes), x.dtype, xs, grown)
    if sizes == tuple(eqn.outvars[0].aval.shape):
        return [x]
    # edges below zero cut off
    start = tuple([max(0, -low_) for low_, _, _ in config])
    stop = tuple([s - max(0, -high) for s, (_, high, _) in zip(sizes, config, strict=True)])
    return [rules.data(low.g, "slice", shape, x.dtype, (x,), (start, stop, None))]


@rule("slice")
def _slice(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    p = eqn.params
    shape = full_shape(eqn.invars[0].aval)[0]
    whole = shape[len(p["start_indices"]) :]  # what a key is made of
    start = (*p["start_indices"], *(0 for _ in whole))
    strides = p["strides"] and (*p["strides"], *(1 for _ in whole))
    return [part(low.g, xs[0], shape, start, (*p["limit_indices"], *whole), strides)]


@rule("split")
def _split(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    start, axis, outs = 0, eqn.params["axis"], []
    for size in map(int, eqn.params["sizes"]):
        outs.append(strip(low.g, xs[0], full_shape(eqn.invars[0].aval)[0], axis, start, size))
        start += size
    return outs


@rule("unstack")
def _unstack(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, axis = full_shape(eqn.invars[0].aval)[0], eqn.params["axis"]
    return [strip(low.g, xs[0], shape, axis, i, 1) for i in range(len(eqn.outvars))]


@rule("empty", "empty2")
def _empty(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    return [low.g.scalar(0, squeeze(shape), dtype)]


@rule("custom_linear_solve")
def _linear_solve(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    total = sum(lengths)
    inner, consts = _compat.open_jaxpr(solve)
    args = [*xs[first : first + lengths.solve], *xs[total:]]
    return low.jaxpr(inner, [low.const(c) for c in consts], args)


@rule("iota")
def _iota(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    dim = eqn.params["dimension"]
    if shape[dim] == 1:
        return [low.g.scalar(0, squeeze(shape), dtype)]
    flat = low.g.add("iota", (shape[dim],), dtype, (), 0)
    return [rules.broadcast(low.g, flat, squeeze(shape), squeezed_dims([dim], shape))]


@rule("rev")
def _rev(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    dims = squeezed_dims(eqn.params["dimensions"], tuple(eqn.invars[0].aval.shape))
    return [rules.data(low.g, "reverse", xs[0].shape, xs[0].dtype, xs, dims) if dims else xs[0]]
