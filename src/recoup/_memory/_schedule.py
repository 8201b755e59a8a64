"""The order in which the compiler runs operations: breadth first.

Operations become ready when their operands have run and run in the order in which they became
ready. What remains open are ties (which of two users comes first); `reverse` takes them the other
way round.
"""

from collections import deque

from recoup._memory._graph import Graph, Node

# Operations that read their operands from a tuple, which is an operation that takes its turn too; if they have
# more operands than this.
PACKED = {"while": 0, "barrier": 1, "conditional": 2}


def breadth_first(g: Graph, *, reverse: bool = False) -> list[Node]:
    """The nodes in the order in which they run. Needs `link`."""
    waiting = {}
    ready: deque[Node] = deque()
    packed: set[Node] = set()  # whose tuple has had its turn
    for node in g.nodes:
        n = len(set(map(id, node.operands)))
        waiting[id(node)] = n
        if n == 0:
            ready.append(node)
    if reverse:
        ready.reverse()
    order = []
    while ready:
        node = ready.popleft()
        if node.op in PACKED and node not in packed and len(node.operands) > PACKED[node.op]:
            packed.add(node)
            ready.append(node)
            continue
        order.append(node)
        for user in reversed(node.users) if reverse else node.users:
            waiting[id(user)] -= 1
            if not waiting[id(user)]:
                ready.append(user)
    return order
