"""Indexed, windowed, sorted and random operations, as the compiler leaves them."""

from math import prod
from typing import Any

from recoup._memory import _rules as rules
from recoup._memory._graph import Node
from recoup._memory._lower import Lowering, full_shape, rule, squeeze
from recoup._memory._shapes import cut


def _one(low: Lowering, op: str, eqn: Any, xs: list[Node], attrs: Any = None) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    return [rules.data(low.g, op, squeeze(shape), dtype, xs, attrs)]


def _rows(low: Lowering, eqn: Any, indices: Node, batching: tuple[int, ...]) -> tuple[Node, int]:
    """Indices as one list of rows, and its length. Batching dimensions become counters before the rows."""
    shape = tuple(eqn.invars[1].aval.shape)
    n = prod(shape[:-1])
    columns = shape[-1]
    if batching:
        columns += len(batching)
        lead = squeeze(shape[:-1])
        parts = [low.g.add("iota", lead, indices.dtype, (), d) for d in range(min(len(batching), len(lead)))]
        both = (*lead, columns)
        indices = low.g.add("concatenate", both, indices.dtype, (*parts, indices), len(both) - 1)
    found = rules.reshape(low.g, indices, squeeze((n, columns)))
    if found is indices and columns == 1:  # their last dimension, of size 1, was added by a reshape
        found = low.g.add("reshape", indices.shape, indices.dtype, (indices,))
    return found, n


