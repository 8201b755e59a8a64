"""Rules that need to know who reads a value: applied once the graph is complete.

`add(scatter-add(0, i, u), x)` becomes `scatter-add(x, i, u)` when nothing else reads the scatter and x is no
scatter itself; `add(dynamic-update-slice(0, u, i), x)` adds to the slice of x and writes that.
Reshapes sink below arithmetic when all that read them can take what was reshaped instead (the compiler's
reshape mover).
"""

from recoup._memory import _rules as rules
from recoup._memory._graph import Graph, Node, Shape
from recoup._memory._tables import ELEMENTWISE


def simplify_late(g: Graph) -> None:
    """Rewrites in place. Needs post-order and users, and leaves both."""
    outputs = set(map(id, g.outputs))
    changed = False
    for node in g.nodes:
        if node.op == "add" and len(node.operands) == 2:
            for scatter, x in (node.operands, node.operands[::-1]):
                alone = len(scatter.users) == 1 and id(scatter) not in outputs
                if x.op != "scatter" and _adds_to_zero(scatter) and alone:
                    node.op, node.attrs = "scatter", scatter.attrs
                    node.operands = [x, *scatter.operands[1:]]
                    changed = True
                    break
                if alone and _writes_into_zero(scatter) and not _writes_into_zero(x):
                    update, *at = scatter.operands[1:]
                    here = g.add("dynamic-slice", update.shape, x.dtype, (x, *at), "written")
                    total = rules.elementwise(g, "add", x.dtype, (here, update))
                    node.op, node.attrs = scatter.op, scatter.attrs
                    node.operands = [x, total, *at]
                    changed = True
                    break
    while _sink_reshapes(g):
        g.prune()
        changed = False
    if changed:
        g.prune()


def _adds_to_zero(node: Node) -> bool:
    return (
        node.op == "scatter" and node.attrs[0] == "scatter-add" and rules.scalar_value(node.operands[0]) == 0
    )


def _writes_into_zero(node: Node) -> bool:
    return node.op == "dynamic-update-slice" and rules.scalar_value(node.operands[0]) == 0


def _sink_reshapes(g: Graph) -> bool:
    """One round; whether anything changed. Leaves post-order and users to be rebuilt."""
    candidates: dict[Node, Shape] = {}
    for node in g.nodes:
        inner = _reshaped(node)
        if inner is not None:
            candidates[node] = inner
    outputs = set(g.outputs)
    stuck = True
    while stuck and candidates:
        stuck = False
        for node in list(candidates):
            for x in node.operands:
                if x.op == "reshape" and (x in outputs or any(u not in candidates for u in x.users)):
                    del candidates[node]
                    stuck = True
                    break
    for node, inner in candidates.items():
        operands = tuple([_below(g, x, inner) for x in node.operands])
        below = g.add(node.op, inner, node.dtype, operands, node.attrs)
        node.op, node.operands, node.attrs = "reshape", [below], None
    if candidates:
        _merge(g)
    return bool(candidates)


def _reshaped(node: Node) -> Shape | None:
    """The shape that all the operands had before they were reshaped, if they all were."""
    if node.op not in ELEMENTWISE or not node.shape:
        return None
    inner: Shape | None = None
    for x in node.operands:
        if x.op == "reshape" and not rules.is_unit_reshape(x):
            if inner is not None and x.operands[0].shape != inner:
                return None
            inner = x.operands[0].shape
        elif not rules.is_scalar_like(x):
            return None
    return inner


def _below(g: Graph, x: Node, inner: Shape) -> Node:
    if x.op == "reshape":
        g.moved.add(x.operands[0])
        return x.operands[0]
    return rules.broadcast(g, x if not x.shape else x.operands[0], inner, ())


def _merge(g: Graph) -> None:
    """A reshape of a reshape is one, or none."""
    for node in g.nodes:
        for i, x in enumerate(node.operands):
            if x.op == "reshape" and x.operands[0].op == "reshape" and not rules.is_unit_reshape(x):
                x.operands = [x.operands[0].operands[0]]
                if x.operands[0].shape == x.shape:
                    node.operands[i] = x.operands[0]
