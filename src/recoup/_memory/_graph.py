"""A small graph in the compiler's vocabulary: what the passes of the memory model work on. No JAX.

A `Node` is one instruction. Shapes leave out dimensions of size 1, so that reshapes which only add
or drop them vanish, as they do in the compiler (whose simplifier moves them out of the way).
`Graph.add` hash-conses: equal instructions on equal operands are one node, which is the compiler's
common-subexpression elimination.
"""

from math import prod
from typing import Any

Shape = tuple[int, ...]

ITEM_BYTES = {
    "bool": 1, "int4": 1, "uint4": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32":
    4, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


FOLDED_ELEMENTS = 45_000_000  # larger results are not computed by the compiler
_UNFOLDED = frozenset({"broadcast", "reshape", "transpose", "iota", "custom-call", "opaque", "threefry"})


class Node:
    """One instruction: an operation, its result's shape and dtype, its operands and its users."""

    __slots__ = (
        "after", "attrs", "bodies", "called", "dtype", "eqn", "fused", "id", "nbytes", "op", "operands",
        "shape", "size", "users",
    )  # fmt: skip

    def __init__(
        self, op: str, shape: Shape, dtype: str, operands: list["Node"], attrs: Any, eqn: int, id: int
    ):
        self.op = op
        self.shape = shape
        self.dtype = dtype
        self.operands = operands
        self.attrs = attrs
        self.eqn = eqn
        self.id = id
        self.size = prod(shape)
        self.nbytes = self.size * ITEM_BYTES.get(dtype, 1)
        self.users: list[Node] = []
        self.bodies: list[Graph] = []
        self.fused: Any = None
        self.after: Node | None = None  # what must run before, though its result is not read
        self.called = False  # whether a function that the program calls made it

    def __repr__(self) -> str:
        args = ",".join(str(o.id) for o in self.operands)
        return f"%{self.id}={self.op}:{self.dtype}{list(self.shape)}({args}){self.attrs or ''}"


class Graph:
    """A computation: parameters, nodes in the order they were made, outputs."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.params: list[Node] = []
        self.outputs: list[Node] = []
        self.effects: list[Node] = []  # what must run though no output needs it
        self._next = 0
        self._seen: dict[Any, Node] = {}
        self.native_half = False  # whether bfloat16 is moved and multiplied as it is (see `_tables`)
        self.merges_constants = False  # whether x * 2.0 * 3.0 becomes x * 6.0
        self.sunk: set[Node] = set()  # transposes that arithmetic has moved below
        self.moved: set[Node] = set()  # whose reshapes arithmetic has moved away
        self.host_apart = False  # whether host memory is another than the device's
        self.entry = False  # whether it is the program itself, not a loop's body or a branch
        self.eqn = -1  # the top-level equation now being lowered
        self.called = False  # whether it is in a function that the program calls
        self.brought: set[Node] = set()  # loops that were moved out of a loop into it

    def add(
        self, op: str, shape: Shape, dtype: str, operands: tuple[Node, ...] = (), attrs: Any = None
    ) -> Node:
        """The node for this instruction: an equal one that exists, or a new one.

        What has no elements, or is made from constant arrays, is a constant.
        """
        if 0 in shape:
            op, operands, attrs = "constant", (), None
        elif operands and op not in _UNFOLDED and _all_constant(operands) and prod(shape) <= FOLDED_ELEMENTS:
            return self.new("constant", shape, dtype)
        key = (op, shape, dtype, tuple([o.id for o in operands]), attrs)
        node = self._seen.get(key)
        if node is None:
            node = self.new(op, shape, dtype, operands, attrs)
            self._seen[key] = node
        return node

    def new(
        self, op: str, shape: Shape, dtype: str, operands: tuple[Node, ...] = (), attrs: Any = None
    ) -> Node:
        """A node that is never shared: parameters, loops, barriers, anything with an effect."""
        node = Node(op, shape, dtype, list(operands), attrs, self.eqn, self._next)
        node.called = self.called
        self._next += 1
        self.nodes.append(node)
        return node

    def param(self, shape: Shape, dtype: str) -> Node:
        node = self.new("parameter", shape, dtype, (), len(self.params))
        self.params.append(node)
        return node

    def constant(self, value: Any, dtype: str) -> Node:
        """A scalar constant."""
        return self.add("constant", (), dtype, (), value)

    def scalar(self, value: Any, shape: Shape, dtype: str) -> Node:
        """A scalar constant broadcast to `shape`."""
        c = self.constant(value, dtype)
        return self.add("broadcast", shape, dtype, (c,), ()) if shape else c

    def alive(self) -> list[Node]:
        """What the outputs and the effects need, operands before users."""
        return post_order([*self.effects, *self.outputs])

    def prune(self) -> None:
        """Drops what no output needs, puts the nodes in depth-first post-order, and fills in the users."""
        self.nodes = self.alive()
        seen = set(map(id, self.nodes))
        self.nodes = [p for p in self.params if id(p) not in seen] + self.nodes
        link(self)

    def reorder(self) -> None:
        """As `prune`, but users that are there already keep their order."""
        alive = self.alive()
        seen = set(map(id, alive))
        self.nodes = [p for p in self.params if id(p) not in seen] + alive
        relink(self)

    def renumber(self) -> None:
        """Orders the nodes: the compiler's module arrives in post-order.

        It starts from what nothing reads, in the program's order: loops, whose counters nothing reads, then
        the results.
        """
        loops = [n for n in self.nodes if n.op == "while" and not n.called and _leaves_unread(n)]
        loops.sort(key=lambda n: n.id)
        nodes = post_order([*loops, *self.effects, *self.outputs])
        seen = set(map(id, nodes))
        self.nodes = [p for p in self.params if id(p) not in seen] + nodes
        for i, node in enumerate(self.nodes):
            node.id = i
        link(self)


def _leaves_unread(loop: Node) -> bool:
    """Whether nothing reads some value that the loop returns."""
    if loop.attrs:  # of known length: its counter
        return True
    read = {u.attrs for u in loop.users}
    body = loop.bodies[0]
    return any(k not in read and x is not body.params[k] for k, x in enumerate(body.outputs))


def _all_constant(operands: tuple[Node, ...]) -> bool:
    """Whether all are constants or spread from constants, and one is an array."""
    whole = False
    for x in operands:
        if x.op == "broadcast":
            x = x.operands[0]
        elif x.op == "constant" and x.shape:
            whole = True
        if x.op != "constant":
            return False
    return whole


def post_order(outputs: list[Node]) -> list[Node]:
    """Operands before users, depth first from the outputs, as the compiler's own post-order."""
    done: set[Node] = set()
    order: list[Node] = []
    for root in outputs:
        if root in done:
            continue
        stack = [(root, iter(root.operands if root.after is None else [root.after, *root.operands]))]
        while stack:
            node, operands = stack[-1]
            for x in operands:
                if x not in done:
                    stack.append((x, iter(x.operands if x.after is None else [x.after, *x.operands])))
                    break
            else:
                stack.pop()
                done.add(node)
                order.append(node)
    return order


def relink(graph: Graph) -> None:
    """As `link`, but users that are there already keep their order; new ones come after them."""
    found: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for operand in node.operands:
            users = found[operand]
            if not users or users[-1] is not node:
                users.append(node)
    for node, users in found.items():
        if node.users != users:
            new = dict.fromkeys(users)
            kept = [u for u in node.users if new.pop(u, node) is None]
            node.users = kept + list(new)


def link(graph: Graph) -> None:
    """Rebuilds the lists of users: each user once, in the order in which they were made.

    (The compiler appends a new user and lets it take the place of the one it replaces, so rewriting keeps
    this order.)
    """
    for node in graph.nodes:
        node.users = []
    for node in sorted(graph.nodes, key=lambda n: n.id):
        last = None
        for operand in node.operands:
            if operand is not last and (not operand.users or operand.users[-1] is not node):
                operand.users.append(node)
            last = operand
    for node in graph.moved:  # the last reader took the place of the reshape, which came first
        if len(node.users) > 1:
            node.users.insert(0, node.users.pop())
