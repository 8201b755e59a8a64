"""Layouts: where a transposed value has to be written out.

The compiler gives a transpose the layout that makes it free, then every reader asks for its
operands in row-major order: what is read transposed is copied. One copy serves all readers (equal
copies are merged later). A loop takes its operands, and a program gives its results, in a tuple.
"""

from recoup._memory._graph import Graph, Node
from recoup._memory._tables import Tables


def assign_layouts(g: Graph, t: Tables) -> None:
    """Inserts a `copy` after each transpose. Leaves post-order and users to be rebuilt."""
    made: dict[int, Node] = {}
    for node in g.nodes:
        if node.op == "transpose":
            continue
        written = node.op == "while" and t.transposes_operands
        for i, x in enumerate(node.operands):
            if x.op == "transpose":
                node.operands[i] = _result(x, t) if written else _copy(g, x, made)
    g.outputs = [_result(x, t) if x.op == "transpose" else x for x in g.outputs]


def _result(x: Node, t: Tables) -> Node:
    """What is transposed and leaves through a tuple is written first: nothing is fused across the tuple."""
    if x.operands[0].op != "convolution" or t.transposes_convolutions:
        x = Node("copy", x.shape, x.dtype, [x], None, x.eqn, x.id)
    return Node("copy", x.shape, x.dtype, [x], "result", x.eqn, x.id)


def _copy(g: Graph, x: Node, made: dict[int, Node]) -> Node:
    copy = made.get(id(x))
    if copy is None:
        copy = made[id(x)] = Node("copy", x.shape, x.dtype, [x], None, x.eqn, x.id)
    return copy
