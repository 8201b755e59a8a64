"""Buffers: which values need one, when they live, which share.

Values of one computation live from the operation that defines them to their last reader. An
elementwise operation whose operand dies in it writes over the operand, when each element is read
once at the same place and the shapes are equal. Bitcasts (reshapes), barriers and tuples define
nothing: they stand for their operands. Loops carry each value in one buffer, in which the body
updates it. Values that fit an output's buffer before the output is written live there. (The
compiler's buffer assignment with a heap over the schedule; fragmentation is not modelled.)
"""

from dataclasses import dataclass, field

from recoup._memory._copies import ALIASES, definer, invariant, overwrites, updated
from recoup._memory._graph import Graph, Node

ALIGN = 64
_HOLDERS = frozenset({"while", "conditional"})


@dataclass
class Arena:
    """The result for one computation."""

    peak_bytes: int = 0
    at: int = 0  # position of the peak
    live: list[int] = field(default_factory=list)  # bytes at each position
    alive: list[tuple[Node, int]] = field(default_factory=list)  # (definer, bytes) at the peak
    order: list[Node] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Buffer:
    node: Node
    nbytes: int
    start: int
    end: int
    place: object = None  # None: in the arena


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def allocate(
    g: Graph, order: list[Node], inner: dict[int, int], *, body: bool, donated: dict[int, int]
) -> Arena:
    """Simulates one computation.

    Args:
      g: the computation, copies inserted.
      order: the schedule.
      inner: bytes that a loop or branch needs inside, by node.
      body: whether this is a loop's body (its parameters and results are the loop's buffers).
      donated: output -> parameter that it may live in.
    """
    buffers: dict[int, Buffer] = {}
    position = {id(n): i for i, n in enumerate(order)}
    last = len(order)
    owned = set(donated.values())

    def find(node: Node) -> Buffer | None:
        while True:
            node = definer(node)
            target = updated(node)
            if target is None:
                return buffers.get(id(node))
            node = target

    for i, node in enumerate(order):
        op = node.op
        if op == "parameter" or op == "constant":
            if not body and op == "parameter" and node.attrs in owned:
                buffers[id(node)] = Buffer(node, padded(node.nbytes), -1, -1, "argument")
        elif op == "gte":
            maker = node.operands[0]
            if maker.op not in ("barrier", "while"):
                buffers[id(node)] = Buffer(node, padded(node.nbytes), position[id(maker)], i)
        elif op not in ALIASES and op not in _HOLDERS and node.nbytes and updated(node) is None:
            buffers[id(node)] = Buffer(node, padded(node.nbytes), i, i)
        for x in node.operands:
            b = find(x)
            if b is not None and b.end < i:
                b.end = i
    results: list[Buffer] = []
    for k, x in enumerate(g.outputs):
        b = find(x)
        if b is None:
            continue
        b.end = last
        if b.place is None:
            b.place = "result"
            if body and invariant(g, k):
                continue
            results.append(b)

    def share(b: Buffer, operand: Node) -> Buffer | None:
        """The operand's buffer, if `b` may be written over it."""
        o = buffers.get(id(operand))
        if o is None or o.nbytes != b.nbytes or o.end != b.start or not overwrites(b.node, operand):
            return None
        return o

    if not body:
        arguments = {id(find(g.outputs[k])): buffers[id(g.params[p])] for k, p in donated.items()}
        _use_results(buffers, results, arguments, share)

    # in-place reuse among temporaries: chains of buffers become one
    chained: set[int] = set()
    rep: dict[int, Buffer] = {}
    for node in order:
        b = buffers.get(id(node))
        if b is None or b.place is not None:
            continue
        for x in node.operands:
            o = share(b, x)
            if o is not None and o.place is None and id(o) not in chained:
                chained.add(id(o))
                root = rep.get(id(o), o)
                rep[id(b)] = root
                root.end = max(root.end, b.end)
                b.place = root
                break
    delta = [0] * (last + 2)
    for b in buffers.values():
        if b.place is None:
            delta[b.start] += b.nbytes
            delta[min(b.end, last) + 1] -= b.nbytes
    arena = Arena(order=order)
    now = 0
    for i, node in enumerate(order):
        now += delta[i]
        here = now + inner.get(id(node), 0)
        arena.live.append(here)
        if here > arena.peak_bytes:
            arena.peak_bytes, arena.at = here, i
    at = arena.at
    arena.alive = sorted(
        ((b.node, b.nbytes) for b in buffers.values() if b.place is None and b.start <= at <= b.end),
        key=lambda p: -p[1],
    )
    return arena


def _use_results(buffers, results, arguments, share) -> None:  # type: ignore[no-untyped-def]
    """Places temporaries in results that are not written yet: largest first, smallest fitting result."""
    if not results:
        return
    results = sorted(results, key=lambda b: b.nbytes)
    biggest = results[-1].nbytes
    occupied: dict[int, list[Buffer]] = {
        id(r): [r, arguments[id(r)]] if id(r) in arguments else [r] for r in results
    }
    temps = sorted(
        (b for b in buffers.values() if b.place is None and b.nbytes <= biggest), key=lambda b: -b.nbytes
    )
    for b in temps:
        if b.nbytes < 1024:
            break
        for r in results:
            if r.nbytes < b.nbytes or r.start < b.end:
                continue
            clash = False
            for other in occupied[id(r)]:
                if other.start > b.end or other.end < b.start:
                    continue
                if other.start == b.end and share(other, b.node) is b:
                    continue
                if other.end == b.start and share(b, other.node) is other:
                    continue
                clash = True
                break
            if not clash:
                b.place = r
                occupied[id(r)].append(b)
                break
