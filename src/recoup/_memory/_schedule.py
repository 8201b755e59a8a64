"""The order in which the compiler runs operations: breadth first, or depth first where it is told to.

Breadth first, operations become ready when their operands have run and run in the order in which they
became ready; depth first, all that an operation needs runs right before it. What remains open are ties
(which of two users, or operands, comes first); `reverse` takes them the other way round.
"""

from collections import deque
from collections.abc import Iterator

from recoup._memory._copies import ALIASES
from recoup._memory._graph import Graph, Node

# Operations that read their operands, after this many, from a tuple: an operation that takes its turn too. (A
# branch is chosen by its first operand.)
PACKED = {"while": 0, "barrier": 0, "conditional": 1}
_WRITES_NOTHING = ALIASES | {"while", "conditional"}


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


def depth_first(g: Graph, *, reverse: bool = False) -> list[Node]:
    """The nodes in the order that the compiler's memory-optimized scheduler gives them. Needs `link`.

    Of an operation's operands, that one runs first behind which most readers share values, then the one
    behind which most bytes are written.
    """
    results = set(g.outputs)
    # both numbers, negative; what several paths lead to counts often
    behind: dict[Node, tuple[int, int]] = {}
    written = 0
    for node in g.nodes:
        if node.op in ("parameter", "constant"):
            behind[node] = (0, 0)
            continue
        shared = max(0, len(node.users) + (node in results) - 1)
        size = 0 if node.op in _WRITES_NOTHING else node.nbytes
        written += size
        for operand in set(node.operands):
            shared -= behind[operand][0]
            size -= behind[operand][1]
        behind[node] = (-min(shared, len(g.nodes)), -min(size, written))
    sign = -1 if reverse else 1

    def first(node: Node) -> tuple[int, int, int]:
        return (*behind[node], sign * node.id)

    unread = [n for n in g.nodes if not n.users and n not in results and n.op != "parameter"]
    order: dict[Node, None] = dict.fromkeys(g.params)
    entered = set(g.params)
    stack: list[tuple[Node | None, Iterator[Node]]] = [(None, iter([*unread, *sorted(results, key=first)]))]
    while stack:
        done, operands = stack[-1]
        x = next((x for x in operands if x not in entered), None)
        if x is None:
            stack.pop()
            if done is not None:
                order[done] = None
            continue
        entered.add(x)
        stack.append((x, iter(sorted(x.operands if x.after is None else [x.after, *x.operands], key=first))))
    return list(order)
