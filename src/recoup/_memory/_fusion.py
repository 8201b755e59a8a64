"""Loop fusion: which results never get a buffer.

The compiler walks the operations from the last to the first and pulls each operand's producer into
its consumer when a kernel can hold it. Cheap producers that read at most one large operand are
recomputed in every consumer; expensive ones (exp, tanh, division ...) are never computed twice;
others only move if they can move into all their consumers on all paths. (Its instruction fusion
with duplication, and the CPU's own conditions.)

A fused consumer becomes a `fusion` node: operands from outside, and in `fused` a `Kernel`.
"""

from heapq import heapify, heappop, heappush
from typing import Any

from recoup._memory._graph import Graph, Node, remove_user
from recoup._memory._tables import ELEMENTWISE, EXPENSIVE, LOOP_FUSIBLE, REUSES, Tables

NOT_FUSIBLE = frozenset(
    {"parameter", "gte", "barrier", "while", "conditional", "opaque", "custom-call", "library", "sort"}
)

# Operations that open a block of their own inside a kernel: emitted once or not at all.
OPENS_BLOCK = frozenset({"concatenate", "dot", "dynamic-update-slice", "pad", "reduce", "reduce-window"})


class Read:
    """How a kernel reads one of its operands."""

    __slots__ = ("by", "in_place", "readers", "reused")

    def __init__(self) -> None:
        self.by: set[int] = set()  # inner operations whose index reaches the operand
        self.readers = 0  # inner operations that read it
        self.in_place = True  # whether the result's element reads the same element only
        self.reused = False  # whether elements are read more than once


class Kernel:
    """What a fusion holds: its operations, and how it reads each operand."""

    __slots__ = ("members", "reads", "reductions", "root", "usage")

    def __init__(self, root: Node):
        self.root = root
        self.members: list[Node] = [root]
        self.reductions = int(root.op == "reduce")
        self.usage = [1, 1]  # how often each inner operation is emitted; 0: the fusion itself, 1: the root
        self.reads: dict[Node, Read] = {}
        self._read(root, {0}, 1, True)

    def _read(self, p: Node, users: set[int], me: int, in_place: bool, reused: bool = False) -> list[Node]:
        """Adds the operands of an operation, number `me`, which `users` index; returns the new ones."""
        op, shape, operands, reads = p.op, p.shape, p.operands, self.reads
        reused = reused or op in REUSES
        keeps_index = op == "transpose"
        elementwise = op in ELEMENTWISE
        added: list[Node] = []
        for x in operands if len(operands) == 1 else dict.fromkeys(operands):
            read = reads.get(x)
            if read is None:
                read = reads[x] = Read()
                added.append(x)
            read.readers += 1
            same = x.shape == shape
            if keeps_index or same:
                read.by |= users
            else:
                read.by.add(me)
            if not (in_place and elementwise and same):
                read.in_place = False
            if reused:
                read.reused = True
        return added

    def absorb(self, p: Node) -> list[Node]:
        """Pulls the producer of an operand in; returns what is now read and was not before."""
        read = self.reads.pop(p)
        self.members.append(p)
        if p.op == "reduce":
            self.reductions += 1
        usage = self.usage
        me = len(usage)
        usage.append(self.emitted(read))
        return self._read(p, read.by, me, read.in_place, read.reused)

    def emitted(self, read: Read) -> int:
        """How often the producer of an operand would be emitted inside."""
        usage = self.usage
        n = 0
        for u in read.by:
            n += usage[u]
        return n

    def rename(self, new: dict[Node, Node]) -> None:
        """Reads new nodes where it read old ones, in the same order."""
        if any(x in new for x in self.reads):
            self.reads = {new.get(x, x): read for x, read in self.reads.items()}
        self.root.operands = [new.get(x, x) for x in self.root.operands]


