"""Loop fusion: which results never get a buffer.

The compiler walks the operations from the last to the first and pulls each operand's producer into
its consumer when a kernel can hold it. Cheap producers that read at most one large operand are
recomputed in every consumer; expensive ones (exp, tanh, division ...) are never computed twice;
others only move if they can move into all their consumers on all paths. (Its instruction fusion
with duplication, and the CPU's own conditions.)

A fused consumer becomes a `fusion` node: operands from outside, and in `fused` a `Kernel`.
"""

from typing import Any

from recoup._memory._graph import Graph, Node, post_order
from recoup._memory._tables import ELEMENTWISE, EXPENSIVE, LOOP_FUSIBLE, REUSES, Tables

NOT_FUSIBLE = frozenset(
    {"parameter", "gte", "barrier", "while", "conditional", "opaque", "custom-call", "library", "sort"}
)

# Operations that open a block of their own inside a kernel: emitted once or not at all.
OPENS_BLOCK = frozenset({"concatenate", "dot", "dynamic-update-slice", "pad", "reduce", "reduce-window"})


class Kernel:
    """What a fusion holds."""

    __slots__ = ("elementwise", "members", "readers", "reads", "reductions", "reused", "root", "usage")

    def __init__(self, root: Node):
        self.root = root
        self.members: list[Node] = [root]
        self.reductions = int(root.op == "reduce")
        # how often each inner operation is emitted, and by which inner operations each operand is indexed
        self.usage = [1, 1]  # 0: the fusion itself, 1: the root
        self.reads: dict[int, set[int]] = {}
        self.reused = {id(x) for x in root.operands} if root.op in REUSES else set()
        self.readers: dict[int, int] = {}  # inner operations that read each operand
        self.elementwise: dict[int, bool] = {}
        for x in root.operands:
            same = root.op == "transpose" or x.shape == root.shape
            self.reads.setdefault(id(x), set()).add(0 if same else 1)
            self.readers[id(x)] = 1
            self.elementwise[id(x)] = self.elementwise.get(id(x), True) and reads_in_place(root, x)

    def absorb(self, p: Node) -> None:
        users = self.reads.pop(id(p))
        self.readers.pop(id(p))
        through = self.elementwise.pop(id(p))
        self.members.append(p)
        self.reductions += p.op == "reduce"
        me = len(self.usage)
        self.usage.append(sum([self.usage[u] for u in users]))
        if id(p) in self.reused:
            self.reused.discard(id(p))
            self.reused.update([id(x) for x in p.operands])
        elif p.op in REUSES:
            self.reused.update([id(x) for x in p.operands])
        for x in dict.fromkeys(p.operands):
            self.readers[id(x)] = self.readers.get(id(x), 0) + 1
            reads = self.reads.setdefault(id(x), set())
            if p.op == "transpose" or x.shape == p.shape:
                reads |= users
            else:
                reads.add(me)
            self.elementwise[id(x)] = self.elementwise.get(id(x), True) and through and reads_in_place(p, x)

    def rename(self, old: Node, new: Node) -> None:
        """Reads `new` where it read `old`."""
        tables: tuple[dict[int, Any], ...] = (self.reads, self.elementwise, self.readers)
        for table in tables:
            if id(old) in table:
                table[id(new)] = table.pop(id(old))
        if id(old) in self.reused:
            self.reused.discard(id(old))
            self.reused.add(id(new))
        self.root.operands = [new if x is old else x for x in self.root.operands]


def reads_in_place(user: Node, x: Node) -> bool:
    """Whether each element of the result reads the same element of `x` only, so that it may overwrite it."""
    return user.op in ELEMENTWISE and x.shape == user.shape


def inner_users(producer: Node) -> int:
    """How many operations read the producer, those inside fusions counted."""
    return sum([u.fused.readers.get(id(producer), 1) if u.fused is not None else 1 for u in producer.users])


def effectively_unary(node: Node) -> bool:
    """Reads at most one operand as large as its result (spread operands and counters do not count)."""
    rank = len(node.shape)
    n = 0
    for x in node.operands:
        if x.op in ("broadcast", "iota") or (not x.shape and x.op == "constant"):
            continue
        if len(x.shape) >= rank:
            n += 1
    return n <= 1


