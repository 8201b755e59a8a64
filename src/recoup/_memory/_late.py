"""Rules that need to know who reads a value: applied once the graph is complete.

`add(scatter-add(0, i, u), x)` becomes `scatter-add(x, i, u)` when nothing else reads the scatter and
x is no scatter itself.
"""

from recoup._memory import _rules as rules
from recoup._memory._graph import Graph, Node


def simplify_late(g: Graph) -> None:
    """Rewrites in place. Needs post-order and users; the caller rebuilds both."""
    outputs = set(map(id, g.outputs))
    for node in g.nodes:
        if node.op == "add" and len(node.operands) == 2:
            for scatter, x in (node.operands, node.operands[::-1]):
                if (
                    x.op != "scatter"
                    and _adds_to_zero(scatter)
                    and len(scatter.users) == 1
                    and id(scatter) not in outputs
                ):
                    node.op, node.attrs = "scatter", scatter.attrs
                    node.operands = [x, *scatter.operands[1:]]
                    break


def _adds_to_zero(node: Node) -> bool:
    return (
        node.op == "scatter" and node.attrs[0] == "scatter-add" and rules.scalar_value(node.operands[0]) == 0
    )
