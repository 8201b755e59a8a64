"""The order in which the compiler runs operations: breadth first.

Operations become ready when their operands have run and run in the order in which they became
ready. What remains open are ties (which of two users comes first); `reverse` takes them the other
way round.
"""

from collections import deque

from recoup._memory._graph import Graph, Node

# Operations that read their operands, after this many, from a tuple: an operation that takes its turn too. (A
# branch is chosen by its first operand.)
PACKED = {"while": 0, "barrier": 0, "conditional": 1}


def breadth_first(g: Graph, *, reverse: bool = False) -> list[Node]:
    """The nodes in the order in which they run. Needs `link`."""
    waiting: dict[Node, int] = {}  # operands that have not run yet
    tuples: dict[Node, int] = {}  # the same of a node's tuple
    ready: deque[tuple[Node, bool]] = deque()  # and whether it is the node's tuple
    for node in g.nodes:
        alone = PACKED.get(node.op)
        if alone is None or len(node.operands) <= alone + 1:
            n = len(set(map(id, node.operands)))
        else:
            n = alone + 1
            tuples[node] = len(set(map(id, node.operands[alone:])))
        waiting[node] = n
        if n == 0:
            ready.append((node, False))
    if reverse:
        ready.reverse()
    order = []
    while ready:
        node, packs = ready.popleft()
        if packs:
            waiting[node] -= 1
            if not waiting[node]:
                ready.append((node, False))
            continue
        order.append(node)
        for user in reversed(node.users) if reverse else node.users:
            if user in tuples:
                alone = PACKED[user.op]
                if any(x is node for x in user.operands[alone:]):
                    tuples[user] -= 1
                    if not tuples[user]:
                        ready.append((user, True))
                if not alone or user.operands[0] is not node:
                    continue
            waiting[user] -= 1
            if not waiting[user]:
                ready.append((user, False))
    return order
