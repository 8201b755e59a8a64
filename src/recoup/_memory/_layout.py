"""Layouts: where a transposed value has to be written out.

The compiler gives a transpose the layout that makes it free, then every reader asks for its
operands in row-major order: what is read transposed is copied. One copy serves all readers (equal
copies are merged later).
"""

from recoup._memory._graph import Graph, Node
from recoup._memory._tables import Tables


def assign_layouts(g: Graph, t: Tables) -> None:
    """Inserts a `copy` after each transpose."""
    made: dict[int, Node] = {}
    for node in g.alive():
        if node.op == "transpose":
            continue
        for i, x in enumerate(node.operands):
            if x.op == "transpose":
                node.operands[i] = _copy(g, x, made)
    g.outputs = [_result(x, t) if x.op == "transpose" else x for x in g.outputs]


def _result(x: Node, t: Tables) -> Node:
    """A transposed result leaves through a tuple, which nothing is fused across: it is written first."""
    if x.operands[0].op != "convolution" or t.transposes_convolutions:
        x = Node("copy", x.shape, x.dtype, [x], None, x.eqn, x.id)
    return Node("copy", x.shape, x.dtype, [x], "result", x.eqn, x.id)


def _copy(g: Graph, x: Node, made: dict[int, Node]) -> Node:
    copy = made.get(id(x))
    if copy is None:
        copy = made[id(x)] = Node("copy", x.shape, x.dtype, [x], None, x.eqn, x.id)
    return copy
