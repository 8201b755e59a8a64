"""Loop fusion: which results never get a buffer.

The compiler walks the operations from the last to the first and pulls each operand's producer into
its consumer when a kernel can hold it. Cheap producers that read at most one large operand are
recomputed in every consumer; expensive ones (exp, tanh, division ...) are never computed twice;
others only move if they can move into all their consumers on all paths. (Its instruction fusion
with duplication, and the CPU's own conditions.)

A fused consumer becomes a `fusion` node: operands from outside, and in `fused` a `Kernel`. This file marks
what the rules ask of each operation; `_kernels` follows each kernel as far as it reaches.
"""

from typing import Any

from recoup._memory import _kernels as kernels
from recoup._memory._graph import Graph, Node
from recoup._memory._tables import ELEMENTWISE, EXPENSIVE, LOOP_FUSIBLE, REUSES, Tables

NOT_FUSIBLE = frozenset(
    {"parameter", "gte", "barrier", "while", "conditional", "opaque", "custom-call", "library", "sort"}
)

# Operations that open a block of their own inside a kernel: emitted once or not at all.
OPENS_BLOCK = frozenset({"concatenate", "dot", "dynamic-update-slice", "pad", "reduce", "reduce-window"})

_BITS: dict[str, int] = {}
for _names, _bit in (
    (LOOP_FUSIBLE, kernels.FUSIBLE),
    (NOT_FUSIBLE, kernels.NEVER),
    (EXPENSIVE, kernels.EXPENSIVE),
    (OPENS_BLOCK, kernels.OPENS),
    (ELEMENTWISE, kernels.ELEMENTWISE),
    (REUSES, kernels.REUSES),
    ({"broadcast"}, kernels.BROADCAST),
    ({"reduce"}, kernels.REDUCE),
    ({"transpose"}, kernels.TRANSPOSE),
):
    for _name in _names:
        _BITS[_name] = _BITS.get(_name, 0) | _bit


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
        self.operations = kernels.Operations(g.nodes, [self.bits(node) for node in g.nodes])
        self.fusions: dict[Node, Node] = {}  # in place of which operation each came

    def bits(self, node: Node) -> int:
        """What the rules ask of an operation, as bits of `_kernels`."""
        op = node.op
        bits = _BITS.get(op, 0)
        if op == "convert" and node.dtype == "bfloat16" and node.operands[0].dtype == "float32":
            bits |= kernels.EXPENSIVE
        elif op == "constant" and not node.shape:
            bits |= kernels.SCALAR
        elif op == "concatenate" and self.lone_concatenate(node):
            bits |= kernels.LONE
        return bits | kernels.OUTPUT if node in self.outputs else bits

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
        place, bits = self.operations.place, self.operations.bits

        def everywhere(producer: Node, consumer: Node, b: int) -> bool:
            if consumer is producer:
                return True
            own = bits[place[consumer]]
            if own & kernels.NEVER:
                return False
            key = (producer, consumer)
            got = memo.get(key)
            if got is not None:
                return got
            ok = True
            for x in consumer.operands:
                if x is not producer and (not b or not below[x] & b):
                    continue
                f = bits[place[x]]
                if f & kernels.FIXED or not kernels.may_start(own, f, x) or not everywhere(producer, x, b):
                    ok = False
                    break
            memo[key] = ok
            return ok

        for producer in reversed(candidates):
            b = bit.get(producer, 0)
            if producer in self.outputs or not all(everywhere(producer, u, b) for u in producer.users):
                bits[place[producer]] |= kernels.FIXED

    def run(self) -> None:
        self.forbid_duplicates()
        operations, t = self.operations, self.t
        for at in range(len(self.order) - 1, -1, -1):
            if not operations.bits[at] & (kernels.DEAD | kernels.NEVER) and self.order[at].attrs != "result":
                apart = self.updated(self.order[at])
                kernels.fill(operations, at, self.start, t.code_duplication, t.reductions_in_fusion, apart)
        # What fusions read is renamed once, at the end: one may read thousands of values.
        for fusion in self.fusions.values():
            fusion.fused.rename(self.fusions)
            fusion.operands = list(fusion.fused.reads)

    def updated(self, node: Node) -> int:
        """The place of what an update in place may not hold, or -1.

        That is what it updates, if it is a constant spread or if slices of it are read too.
        """
        if node.op != "dynamic-update-slice":
            return -1
        x = node.operands[0]
        constant = x.op == "broadcast" and x.operands[0].op == "constant"
        if constant or any(u.op == "dynamic-slice" for u in x.users):
            return self.operations.place[x]
        return -1

    def start(self, consumer: Node) -> Node:
        """A fusion that holds one operation, in its place."""
        inputs = list(dict.fromkeys(consumer.operands))
        fusion = Node(
            "fusion", consumer.shape, consumer.dtype, inputs, consumer.op, consumer.eqn, consumer.id
        )
        fusion.users = consumer.users
        self.fusions[consumer] = fusion
        for u in consumer.users:
            if u.fused is None:
                u.operands = [fusion if x is consumer else x for x in u.operands]
        consumer.users = []
        for x in inputs:
            x.users.append(fusion)
            kernels.remove_user(x.users, consumer)
        if consumer in self.outputs:
            self.places[fusion] = self.places.pop(consumer)
            for k in self.places[fusion]:
                self.g.outputs[k] = fusion
            self.outputs.add(fusion)
            self.outputs.discard(consumer)
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
