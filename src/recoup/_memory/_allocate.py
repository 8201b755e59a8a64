"""Buffers: which values need one, when they live, which share.

Values of one computation live from the operation that defines them to their last reader. An
elementwise operation whose operand dies in it writes over the operand, when each element is read
once at the same place and the shapes are equal. Bitcasts (reshapes), barriers and tuples define
nothing: they stand for their operands. Loops carry each value in one buffer, in which the body
updates it. Values that fit an output's buffer before the output is written live there. (The
compiler's buffer assignment with a heap over the schedule; fragmentation is not modelled.)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from recoup._memory._copies import ALIASES, definer, inputs, invariant, overwrites, updated
from recoup._memory._graph import Graph, Node
from recoup._memory._heap import Plan, Step

ALIGN = 64
SMALL_BYTES = 1024  # smaller buffers are not looked for a place among the results
_HOLDERS = frozenset({"while", "conditional"})


@dataclass
class Arena:
    """The result for one computation.

    Attributes:
      peak_bytes: the largest sum of live buffers, computations inside included; `at`: its position.
      live: that sum at each position of `order`.
      alive: this computation's buffers at the peak, by the operation that writes them.
      lives: every buffer as (operation, bytes, first position, last position, whether it is inside a loop or
        branch that runs there). They add up to `live` at each position.
      plan: its buffers as events, for the heap.
    """

    plan: Plan
    order: list[Node]
    peak_bytes: int = 0
    at: int = 0
    live: list[int] = field(default_factory=list)
    alive: list[tuple[Node, int]] = field(default_factory=list)
    lives: list[tuple[Node, int, int, int, bool]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Buffer:
    """One allocation: written at position `start`, last read at `end`."""

    node: Node
    nbytes: int
    start: int
    end: int
    place: object = None  # None: in the arena; else what it is part of
    handed: list[int] = field(default_factory=list)  # positions where it goes on as another value
    over: "Buffer | None" = None  # the buffer that it takes over, in the arena
    first: int = 0  # `start` and `end` on the clock of the whole program
    last: int = 0
    home: "Computation | None" = None
    rank: int = 0  # place of its first value in post-order, computations inside last


@dataclass(eq=False)
class Computation:
    """One computation's schedule and buffers, and those inside it."""

    g: Graph
    order: list[Node]
    buffers: dict[int, Buffer]
    find: Callable[[Node], Buffer | None]  # the buffer that a node's value is in
    inside: dict[int, list["Computation"]]  # by node


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def allocate(
    g: Graph,
    schedule: Callable[[Graph], list[Node]],
    donated: dict[int, int],
    *,
    barriers_stay: bool = False,
    equal: str = "",
) -> Arena:
    """Simulates a program.

    Args:
      g: its entry computation, copies inserted.
      schedule: gives the order of a computation's operations.
      donated: output -> parameter that it lives in.
      barriers_stay: whether barriers are there still when buffers are assigned.
      equal: how buffers of one size follow each other when they are placed, if not in the module's order: in
        its reverse ("backwards"), or the shortest-lived first ("short").
    """
    entry = _computation(g, schedule, body=False, owned=set(donated.values()))
    results = _claim_results(entry, body=False)
    _clock(entry, 0)
    _rank(entry, 0)
    if equal:
        for b in _all_buffers(entry):
            b.rank = -b.rank if equal == "backwards" else b.last - b.first
    arguments = {id(entry.find(g.outputs[k])): entry.buffers[id(g.params[p])] for k, p in donated.items()}
    _use_results(_all_buffers(entry), results, arguments)
    return _simulate(entry, barriers_stay)


def _computation(
    g: Graph, schedule: Callable[[Graph], list[Node]], *, body: bool, owned: set[int]
) -> Computation:
    order = schedule(g)
    buffers, find = _live_ranges(g, order, body=body, owned=owned)
    inside: dict[int, list[Computation]] = {}
    for node in order:
        for i, part in enumerate(node.bodies):
            looped = node.op == "while" and i == 0
            c = _computation(part, schedule, body=looped, owned=set())
            _claim_results(c, body=looped)
            if looped:
                _use_carries(c)
            inside.setdefault(id(node), []).append(c)
    c = Computation(g, order, buffers, find, inside)
    for b in buffers.values():
        b.home = c
    return c


def _use_carries(c: Computation) -> None:
    """Places temporaries of a loop's body in its carries, from the old value's last read to the new value."""
    position = {id(n): i for i, n in enumerate(c.order)}
    read = [0] * len(c.g.params)  # position of the last reader
    for i, node in enumerate(c.order):
        if node.op not in ALIASES:
            for x in node.operands:
                d = definer(x)
                if d.op == "parameter":
                    read[d.attrs] = i
    gaps: list[tuple[Buffer, int, list[Buffer]]] = []
    for k, x in enumerate(c.g.outputs):
        b = c.find(x)
        if b is not None and b.place == "result" and b.nbytes >= SMALL_BYTES and id(b.node) in position:
            gaps.append((b, read[k], []))
    if not gaps:
        return
    for b in sorted(c.buffers.values(), key=lambda b: -b.nbytes):
        if b.place is not None or b.nbytes < SMALL_BYTES:
            continue
        for carry, after, inside in gaps:
            fits = b.nbytes <= carry.nbytes and after < b.start and b.end < carry.start
            if fits and all(b.end < o.start or o.end < b.start for o in inside):
                b.place = carry
                inside.append(b)
                break


