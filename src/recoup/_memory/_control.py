"""Loops and branches: a scan or while becomes one `while` node with a body of its own, a cond a
`conditional`.

A scan's loop carries its constants and stacked inputs unchanged, its carries, and one buffer for
each stacked output, started as zeros and updated in place. `while` attrs are the trip count (0:
unknown).
"""

from typing import Any

from recoup import _compat
from recoup._memory import _rules as rules
from recoup._memory._graph import Graph, Node
from recoup._memory._lower import Lowering, full_shape, rule, squeeze
from recoup._memory._shapes import strip


def loop(low: Lowering, inits: list[Node], body: Graph, trips: int, *others: Graph) -> list[Node]:
    """A `while` node and its results. `others`: computations it calls beside its body."""
    node = low.g.new("while", (0,), "uint8", tuple(inits), trips)
    node.bodies = [body, *others]
    if body.effects:
        low.g.effects.append(node)
    same = [out is param for out, param in zip(body.outputs, body.params, strict=True)]
    return [x if same[i] else low.g.new("gte", x.shape, x.dtype, (node,), i) for i, x in enumerate(inits)]


@rule("scan")
def _scan(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    parts = _compat.scan_parts(eqn)
    inner, inner_consts = _compat.open_jaxpr(parts.body)
    nc, nk = parts.num_consts, parts.num_carry
    everything, carries, stacked = xs[:nc], xs[nc : nc + nk], xs[nc + nk :]
    row_dtypes = [x.dtype for x in stacked]
    # constants, and broadcasts of them that no call made, are made again inside the loop
    sunk = [
        rules.is_scalar_like(x)
        and rules.scalar_value(x) is not None
        and (not x.shape or v not in low.foreign)
        for v, x in zip(eqn.invars, everything, strict=False)
    ]
    consts = [x for x, s in zip(everything, sunk, strict=True) if not s]
    nc = len(consts)
    outs = eqn.outvars[nk:]
    length, unroll = parts.length, parts.unroll
    if unroll > 1 and length > 1:
        return _unrolled(low, eqn, xs, parts, min(unroll, length))
    if length == 0:
        return carries + [low.g.scalar(0, squeeze(s), d) for s, d in (full_shape(v.aval) for v in outs)]
    if length == 1:  # the compiler takes a loop of one trip apart
        heads = [rules.reshape(low.g, x, x.shape) for x in stacked]
        return low.jaxpr(inner, [low.const(c) for c in inner_consts], [*everything, *carries, *heads])
    accs = [low.g.scalar(0, squeeze(s), d) for s, d in (full_shape(v.aval) for v in outs)]
    counter = low.g.constant(0, "int32")
    # half-precision rows are sliced in float32, and widening the whole array is moved out of the loop
    stacked = [
        rules.widen(low.g, x) if x.dtype == "bfloat16" and not low.g.native_half else x for x in stacked
    ]
    inits = [counter, *consts, *carries, *stacked, *accs]
    child = low.child(low.g.eqn)
    g = child.g
    params = [g.param(x.shape, x.dtype) for x in inits]
    i, p_consts = params[0], params[1 : 1 + nc]
    kept = iter(p_consts)
    inside = [
        g.scalar(rules.scalar_value(x), x.shape, x.dtype) if s else next(kept)
        for x, s in zip(everything, sunk, strict=True)
    ]
    p_carries = params[1 + nc : 1 + nc + nk]
    p_stacked = params[1 + nc + nk : 1 + nc + nk + len(stacked)]
    p_accs = params[1 + nc + nk + len(stacked) :]
    index = i
    if parts.reverse:
        index = g.add("subtract", (), "int32", (g.constant(length - 1, "int32"), i))
    rows = [
        rules.convert(g, g.add("dynamic-slice", x.shape[1:], x.dtype, (x, index), "row"), dtype)
        for x, dtype in zip(p_stacked, row_dtypes, strict=True)
    ]
    values = child.jaxpr(inner, [child.const(c) for c in inner_consts], [*inside, *p_carries, *rows])
    new_carries, ys = values[:nk], values[nk:]
    new_accs = [
        g.new("dynamic-update-slice", a.shape, a.dtype, (a, y, index), "row")
        for a, y in zip(p_accs, ys, strict=True)
    ]
    step = g.add("add", (), "int32", (i, g.constant(1, "int32")))
    g.outputs = [step, *p_consts, *new_carries, *p_stacked, *new_accs]
    _hoist(low, inits, g)
    result = loop(low, inits, g, length)
    first = 1 + nc + nk + len(stacked)
    return [*result[1 + nc : 1 + nc + nk], *result[first : first + len(accs)]]


def _unrolled(low: Lowering, eqn: Any, xs: list[Node], parts: Any, unroll: int) -> list[Node]:
    """A scan that takes several rows a trip: a loop over groups of rows, then the rows that are left."""
    inner, inner_consts = _compat.open_jaxpr(parts.body)
    nc, nk, length = parts.num_consts, parts.num_carry, parts.length
    trips, left = divmod(length, unroll)
    if trips == 1:  # the compiler takes a loop of one trip apart
        trips, left = 0, length
    consts, carries, stacked = xs[:nc], xs[nc : nc + nk], xs[nc + nk :]

    def several(at: Lowering, count: int, consts: list[Node], carries: list[Node], rows: list[Node]) -> Any:
        """The new carries and the stacked results of `count` rows."""
        made: list[list[Node]] = []
        for step in range(count):
            i = count - 1 - step if parts.reverse else step
            row = [strip(at.g, x, x.shape, 0, i, 1) for x in rows] if count > 1 else rows
            values = at.jaxpr(inner, [at.const(c) for c in inner_consts], [*consts, *carries, *row])
            carries = values[:nk]
            made.append(values[nk:])
        if parts.reverse:
            made.reverse()
        if count == 1:
            return carries, made[0]
        ys = []
        for same in zip(*made, strict=True):
            ys.append(rules.concatenate(at.g, (count, *same[0].shape), same[0].dtype, same, 0))
        return carries, ys

    cut = left if parts.reverse else length - left
    sides: tuple[list[Node], list[Node]] = ([], [])  # the rows of the loop, and those that are left
    for x in stacked:
        rest = x.shape[1:]
        if trips and left:
            head = strip(low.g, x, x.shape, 0, 0, cut)
            tail = strip(low.g, x, x.shape, 0, cut, length - cut)
            both = (tail, head) if parts.reverse else (head, tail)
        else:
            both = (x, x)
        sides[0].append(rules.reshape(low.g, both[0], (trips, unroll, *rest)) if trips else both[0])
        sides[1].append(rules.reshape(low.g, both[1], rest) if left == 1 else both[1])
    pieces: list[list[Node]] = []
    if trips:
        shapes = [full_shape(v.aval) for v in eqn.outvars[nk:]]
        accs = [low.g.scalar(0, (trips, unroll, *squeeze(s[1:])), d) for s, d in shapes]
        inits = [low.g.constant(0, "int32"), *consts, *carries, *sides[0], *accs]
        child = low.child(low.g.eqn)
        g = child.g
        params = [g.param(x.shape, x.dtype) for x in inits]
        i, p_consts, p_carries = params[0], params[1 : 1 + nc], params[1 + nc : 1 + nc + nk]
        p_rows = params[1 + nc + nk : 1 + nc + nk + len(stacked)]
        p_accs = params[1 + nc + nk + len(stacked) :]
        index = g.add("subtract", (), "int32", (g.constant(trips - 1, "int32"), i)) if parts.reverse else i
        rows = [g.add("dynamic-slice", x.shape[1:], x.dtype, (x, index), "row") for x in p_rows]
        new, ys = several(child, unroll, p_consts, p_carries, rows)
        updated = [
            g.new("dynamic-update-slice", a.shape, a.dtype, (a, y, index), "row")
            for a, y in zip(p_accs, ys, strict=True)
        ]
        step = g.add("add", (), "int32", (i, g.constant(1, "int32")))
        g.outputs = [step, *p_consts, *new, *p_rows, *updated]
        _hoist(low, inits, g)
        result = loop(low, inits, g, trips)
        carries = result[1 + nc : 1 + nc + nk]
        first = 1 + nc + nk + len(stacked)
        stacks = result[first : first + len(accs)]
        pieces.append([rules.reshape(low.g, y, (trips * unroll, *y.shape[2:])) for y in stacks])
    if left:
        carries, ys = several(low, left, consts, carries, sides[1])
        pieces.append(ys)
    if len(pieces) == 1:
        return [*carries, *pieces[0]]
    order = pieces[::-1] if parts.reverse else pieces
    joined = []
    for v, a, b in zip(eqn.outvars[nk:], *order, strict=True):
        shape, dtype = full_shape(v.aval)
        joined.append(rules.concatenate(low.g, squeeze(shape), dtype, (a, b), 0))
    return [*carries, *joined]


# Not worth moving out of a loop alone.
_CHEAP = frozenset(
    {"reshape", "broadcast", "iota", "reverse", "slice", "transpose", "constant", "gte", "barrier", "copy"}
)


def _hoist(low: Lowering, inits: list[Node], body: Graph, *others: Graph) -> None:
    """Moves out of the loop what does not change in it, as new values that the loop hands through."""
    outside: dict[Node, Node] = {}
    for param, init, out in zip(body.params, inits, body.outputs, strict=True):
        if out is param:
            outside[param] = init
    found: list[Node] = []
    movable: set[Node] = set()
    effects = set(body.effects)
    for node in body.nodes:
        if node.op in ("parameter", "barrier", "opaque", "custom-call") or not node.operands:
            continue
        if node in effects or (not low.far and node in body.brought):
            continue
        if all(x in outside or x in movable or x.op in ("constant", "iota") for x in node.operands):
            movable.add(node)
            several = node.bodies or (node.op == "sort" and node.shape == (0,))
            if node.op == "gte" or (node.op not in _CHEAP and not several):
                found.append(node)

    def rebuild(node: Node) -> Node:
        made = outside.get(node)
        if made is None:
            operands = tuple([rebuild(x) for x in node.operands])
            build = low.g.new if node.bodies or node.op == "gte" else low.g.add
            made = build(node.op, node.shape, node.dtype, operands, node.attrs)
            made.bodies = node.bodies
            outside[node] = made
            if node.bodies:
                low.g.brought.add(made)
                if node in body.brought:
                    low.onward.append(made)
        return made

    needed = set(body.outputs)
    for node in body.nodes:
        if node not in movable or node.op in _CHEAP:
            needed.update(node.operands)
    for node in found:
        if node in needed:
            inits.append(rebuild(node))
            for g in others:
                g.param(node.shape, node.dtype)
            node.op, node.operands, node.attrs = "parameter", [], len(body.params)
            body.params.append(node)
            body.outputs.append(node)


@rule("while")
def _while(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    p = eqn.params
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    cond_consts, body_consts, carries = xs[:n_cond], xs[n_cond : n_cond + n_body], xs[n_cond + n_body :]
    inits = [*cond_consts, *body_consts, *carries]
    graphs = []
    for name, used in (("body_jaxpr", slice(n_cond, None)), ("cond_jaxpr", None)):
        inner, inner_consts = _compat.open_jaxpr(p[name])
        child = low.child(low.g.eqn)
        params = [child.g.param(x.shape, x.dtype) for x in inits]
        args = params[used] if used is not None else [*params[:n_cond], *params[n_cond + n_body :]]
        values = child.jaxpr(inner, [child.const(c) for c in inner_consts], args)
        child.g.outputs = [*params[: n_cond + n_body], *values] if used is not None else values
        graphs.append(child.g)
    count = len(inits)
    _hoist(low, inits, *graphs)
    return loop(low, inits, graphs[0], 0, graphs[1])[n_cond + n_body : count]


@rule("cond")
def _cond(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    node = low.g.new("conditional", (0,), "uint8", tuple(xs))
    for branch in eqn.params["branches"]:
        inner, inner_consts = _compat.open_jaxpr(branch)
        child = low.child(low.g.eqn)
        params = [child.g.param(x.shape, x.dtype) for x in xs[1:]]
        child.g.outputs = child.jaxpr(inner, [child.const(c) for c in inner_consts], params)
        node.bodies.append(child.g)
    if any(g.effects for g in node.bodies):
        low.g.effects.append(node)
    outs = [full_shape(v.aval) for v in eqn.outvars]
    return [low.g.new("gte", squeeze(s), d, (node,), i) for i, (s, d) in enumerate(outs)]
