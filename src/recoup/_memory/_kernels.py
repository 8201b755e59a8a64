"""The inner loop of loop fusion: how far one kernel reaches, and how it reads what stays outside.

A residual stream is recomputed in each of its readers, so that a deep model's kernels hold thousands of
operations each: a million in all. So this works on numbers, an operation's place in the order. It is the only
implementation: Python when no compiler was there at installation, otherwise compiled by Cython with the C
types of `_kernels.pxd`, with the same results. `_fusion` says which rules of the compiler these are.
"""

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from recoup._memory._graph import Node

# What is known of an operation, as bits.
FUSIBLE = 1  # a loop fusion may contain it
SCALAR = 2  # a scalar constant
NEVER = 4  # no part of any fusion
LONE = 8  # a concatenation that is a kernel of its own
EXPENSIVE = 16  # never computed twice
BROADCAST = 32
REDUCE = 64
OPENS = 128  # opens a block of its own inside a kernel: emitted once or not at all
ELEMENTWISE = 256
TRANSPOSE = 512
REUSES = 1024  # reads elements of an operand more than once
OUTPUT = 2048
FIXED = 4096  # may not be duplicated
DEAD = 8192  # all its readers hold it

_ITSELF = {0}  # indexes of a kernel's root: those of the kernel


class Kernel:
    """What a fusion holds: its operations, and of each operand how many of them read it and whether the
    result's element reads the same element only.
    """

    __slots__ = ("members", "reads", "root")

    def __init__(self, root: Node, members: list[Node], reads: dict[Node, int]):
        self.root = root
        self.members = members
        self.reads = reads  # twice the number of readers, + 1 if in place

    def readers(self, x: Node) -> int:
        """How many operations inside read an operand: at least the fusion itself."""
        return max(1, self.reads.get(x, 0) >> 1)

    def in_place(self, x: Node) -> bool:
        """Whether each element of the result reads the same element of an operand only."""
        return bool(self.reads.get(x, 0) & 1)

    def rename(self, new: dict[Node, Node]) -> None:
        """Reads new nodes where it read old ones, in the same order."""
        if any(x in new for x in self.reads):
            self.reads = {new.get(x, x): read for x, read in self.reads.items()}
        self.root.operands = [new.get(x, x) for x in self.root.operands]


class Operations:
    """A computation's operations by place: bits, operands (each once), shapes by number, and scratch."""

    def __init__(self, order: list[Node], bits: list[int]):
        n = len(order)
        self.order = order
        self.users = [node.users for node in order]
        self.bits = array("i", bits)
        self.place = place = {node: i for i, node in enumerate(order)}
        numbers: dict[tuple[int, ...], int] = {}
        self.shapes = array("i", [numbers.setdefault(node.shape, len(numbers)) for node in order])
        starts = [0]
        ids: list[int] = []
        for node in order:
            ids.extend([place[x] for x in dict.fromkeys(node.operands)])
            starts.append(len(ids))
        self.starts = array("i", starts)
        self.ids = array("i", [*ids, 0])
        self.queued = array("i", bytes(4 * n))  # the kernel that looked at it last, + 1
        self.read = array("i", bytes(4 * n))  # the kernel that reads it, + 1; 0: none, or it is inside
        self.readers = array("i", bytes(4 * n))
        self.in_place = bytearray(n)
        self.reused = bytearray(n)
        self.indexes: list[set[int]] = [_ITSELF] * n  # inner operations whose index reaches it


def remove_user(users: list[Node], user: Node) -> None:
    """Removes a user as the compiler does: the last one takes its place."""
    count = len(users)
    for i in range(count):
        if users[i] is user:
            users[i] = users[count - 1]
            users.pop()
            return


def may_start(own: int, bits: int, producer: Node) -> bool:
    """Whether an operation that is no fusion yet may hold the producer of an operand."""
    if not own & bits & FUSIBLE or (own | bits) & LONE:
        return False
    return not bits & EXPENSIVE or not (own & REUSES or bits & OUTPUT or len(producer.users) > 1)


