"""Layouts: where a transposed value has to be written out.

The compiler gives a transpose the layout that makes it free, then every reader asks for its
operands in row-major order: what is read transposed is copied. One copy serves all readers (equal
copies are merged later).
"""

from recoup._memory._graph import Graph, Node, post_order


def assign_layouts(g: Graph) -> None:
    """Inserts a `copy` after each transpose."""
    made: dict[int, Node] = {}
    for node in post_order(g.outputs):
        if node.op == "transpose":
            continue
        for i, x in enumerate(node.operands):
            if x.op == "transpose":
                node.operands[i] = _copy(g, x, made)
    # results leave through a tuple, which nothing is fused across: the transposed value is written first
    g.outputs = [
        Node("copy", x.shape, x.dtype, [x], "result", x.eqn, x.id) if x.op == "transpose" else x
        for x in g.outputs
    ]


def _copy(g: Graph, x: Node, made: dict[int, Node]) -> Node:
    copy = made.get(id(x))
    if copy is None:
        copy = made[id(x)] = Node("copy", x.shape, x.dtype, [x], None, x.eqn, x.id)
    return copy