@rule("gather")
def _gather(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    p = eqn.params
    dn = p["dimension_numbers"]
    out, dtype = full_shape(eqn.outvars[0].aval)
    extra = out[len(eqn.outvars[0].aval.shape) :]
    attrs = (str(dn), tuple(p["slice_sizes"]), str(p["mode"]))
    rows, n = _rows(low, eqn, xs[1], dn.operand_batching_dims)
    op = "dynamic-slice" if n == 1 else "gather"
    offset = list(dn.offset_dims)
    batch = [d for d in range(len(out) - len(extra)) if d not in offset]
    window = tuple([out[d] for d in offset]) + extra
    got = rules.data(low.g, op, squeeze((n, *window)), dtype, (xs[0], rows), attrs)
    # the compiler's form has the rows first: put the dimensions where they were asked for
    order = [*batch, *offset]
    ordered = tuple([out[d] for d in order])
    spread = rules.reshape(low.g, got, squeeze(ordered + extra))
    if spread is got and dn.collapsed_slice_dims:  # it keeps them, as dimensions of size 1
        spread = low.g.add("reshape", got.shape, got.dtype, (got,))
    if "FILL" in str(p["mode"]) and spread.size:
        spread = _fill(low, eqn, xs[1], spread)
    return [_reorder(low, spread, ordered, tuple([order.index(d) for d in range(len(order))]))]


def _fill(low: Lowering, eqn: Any, indices: Node, got: Node) -> Node:
    """What was gathered from outside the operand is replaced."""
    g, shape = low.g, tuple(eqn.invars[1].aval.shape)
    ends = [
        rules.elementwise(g, "compare", "bool", (indices, g.constant(0, indices.dtype)), way)
        for way in ("GE", "LE")
    ]
    inside = rules.elementwise(g, "and", "bool", tuple(ends))
    if shape[-1] > 1:
        inside = rules.reduce(g, inside, (len(inside.shape) - 1,), "and")
    mask = rules.broadcast(g, inside, got.shape, range(len(squeeze(shape[:-1]))))
    dtype = got.dtype
    return rules.elementwise(g, "select", dtype, (mask, got, g.scalar(float("nan"), got.shape, dtype)))


@rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add", "scatter_mul")
def _scatter(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    p = eqn.params
    dn = p["dimension_numbers"]
    attrs = (eqn.primitive.name, str(dn), str(p["mode"]))
    operand, indices, updates = xs
    if not updates.size:
        return [operand]
    if updates.dtype == "bfloat16" and not low.g.native_half:
        updates = rules.widen(low.g, updates)
    shape = tuple(eqn.invars[2].aval.shape)
    if prod(eqn.invars[1].aval.shape[:-1]) == 1:
        return [_update_once(low, eqn, operand, indices, updates)]
    indices, n = _rows(low, eqn, indices, dn.operand_batching_dims)
    window = list(dn.update_window_dims)
    unit = rules.is_unit_reshape(updates)
    batch = [d for d in range(len(shape)) if d not in window]
    updates = _reorder(low, updates, shape, (*batch, *window))
    updates = rules.reshape(low.g, updates, squeeze((n, *(shape[d] for d in window))))
    if updates.op == "reshape" and not unit:  # its layout is the reshape's: copied to row-major
        updates = low.g.add("copy", updates.shape, updates.dtype, (updates,))
    elif dn.inserted_window_dims and not unit:  # they become dimensions of size 1
        updates = low.g.add("reshape", updates.shape, updates.dtype, (updates,))
    return _one(low, "scatter", eqn, [operand, indices, updates], attrs)


_COMBINES = {"scatter-add": "add", "scatter-mul": "multiply", "scatter-min": "minimum", "scatter-max":
             "maximum"}  # fmt: skip


def _update_once(low: Lowering, eqn: Any, operand: Node, indices: Node, updates: Node) -> Node:
    """A scatter to one place is an update of a slice, of what was there where it would be out of bounds."""
    g = low.g
    window = squeeze(tuple(eqn.invars[2].aval.shape))
    updates = rules.reshape(g, updates, window)
    here = rules.data(g, "dynamic-slice", window, operand.dtype, (operand, indices), "once")
    op = _COMBINES.get(eqn.primitive.name.replace("_", "-"))
    new = updates if op is None else rules.elementwise(g, op, operand.dtype, (here, updates))
    if "CLIP" not in str(eqn.params["mode"]) and "PROMISE" not in str(eqn.params["mode"]):
        zero = g.scalar(0, indices.shape, indices.dtype)
        inside = rules.elementwise(g, "compare", "bool", (indices, zero), "GE")
        if inside.shape:
            inside = rules.reduce(g, inside, range(len(inside.shape)), "and")
        mask = rules.broadcast(g, inside, window, ())
        new = rules.elementwise(g, "select", operand.dtype, (mask, new, here))
    return rules.data(g, "dynamic-update-slice", operand.shape, operand.dtype, (operand, new, indices))


@rule("dynamic_slice")
def _dynamic_slice(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, out = full_shape(eqn.invars[0].aval)[0], full_shape(eqn.outvars[0].aval)[0]
    spread = cut(low.g, xs[0], shape, out)
    if spread is not None:
        return [spread]
    return _one(low, "dynamic-slice", eqn, xs, tuple(eqn.params["slice_sizes"]))


@rule("dynamic_update_slice")
def _dynamic_update_slice(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    if not xs[1].size:
        return [xs[0]]
    return _one(low, "dynamic-update-slice", eqn, xs)


@rule("conv_general_dilated")
def _conv(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    p = eqn.params
    dn = p["dimension_numbers"]
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    key: tuple[Any, ...] = (str(dn), *(tuple(p[name]) for name in names))
    key += (p["feature_group_count"], p["batch_group_count"])
    n = len(dn.lhs_spec)
    if not low.g.entry:  # inside loops and branches it is left in the order in which it was written
        dn = dn._replace(
            lhs_spec=(0, n - 1, *range(1, n - 1)),
            rhs_spec=(n - 1, n - 2, *range(n - 2)),
            out_spec=(0, n - 1, *range(1, n - 1)),
        )
    lhs_order = (dn.lhs_spec[0], *dn.lhs_spec[2:], dn.lhs_spec[1])
    rhs_order = (*dn.rhs_spec[2:], dn.rhs_spec[1], dn.rhs_spec[0])
    out_order = (dn.out_spec[0], *dn.out_spec[2:], dn.out_spec[1])
    lhs = _reorder(low, xs[0], tuple(eqn.invars[0].aval.shape), lhs_order)
    rhs = _reorder(low, xs[1], tuple(eqn.invars[1].aval.shape), rhs_order)
    shape, dtype = full_shape(eqn.outvars[0].aval)
    half = lhs.dtype in ("bfloat16", "float16")
    lhs, rhs = rules.widen(low.g, lhs), rules.widen(low.g, rhs)
    if lhs.op == "pad" and rules.scalar_value(lhs.operands[1]) == 0:  # the window pads
        key += (lhs.attrs,)
        lhs = lhs.operands[0]
    canonical = squeeze(tuple([shape[d] for d in out_order]))
    out = low.g.add("convolution", canonical, "float32" if half else dtype, (lhs, rhs), key)
    out = rules.convert(low.g, out, dtype)
    inverse = [out_order.index(d) for d in range(n)]
    return [_reorder(low, out, tuple([shape[d] for d in out_order]), tuple(inverse))]


def _reorder(low: Lowering, x: Node, shape: tuple[int, ...], perm: tuple[int, ...]) -> Node:
    kept = [d for d, s in enumerate(shape) if s != 1]
    where = {d: i for i, d in enumerate(kept)}
    return rules.transpose(low.g, x, [where[d] for d in perm if d in where])


@rule("reduce_window_max", "reduce_window_sum", "reduce_window_min", "reduce_window")
def _reduce_window(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    """A pooling. Padding with the neutral element becomes part of the window's own."""
    p = eqn.params
    x = xs[0]
    key: tuple[Any, ...] = (eqn.primitive.name, tuple(p["window_dimensions"]))
    if x.op == "pad" and rules.scalar_value(x.operands[1]) in (0, float("-inf"), float("inf")):
        key += (x.attrs,)
        x = x.operands[0]
    return _one(low, "reduce-window", eqn, [x, *xs[1:]], key)


@rule("select_and_gather_add")
def _select_and_gather(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return _one(low, "reduce-window", eqn, xs)


@rule("select_and_scatter_add")
def _select_and_scatter(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    """Expanded: each window finds the index of its winner, by counters for all dimensions; then a scatter."""
    g = low.g
    source, operand = xs[0], xs[1]
    if source.dtype == "bfloat16" and not g.native_half:
        source, operand = rules.widen(g, source), rules.widen(g, operand)
    full = tuple(eqn.invars[0].aval.shape)
    rank = len(full)
    counters = [g.add("iota", operand.shape, "int32", (), d) for d in range(rank)]
    # the node itself holds the windows' values, which nothing reads
    windows = g.new("reduce-window", source.shape, operand.dtype, (operand, *counters), "winners")
    indices = [g.new("gte", source.shape, "int32", (windows,), d) for d in range(rank)]
    n = prod(full)
    rows = g.add("concatenate", (n, rank), "int32", tuple([rules.reshape(g, i, (n,)) for i in indices]), 1)
    updates = rules.reshape(g, source, squeeze((n,)))
    if updates.op == "reshape":
        updates = g.add("copy", updates.shape, updates.dtype, (updates,))
    zeros = g.scalar(0.0, operand.shape, operand.dtype)
    attrs = ("scatter-add", "windows")
    added = g.add("scatter", operand.shape, operand.dtype, (zeros, rows, updates), attrs)
    return [rules.convert(g, added, xs[1].dtype)]


WINDOW = 16  # cumulative sums go by windows of this length


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    g, x = low.g, xs[0] if xs[0].dtype == "float16" else rules.widen(low.g, xs[0])
    full = tuple(eqn.invars[0].aval.shape)
    axis = sum(1 for s in full[: eqn.params["axis"]] if s != 1)
    if full[eqn.params["axis"]] == 1:
        return [xs[0]]
    rank = len(x.shape)
    key = (eqn.primitive.name, eqn.params["reverse"])
    if x.shape[axis] <= WINDOW:  # as it is, along its own axis
        return [rules.convert(g, g.add("reduce-window", x.shape, x.dtype, (x,), (*key, axis)), xs[0].dtype)]
    order = [*(d for d in range(rank) if d != axis), axis]
    rows = rules.transpose(g, x, order)
    out = _scan_windows(low, rows, key)
    return [rules.convert(g, rules.transpose(g, out, [order.index(d) for d in range(rank)]), xs[0].dtype)]


def _scan_windows(low: Lowering, x: Node, key: tuple[Any, ...]) -> Node:
    """Along the last dimension: within windows, then over the windows' ends, which are added."""
    g = low.g
    *lead, n = x.shape
    if n <= WINDOW:
        if "ends" not in key:
            return g.add("reduce-window", x.shape, x.dtype, (x,), key)
        longer = g.add("reduce-window", (*lead, n + 1), x.dtype, (x,), key)  # what comes before each, and all
        return g.add("slice", x.shape, x.dtype, (longer,), "head")
    parts = -(-n // WINDOW)
    if n % WINDOW:
        padded = (*lead, parts * WINDOW)
        x = g.add("pad", padded, x.dtype, (x, g.constant(0, x.dtype)), ("tail", parts * WINDOW - n))
    split = (*lead, parts, WINDOW)
    within = g.add("reduce-window", split, x.dtype, (rules.reshape(g, x, split),), key)
    ends = g.add("slice", (*lead, parts), x.dtype, (within,), "last")
    before = _scan_windows(low, ends, (*key, "ends"))
    spread = rules.broadcast(g, before, split, range(len(split) - 1))
    out = rules.reshape(g, rules.elementwise(g, "add", x.dtype, (within, spread)), (*lead, parts * WINDOW))
    if n % WINDOW:
        out = g.add("slice", (*lead, n), x.dtype, (out,), "head")
    return out


@rule("sort")
def _sort(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return low.multi("sort", eqn, xs)


@rule("debug_callback", "io_callback", "pure_callback", "debug_print")
def _callback(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    """A call of the host. It reads its operands from buffers, and stays though nothing reads its results."""
    if eqn.outvars:
        outs = low.multi("custom-call", eqn, xs, eqn.primitive.name)
        node = outs[0] if len(outs) == 1 else outs[0].operands[0]
    else:
        outs, node = [], low.g.new("custom-call", (), "uint8", tuple(xs), eqn.primitive.name)
    if eqn.effects:
        low.g.effects.append(node)
    return outs


@rule("top_k", "approx_top_k")
def _top_k(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return low.multi("custom-call", eqn, xs, "top_k")