def _claim_results(c: Computation, *, body: bool) -> list[Buffer]:
    """Takes results' buffers out of the arena: they are the program's outputs, or the loop's own buffers."""
    results: list[Buffer] = []
    for k, x in enumerate(c.g.outputs):
        b = c.find(x)
        if b is None:
            continue
        b.end = len(c.order)
        if b.place is None:
            b.place = "result"
            if not (body and invariant(c.g, k)):
                results.append(b)
    return results


def _clock(c: Computation, now: int) -> int:
    """Sets all buffers' times on one clock; what is inside an operation runs just before it."""
    moment = []
    for node in c.order:
        for part in c.inside.get(id(node), ()):
            now = _clock(part, now)
        moment.append(now)
        now += 1
    for b in c.buffers.values():
        b.first = moment[b.start] if b.start >= 0 else -1
        b.last = moment[b.end] if 0 <= b.end < len(moment) else (-1 if b.end < 0 else now)
        if b.node.op == "gte" and b.node.operands[0].op == "conditional":  # written inside
            written = [p.find(p.g.outputs[b.node.attrs]) for p in c.inside[id(b.node.operands[0])]]
            b.first = min([b.first, *(w.first for w in written if w is not None)])
    return now


def _rank(c: Computation, start: int) -> int:
    """Sets the buffers' places in post-order."""
    for i, node in enumerate(c.g.nodes):
        b = c.buffers.get(id(node))
        if b is not None:
            b.rank = start + i
    start += len(c.g.nodes)
    for parts in c.inside.values():
        for part in parts:
            start = _rank(part, start)
    return start


def _all_buffers(c: Computation) -> list[Buffer]:
    found = list(c.buffers.values())
    for parts in c.inside.values():
        for part in parts:
            found.extend(_all_buffers(part))
    return found


def _live_ranges(
    g: Graph, order: list[Node], *, body: bool, owned: set[int]
) -> tuple[dict[int, Buffer], Callable[[Node], Buffer | None]]:
    """The buffers by the node that writes them, and the function from any node to the buffer it is in."""
    buffers: dict[int, Buffer] = {}
    known: dict[Node, Buffer] = {}  # what operands are in; deep kernels read thousands
    position = {id(n): i for i, n in enumerate(order)}

    def find(node: Node) -> Buffer | None:
        while True:
            node = definer(node)
            target = updated(node)
            if target is None:
                return buffers.get(id(node))
            node = target

    for i, node in enumerate(order):
        op = node.op
        if op == "parameter":
            if not body and node.attrs in owned:
                buffers[id(node)] = Buffer(node, padded(node.nbytes), -1, -1, "argument")
        elif op == "gte":
            maker = node.operands[0]
            if maker.op not in ("barrier", "while") and definer(node) is node:
                buffers[id(node)] = Buffer(node, padded(node.nbytes), position[id(maker)], i)
        elif op == "while":
            for k, x in enumerate(node.operands):
                b = find(x)
                if b is not None and not invariant(node.bodies[0], k):
                    b.handed.append(i)
        elif op != "constant" and op not in ALIASES and op not in _HOLDERS and node.nbytes:
            target = updated(node)
            if target is None:
                buffers[id(node)] = Buffer(node, padded(node.nbytes), i, i)
            else:
                b = find(target)
                if b is not None:
                    b.handed.append(i)
        for x in node.operands:
            b = known.get(x)
            if b is None:
                b = find(x)
                if b is None:
                    continue
                known[x] = b
            if b.end < i:
                b.end = i
    return buffers, find


def _may_overwrite(b: Buffer, o: Buffer | None, operand: Node) -> bool:
    """Whether `b` may be written over `o`, the buffer of its operand, which dies there."""
    return o is not None and o.nbytes == b.nbytes and o.end == b.start and overwrites(b.node, operand)


def behind_barriers(x: Node) -> Node:
    """What a barrier's result is."""
    while x.op == "gte" and x.operands[0].op == "barrier":
        x = x.operands[0].operands[x.attrs]
    return x


def _write_over(c: Computation, barriers_stay: bool) -> None:
    """In-place reuse among temporaries: a buffer takes over that of an operand which dies in it.

    What is read through a barrier is no operand.
    """
    buffers, order = c.buffers, c.order
    taken: set[int] = set()
    for node in order:
        b = buffers.get(id(node))
        if b is None or b.place is not None or b.handed or node.attrs == "kept":
            continue
        for x in inputs(node):
            o = buffers.get(id(x if barriers_stay else behind_barriers(x)))
            if o is None or o.place is not None or o.handed or id(o) in taken:
                continue
            if _may_overwrite(b, o, x):
                taken.add(id(o))
                b.over = o
                break


