"""Library fusions: products run alone in a library call; reductions take their neighbours with them.

From each reduction, last first, a fusion grows upwards through supported operations whose users are
all inside, and downwards while the result has one user. Each elementwise operation and reduction
needs enough elements to be worth a call. (The compiler's library rewriter, which runs after layouts
are known and before loop fusion.)
"""

from collections import deque

from recoup._memory._graph import Graph, Node
from recoup._memory._rules import library_reduce
from recoup._memory._tables import Tables

_STARTS = ("dot", "reduce", "reduce-window")
_FLOATS = ("float32", "float64")
_ELEMENTS = ("float32", "float64", "bfloat16", "int8", "uint8")


def library_dot(node: Node, t: Tables) -> bool:
    """Whether a product runs as a library call."""
    half = all(x.dtype == "bfloat16" for x in node.operands)
    if not half and (node.dtype not in _FLOATS or any(x.dtype != node.dtype for x in node.operands)):
        return False
    nb, l_last, _, _ = node.attrs
    lhs, rhs = node.operands
    if len(lhs.shape) != nb + 2 or len(rhs.shape) != nb + 2 or not l_last:
        return False
    return max(*node.shape[nb:], lhs.shape[-1]) >= t.library_min_dot


def _big(node: Node, t: Tables) -> bool:
    return node.size >= t.library_min_elements or any(x.size >= t.library_min_elements for x in node.operands)


def _supported(node: Node, t: Tables) -> bool:
    op = node.op
    if op == "broadcast":
        return node.dtype in _FLOATS and list(node.attrs) == sorted(node.attrs)
    if op in ("reshape", "pad", "iota"):
        return node.dtype in _FLOATS
    if op == "dot":
        return library_dot(node, t)
    if op == "reduce" or op == "reduce-window":
        x = node.operands[0]
        return len(node.operands) == 1 and x.dtype == node.dtype and library_reduce(x, node.attrs[1])
    return (
        op in t.library_ops
        and node.dtype in _ELEMENTS
        and all(x.dtype in _ELEMENTS for x in node.operands)
        and _big(node, t)
    )


def fuse_library(g: Graph, t: Tables) -> None:
    """Replaces groups of nodes by `library` nodes. Needs post-order and users; leaves both to be rebuilt."""
    taken: dict[int, list[Node]] = {}  # node -> the group it is in (a shared list; the root is group[0])
    roots: dict[int, Node] = {}
    outputs = set(map(id, g.outputs))
    for node in reversed(g.nodes):
        if node.op not in _STARTS or id(node) in taken or not _supported(node, t):
            continue
        group = {id(node): node}
        root = node
        if node.op != "dot":
            root = _grow(group, root, taken, outputs, t)
        members = list(group.values())
        for m in members:
            taken[id(m)] = members
        inputs: list[Node] = []
        have: set[int] = set()
        for m in members:
            for x in m.operands:
                if id(x) not in group and id(x) not in have and not (x.op == "constant" and not x.shape):
                    have.add(id(x))
                    inputs.append(x)
        fusion = Node(
            "library", root.shape, root.dtype, inputs, (root.op, tuple(members), root), root.eqn, root.id
        )
        roots[id(root)] = fusion
    if not roots:
        return
    for node in g.nodes:
        node.operands = [roots.get(id(x), x) for x in node.operands]
    for fusion in roots.values():
        fusion.operands = [roots.get(id(x), x) for x in fusion.operands]
    g.outputs = [roots.get(id(x), x) for x in g.outputs]


def _grow(
    group: dict[int, Node], root: Node, taken: dict[int, list[Node]], outputs: set[int], t: Tables
) -> Node:
    changed = True
    while changed:
        changed = False
        queue: deque[tuple[Node, bool]] = deque()
        visited: set[int] = set(group)

        def offer(node: Node, up: bool, down: bool, queue: deque[tuple[Node, bool]] = queue,
                  visited: set[int] = visited) -> None:  # fmt: skip
            if up:
                for x in node.operands:
                    if id(x) in visited or id(x) in taken or id(x) in outputs:
                        continue
                    if all(id(u) in group for u in x.users):
                        queue.append((x, True))
                        visited.add(id(x))
            if down and len(node.users) == 1 and id(node) not in outputs:
                user = node.users[0]
                if id(user) not in visited and id(user) not in taken:
                    queue.append((user, False))
                    visited.add(id(user))

        for m in list(group.values()):
            offer(m, True, False)
        offer(root, False, True)
        while queue:
            x, up = queue.popleft()
            if not _supported(x, t) or x.op in ("parameter", "constant"):
                continue
            group[id(x)] = x
            changed = True
            if not up:
                root = x
            offer(x, up, not up)
    return root