def inner_users(producer: Node) -> int:
    """How many operations read the producer, those inside fusions counted."""
    n = 0
    for u in producer.users:
        read = u.fused.reads.get(producer) if u.fused is not None else None
        n += read.readers if read is not None else 1
    return n


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
        self.outputs = set(g.outputs)
        self.places: dict[Node, list[int]] = {}  # of each result in the list of results
        for k, x in enumerate(g.outputs):
            self.places.setdefault(x, []).append(k)
        self.order = g.nodes
        self.fixed: set[Node] = set()  # producers that may not be duplicated
        self.fusions: dict[Node, Node] = {}  # in place of which operation each came

    def expensive(self, node: Node) -> bool:
        op = node.op
        if op not in EXPENSIVE:
            return op == "convert" and node.dtype == "bfloat16" and node.operands[0].dtype == "float32"
        return True

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
        read = kernel.reads[producer] if kernel is not None else None
        if self.expensive(producer):
            reused = read.reused if read is not None else consumer.op in REUSES
            if reused or len(producer.users) > 1 or producer in self.outputs:
                return False
        if kernel is None or read is None or op == "broadcast":
            return True
        if op == "reduce" and kernel.reductions > self.t.reductions_in_fusion:
            return False
        emitted = kernel.emitted(read)
        if emitted > self.t.code_duplication:
            return False
        return op not in OPENS_BLOCK or (emitted <= 1 and inner_users(producer) <= 1)

    def lone_concatenate(self, node: Node) -> bool:
        """Whether a concatenation is a kernel of its own."""
        if len(node.operands) > self.t.concatenate_arguments:
            return True
        last = len(node.shape) - 1
        if last <= 0 or node.attrs != last:
            return False
        columns = node.shape[last]
        row_bytes = columns * (node.nbytes // max(1, node.size))
        t = self.t
        wide = columns >= t.concatenate_columns and row_bytes >= t.concatenate_row_bytes
        return wide and node.nbytes >= t.concatenate_bytes

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
        bit = {c: 1 << i for i, c in enumerate(several)}
        below: dict[Node, int] = {}  # which of them each node depends on
        if several:
            for node in self.order:
                mask = bit.get(node, 0)
                for x in node.operands:
                    mask |= below[x]
                below[node] = mask
        memo: dict[tuple[Node, Node], bool] = {}

        def everywhere(producer: Node, consumer: Node, b: int) -> bool:
            if consumer is producer:
                return True
            if consumer.op in NOT_FUSIBLE:
                return False
            key = (producer, consumer)
            got = memo.get(key)
            if got is not None:
                return got
            ok = True
            for x in consumer.operands:
                if x is not producer and (not b or not below[x] & b):
                    continue
                if x in self.fixed or not self.should_fuse(consumer, x) or not everywhere(producer, x, b):
                    ok = False
                    break
            memo[key] = ok
            return ok

        for producer in reversed(candidates):
            b = bit.get(producer, 0)
            if producer in self.outputs or not all(everywhere(producer, u, b) for u in producer.users):
                self.fixed.add(producer)

    def run(self) -> None:
        self.forbid_duplicates()
        position = {n: i for i, n in enumerate(self.order)}
        dead: set[Node] = set()
        for node in reversed(self.order):
            position.pop(node, None)
            if node not in dead and node.op not in NOT_FUSIBLE and node.attrs != "result":
                self.fill(node, position, dead)
        # What fusions read is renamed once, at the end: one may read thousands of values.
        for fusion in self.fusions.values():
            fusion.fused.rename(self.fusions)
            fusion.operands = list(fusion.fused.reads)

    def fill(self, node: Node, position: dict[Node, int], dead: set[Node]) -> None:
        """Pulls producers into one consumer, the latest first."""
        waiting = [(-position[x], x.id) for x in dict.fromkeys(node.operands) if x in position]
        by_place = self.order
        heapify(waiting)
        queued = {-w[0] for w in waiting}
        while waiting:
            place = -heappop(waiting)[0]
            x = by_place[place]
            if x.op in NOT_FUSIBLE or x in self.fixed or not self.should_fuse(node, x):
                continue
            node = self.fuse(node, x)
            for y in x.operands:
                at = position.get(y)
                if at is not None and at not in queued:
                    queued.add(at)
                    heappush(waiting, (-at, y.id))
            if not x.users and x not in self.outputs:
                dead.add(x)
                position.pop(x, None)
                for y in dict.fromkeys(x.operands):
                    remove_user(y, x)

    def fuse(self, consumer: Node, producer: Node) -> Node:
        if consumer.fused is None:
            consumer = self.start(consumer)
        for x in consumer.fused.absorb(producer):
            x.users.append(consumer)
        remove_user(producer, consumer)
        return consumer

    def start(self, consumer: Node) -> Node:
        """A fusion that holds one operation, in its place."""
        inputs = list(dict.fromkeys(consumer.operands))
        fusion = Node(
            "fusion", consumer.shape, consumer.dtype, inputs, consumer.op, consumer.eqn, consumer.id
        )
        fusion.fused = Kernel(consumer)
        fusion.users = consumer.users
        self.fusions[consumer] = fusion
        for u in consumer.users:
            if u.fused is None:
                u.operands = [fusion if x is consumer else x for x in u.operands]
        consumer.users = []
        for x in inputs:
            x.users.append(fusion)
            remove_user(x, consumer)
        if consumer in self.outputs:
            self.places[fusion] = self.places.pop(consumer)
            for k in self.places[fusion]:
                self.g.outputs[k] = fusion
            self.outputs.add(fusion)
            self.outputs.discard(consumer)
        self.fixed.discard(consumer)
        return fusion


def fuse_loops(g: Graph, t: Tables) -> None:
    """Runs loop fusion. Needs post-order and users; the caller rebuilds both."""
    Fuser(g, t).run()
    g.nodes = g.alive()


def members(node: Node) -> list[Any]:
    """The operations inside a fusion or library call."""
    if node.fused is not None:
        return node.fused.members  # type: ignore[no-any-return]
    if node.op == "library":
        return list(node.attrs[1])
    return [node]