def fill(
    operations: Operations,
    root: int,
    start: Callable[[Node], Node],
    duplication: int,
    most_reductions: int,
    apart: int = -1,
) -> Any:
    """Pulls producers into one operation, the latest first.

    Args:
      operations: the computation.
      root: the operation's place.
      start: puts a fusion in an operation's place.
      duplication: how often a kernel may emit one producer.
      most_reductions: a kernel with more takes no further one.
      apart: the place of an operation that it may not hold, or -1.

    Returns:
      The fusion, or None where nothing joins.
    """
    order, users = operations.order, operations.users
    bits, shapes = operations.bits, operations.shapes
    starts, ids = operations.starts, operations.ids
    queued, read, readers = operations.queued, operations.read, operations.readers
    in_place, reused, indexes = operations.in_place, operations.reused, operations.indexes
    outside, joins, lone, dear, output = NEVER | FIXED | DEAD, FUSIBLE | SCALAR, LONE, EXPENSIVE, OUTPUT
    spread, reduce, opens, transpose, reuses, elementwise = (
        BROADCAST,
        REDUCE,
        OPENS,
        TRANSPOSE,
        REUSES,
        ELEMENTWISE,
    )
    serial = root + 1
    own = bits[root]
    reductions = 1 if own & reduce else 0
    fusion = None
    members = [order[root]]
    found: list[int] = []  # what is read, in the order in which it came
    usage = [1, 1]  # how often each inner operation is emitted; 0: the fusion itself, 1: the root
    waiting: list[int] = []
    for e in range(starts[root], starts[root + 1]):
        at = ids[e]
        if not bits[at] & outside:
            queued[at] = serial
            heappush(waiting, -at)
    while waiting:
        at = -heappop(waiting)
        f = bits[at]
        if at == apart:
            continue
        if fusion is None:
            if not may_start(own, f, order[at]):
                continue
            fusion = start(order[root])
            current = root
            reach = _ITSELF
            me = 1
            whole = 1
            again = 0
        else:
            if not f & joins or f & lone:
                continue
            if f & dear and (reused[at] or f & output or len(users[at]) > 1):
                continue
            if not f & spread:
                if f & reduce and reductions > most_reductions:
                    continue
                emitted = 0
                for u in indexes[at]:
                    emitted += usage[u]
                if emitted > duplication:
                    continue
                if f & opens and (emitted > 1 or _inner_users(order[at], fusion, readers[at]) > 1):
                    continue
            current = at
        while True:  # the root's operands, the first time; then those of what joins
            if current == at:
                read[at] = 0
                members.append(order[at])
                if f & reduce:
                    reductions += 1
                reach = indexes[at]
                emitted = 0
                for u in reach:
                    emitted += usage[u]
                me = len(usage)
                usage.append(emitted)
                whole = in_place[at]
                again = reused[at]
            c = bits[current]
            mine = None
            for e in range(starts[current], starts[current + 1]):
                y = ids[e]
                same = shapes[y] == shapes[current]
                if same or c & transpose:
                    who = reach
                else:
                    if mine is None:
                        mine = {me}
                    who = mine
                if read[y] != serial:
                    read[y] = serial
                    readers[y] = 0
                    in_place[y] = 1
                    reused[y] = 0
                    indexes[y] = who
                    found.append(y)
                    if current != root:
                        users[y].append(fusion)
                elif indexes[y] is not who:
                    indexes[y] = indexes[y] | who
                readers[y] += 1
                if not (whole and same and c & elementwise):
                    in_place[y] = 0
                if again or c & reuses:
                    reused[y] = 1
            if current == at:
                break
            current = at
        remove_user(users[at], fusion)
        for e in range(starts[at], starts[at + 1]):
            y = ids[e]
            if queued[y] != serial and not bits[y] & outside:
                queued[y] = serial
                heappush(waiting, -y)
        if not users[at] and not f & output:
            bits[at] = f | DEAD
            for e in range(starts[at], starts[at + 1]):
                remove_user(users[ids[e]], order[at])
    if fusion is not None:
        reads = {}
        for y in found:
            if read[y] == serial:
                reads[order[y]] = 2 * readers[y] + in_place[y]
        fusion.fused = Kernel(order[root], members, reads)
    return fusion


def _inner_users(producer: Node, fusion: Node, here: int) -> int:
    """How many operations read the producer, those inside fusions counted; `here`: inside this one."""
    n = 0
    for u in producer.users:
        if u is fusion:
            n += here
        else:
            n += 1 if u.fused is None else u.fused.readers(producer)
    return n