def _simulate(c: Computation, barriers_stay: bool) -> Arena:
    order, buffers = c.order, c.buffers
    _branch_results(c)
    inner = {n: [_simulate(part, barriers_stay) for part in parts] for n, parts in c.inside.items()}
    _write_over(c, barriers_stay)
    last = len(order)
    kept = [b for b in buffers.values() if b.place is None]
    number = {id(b): k for k, b in enumerate(kept)}
    plan = Plan([b.nbytes for b in kept], [b.rank for b in kept], [])
    plan.steps.extend(
        [Step([a.plan for a in inner[id(n)]] if id(n) in inner else [], [], [], []) for n in order]
    )
    delta = [0] * (last + 2)
    lives: list[tuple[Node, int, int, int, bool]] = []
    overtaken = {id(b.over) for b in kept if b.over is not None}
    for b in sorted(kept, key=lambda b: b.rank):
        k = number[id(b)]
        end = min(b.end, last - 1)
        plan.steps[b.start].allocate.append((k, -1 if b.over is None else number[id(b.over)]))
        for i in b.handed:
            plan.steps[i].handed.append(k)
        if id(b) not in overtaken:
            plan.steps[end].free.append(k)
        delta[b.start] += b.nbytes
        # a buffer that is taken over ends just before its successor begins
        after = end + 1 if id(b) not in overtaken else end
        delta[after] -= b.nbytes
        if after > b.start:
            lives.append((b.node, b.nbytes, b.start, after - 1, False))
    arena = Arena(plan, order, lives=lives)
    now = 0
    for i, node in enumerate(order):
        now += delta[i]
        here = now
        part = max(inner.get(id(node), ()), key=lambda a: a.peak_bytes, default=None)
        if part is not None:
            here += part.peak_bytes
            lives.extend((n, size, i, i, True) for n, size, a, b, _ in part.lives if a <= part.at <= b)
        arena.live.append(here)
        if here > arena.peak_bytes:
            arena.peak_bytes, arena.at = here, i
    at = arena.at
    alive = [b for b in kept if b.start <= at and (at < b.end or (at == b.end and id(b) not in overtaken))]
    arena.alive = sorted([(b.node, b.nbytes) for b in alive], key=lambda p: -p[1])
    return arena


def _branch_results(c: Computation) -> None:
    """A conditional's result exists from where a branch writes it: until then it is the branch's own."""
    for b in c.buffers.values():
        if b.node.op != "gte" or b.node.operands[0].op != "conditional" or b.place is not None:
            continue
        b.start = min(b.start + 1, len(c.order) - 1)
        for part in c.inside[id(b.node.operands[0])]:
            inner = part.find(part.g.outputs[b.node.attrs])
            if inner is not None and inner.place == "result":
                inner.place = None


def _use_results(found: list[Buffer], results: list[Buffer], arguments: dict[int, Buffer]) -> None:
    """Places temporaries in results that are not written yet: largest first, smallest fitting result."""
    if not results:
        return
    results = sorted(results, key=lambda b: (-b.nbytes, b.rank))[::-1]
    biggest = results[-1].nbytes
    sizes = [r.nbytes for r in results]
    written = np.array([r.first for r in results])
    # A place's temporaries follow each other in time: a new one need only be held against its neighbours.
    occupied: list[list[Buffer]] = [[] for _ in results]
    firsts: list[list[int]] = [[] for _ in results]  # of those
    fitting = [b for b in found if b.place is None and b.nbytes <= biggest]
    temps = sorted(fitting, key=lambda b: (-b.nbytes, b.rank))
    for b in temps:
        if b.nbytes < SMALL_BYTES:
            break
        first, last = b.first, b.last
        fits = bisect_left(sizes, b.nbytes)
        for k in (fits + np.flatnonzero(written[fits:] >= last)).tolist():
            others = occupied[k]
            at = bisect_left(firsts[k], first)
            if at and others[at - 1].last > first:
                continue
            r = results[k]
            if r.first == last and _clash(b, r):
                continue
            if id(r) in arguments and _clash(b, arguments[id(r)]):
                continue
            near = others[max(0, at - 2) : bisect_right(firsts[k], last, lo=at)]
            if not any(_clash(b, other) for other in near):
                b.place = r
                others.insert(at, b)
                firsts[k].insert(at, first)
                break


def _clash(b: Buffer, other: Buffer) -> bool:
    """Whether two buffers cannot live in one place."""
    if other.first > b.last or other.last < b.first:
        return False
    if other.first == b.last:
        return not _reads_only_in_place(other, b)
    if other.last == b.first:
        return not _reads_only_in_place(b, other)
    return True


def _reads_only_in_place(b: Buffer, o: Buffer) -> bool:
    """Whether `b`'s operation may write over `o` wherever it reads it."""
    if b.home is None or b.home is not o.home:
        return False
    reads = [x for x in inputs(b.node) if b.home.find(x) is o]
    return bool(reads) and all(_may_overwrite(b, o, x) for x in reads)
