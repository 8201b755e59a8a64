"""Library fusions: products run alone in a library call; reductions take their neighbours with them.

From each reduction, last first, a fusion grows upwards through supported operations whose users are
all inside, and downwards while the result has one user. Each elementwise operation and reduction
needs enough elements to be worth a call. (The compiler's library rewriter, which runs after layouts
are known and before loop fusion.)
"""

from collections import deque

from recoup._memory._graph import Graph, Node
from recoup._memory._kernels import remove_user
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
    if op == "pad" and (len(node.operands[0].shape) < len(node.shape) or _spreads(node)):
        return False
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


def _spreads(pad: Node) -> bool:
    """Whether a padding also goes between elements."""
    return any(isinstance(c, tuple) and c[2] for c in pad.attrs)


class _Group:
    """A library fusion as it grows; lists of users change as the compiler changes them."""

    def __init__(self, start: Node):
        self.members: dict[int, Node] = {}
        self.inputs: dict[int, Node] = {}
        self.node = start  # replaced below
        self.root = start
        self.begin(start)

    def begin(self, root: Node) -> None:
        """A new fusion that ends in `root`, in its place; what was fused before moves into it."""
        old, inputs = self.node, list(self.inputs.values())
        fusion = Node("library", root.shape, root.dtype, [], None, root.eqn, root.id)
        fusion.users = root.users
        for u in root.users:
            u.operands = [fusion if x is root else x for x in u.operands]
        root.users = []
        self.inputs = {}
        self.node, self.root = fusion, root
        self.members = {id(root): root} | self.members
        for x in dict.fromkeys(root.operands):
            if x is old:
                continue
            self.read(x)
            remove_user(x.users, root)
        for x in inputs:
            self.read(x)
            remove_user(x.users, old)

    def read(self, x: Node) -> None:
        if id(x) not in self.inputs and id(x) not in self.members:
            self.inputs[id(x)] = x
            x.users.append(self.node)

    def absorb(self, producer: Node) -> None:
        """Pulls in a producer that nothing else reads."""
        self.members[id(producer)] = producer
        self.inputs.pop(id(producer), None)
        producer.users = []
        for x in dict.fromkeys(producer.operands):
            self.read(x)
            remove_user(x.users, producer)


def fuse_library(g: Graph, t: Tables) -> None:
    """Replaces groups of nodes by `library` nodes. Needs post-order and users; keeps users, not the order."""
    taken: set[int] = set()
    outputs = set(map(id, g.outputs))
    for node in reversed(g.nodes):
        if node.op not in _STARTS or id(node) in taken or not _supported(node, t):
            continue
        group = _Group(node)
        if node.op != "dot":
            _grow(group, taken, outputs, t)
        root, fusion = group.root, group.node
        taken.update(group.members)
        taken.add(id(fusion))
        fusion.attrs = (root.op, tuple(group.members.values()), root)
        fusion.operands = [x for x in group.inputs.values() if x.op != "constant" or x.shape]
        if id(root) in outputs:
            g.outputs = [fusion if x is root else x for x in g.outputs]
            outputs.add(id(fusion))


def _grow(group: _Group, taken: set[int], outputs: set[int], t: Tables) -> None:
    changed = True
    while changed:
        changed = False
        queue: deque[tuple[Node, bool]] = deque()
        visited: set[int] = set(group.members)

        def offer(operands: list[Node], users: list[Node], queue: deque[tuple[Node, bool]] = queue,
                  visited: set[int] = visited) -> None:  # fmt: skip
            for x in operands:
                if id(x) in visited or id(x) in taken or id(x) in outputs:
                    continue
                if all(u is group.node for u in x.users):
                    queue.append((x, True))
                    visited.add(id(x))
            if len(users) == 1 and id(group.root) not in outputs:
                user = users[0]
                if id(user) not in visited and id(user) not in taken:
                    queue.append((user, False))
                    visited.add(id(user))

        for m in list(group.members.values()):
            offer(m.operands, [])
        offer([], group.node.users)
        while queue:
            x, up = queue.popleft()
            if not _supported(x, t) or x.op in ("parameter", "constant"):
                continue
            changed = True
            if up:
                group.absorb(x)
                offer(x.operands, [])
            else:
                group.begin(x)
                offer([], group.node.users)
