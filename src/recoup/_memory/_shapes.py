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
    if eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape":
        return low.unknown(eqn, xs)
    return [rules.reshape(low.g, xs[0], squeeze(full_shape(eqn.outvars[0].aval)[0]))]


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
    out, dtype = full_shape(eqn.outvars[0].aval)
    if out == full_shape(eqn.invars[0].aval)[0]:
        return [xs[0]]
    spread = cut(low.g, xs[0], full_shape(eqn.invars[0].aval)[0], out)
    if spread is not None:
        return [spread]
    attrs = (tuple(p["start_indices"]), tuple(p["limit_indices"]), p["strides"] and tuple(p["strides"]))
    return [rules.data(low.g, "slice", squeeze(out), dtype, xs, attrs)]


@rule("split")
def _split(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    start, axis, outs = 0, eqn.params["axis"], []
    for v, size in zip(eqn.outvars, eqn.params["sizes"], strict=True):
        shape, dtype = full_shape(v.aval)
        part = cut(low.g, xs[0], full_shape(eqn.invars[0].aval)[0], shape)
        if part is None:
            part = rules.data(low.g, "slice", squeeze(shape), dtype, xs, (axis, start, size))
        outs.append(part)
        start += size
    return outs


@rule("unstack")
def _unstack(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    outs = [full_shape(v.aval) for v in eqn.outvars]
    axis = eqn.params["axis"]
    if len(outs) == 1:
        return [rules.reshape(low.g, xs[0], squeeze(outs[0][0]))]
    return [rules.data(low.g, "slice", squeeze(s), d, xs, (axis, i, 1)) for i, (s, d) in enumerate(outs)]


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