class Fuser:
    def __init__(self, g: Graph, t: Tables):
        self.g = g
        self.t = t
        self.outputs = set(map(id, g.outputs))
        self.order = g.nodes
        self.fixed: set[int] = set()  # producers that may not be duplicated

    def expensive(self, node: Node) -> bool:
        op = node.op
        if op not in EXPENSIVE:
            return op == "convert" and node.dtype == "bfloat16" and node.operands[0].dtype == "float32"
        return True

    def reuses(self, consumer: Node, producer: Node) -> bool:
        kernel = consumer.fused
        if kernel is not None:
            return id(producer) in kernel.reused
        return consumer.op in REUSES

    def should_fuse(self, consumer: Node, producer: Node) -> bool:
        op = producer.op
        kernel: Kernel | None = consumer.fused
        if op not in LOOP_FUSIBLE and (op != "constant" or producer.shape or kernel is None):
            return False
        if kernel is None and consumer.op not in LOOP_FUSIBLE:
            return False
        if op == "concatenate" and self.lone_concatenate(producer):
            return False
        if consumer.op == "concatenate" and self.lone_concatenate(consumer):
            return False
        if self.expensive(producer) and (
            self.reuses(consumer, producer) or len(producer.users) > 1 or id(producer) in self.outputs
        ):
            return False
        if kernel is None or op == "broadcast":
            return True
        if op == "reduce" and kernel.reductions > self.t.reductions_in_fusion:
            return False
        emitted = sum([kernel.usage[u] for u in kernel.reads[id(producer)]])
        if emitted > self.t.code_duplication:
            return False
        return op not in OPENS_BLOCK or (emitted <= 1 and inner_users(producer) <= 1)

    def lone_concatenate(self, node: Node) -> bool:
        """Whether a concatenation is a kernel of its own."""
        if len(node.operands) > self.t.concatenate_arguments:
            return True
        last = len(node.shape) - 1
        return last > 0 and node.attrs == last and node.shape[last] >= self.t.concatenate_columns

    def forbid_duplicates(self) -> None:
        """Marks producers that read more than they write and cannot move into every consumer."""
        candidates = []
        for node in self.order:
            if node.op not in LOOP_FUSIBLE or len(node.operands) < 2 or effectively_unary(node):
                continue
            total = sum({id(x): x.size for x in node.operands}.values())
            if total > node.size:
                candidates.append(node)
        several = [c for c in candidates if len(c.users) > 1]
        bit = {id(c): 1 << i for i, c in enumerate(several)}
        below: dict[int, int] = {}
        if several:
            for node in self.order:
                mask = bit.get(id(node), 0)
                for x in node.operands:
                    mask |= below[id(x)]
                below[id(node)] = mask
        memo: dict[tuple[int, int], bool] = {}

        def everywhere(producer: Node, consumer: Node, b: int) -> bool:
            if consumer is producer:
                return True
            if consumer.op in NOT_FUSIBLE:
                return False
            key = (id(producer), id(consumer))
            got = memo.get(key)
            if got is not None:
                return got
            ok = True
            for x in consumer.operands:
                if x is not producer and (not b or not below[id(x)] & b):
                    continue
                if id(x) in self.fixed or not self.should_fuse(consumer, x) or not everywhere(producer, x, b):
                    ok = False
                    break
            memo[key] = ok
            return ok

        for producer in reversed(candidates):
            b = bit.get(id(producer), 0)
            if id(producer) in self.outputs or not all(everywhere(producer, u, b) for u in producer.users):
                self.fixed.add(id(producer))

    def run(self) -> None:
        self.forbid_duplicates()
        position = {id(n): i for i, n in enumerate(self.order)}
        queue = list(self.order)
        alive = set(position)
        while queue:
            node = queue.pop()
            if id(node) not in alive or node.op in NOT_FUSIBLE:
                continue
            position.pop(id(node), None)
            candidates = {id(x): x for x in node.operands if id(x) in position}
            for x in sorted(candidates.values(), key=lambda x: -position[id(x)]):
                if x.op in NOT_FUSIBLE or id(x) in self.fixed or not self.should_fuse(node, x):
                    continue
                node = self.fuse(node, x)
                alive.add(id(node))
                position[id(node)] = len(queue)
                queue.append(node)
                if not x.users and id(x) not in self.outputs:
                    alive.discard(id(x))
                    position.pop(id(x), None)
                    for y in x.operands:
                        if x in y.users:
                            remove_user(y, x)
                break

    def fuse(self, consumer: Node, producer: Node) -> Node:
        if consumer.fused is None:
            fusion = Node("fusion", consumer.shape, consumer.dtype, list(dict.fromkeys(consumer.operands)),
                          consumer.op, consumer.eqn, consumer.id)  # fmt: skip
            fusion.fused = Kernel(consumer)
            fusion.users = consumer.users
            for u in consumer.users:
                u.operands = [fusion if x is consumer else x for x in u.operands]
                if u.fused is not None:
                    u.fused.rename(consumer, fusion)
            consumer.users = []
            for x in fusion.operands:
                x.users.append(fusion)
                remove_user(x, consumer)
            if id(consumer) in self.outputs:
                self.g.outputs = [fusion if x is consumer else x for x in self.g.outputs]
                self.outputs.add(id(fusion))
                self.outputs.discard(id(consumer))
            self.fixed.discard(id(consumer))
            consumer = fusion
        kernel: Kernel = consumer.fused
        kernel.absorb(producer)
        consumer.operands.remove(producer)
        have = set(map(id, consumer.operands))
        for x in producer.operands:
            if id(x) not in have:
                have.add(id(x))
                consumer.operands.append(x)
                x.users.append(consumer)
        remove_user(producer, consumer)
        return consumer


def remove_user(x: Node, user: Node) -> None:
    """Removes a user as the compiler does: the last one takes its place."""
    users = x.users
    for i, u in enumerate(users):
        if u is user:
            users[i] = users[-1]
            users.pop()
            return


def fuse_loops(g: Graph, t: Tables) -> None:
    """Runs loop fusion. Needs post-order and users; the caller rebuilds both."""
    Fuser(g, t).run()
    g.nodes = post_order(g.outputs)


def members(node: Node) -> list[Any]:
    """The operations inside a fusion or library call."""
    if node.fused is not None:
        return node.fused.members  # type: ignore[no-any-return]
    if node.op == "library":
        return list(node.attrs[1])
    return [node]
