"""Copies that keep aliased buffers apart: what loops, in-place updates and results need.

An operation that updates its first operand in place needs that operand to itself; a loop needs its
carries to itself, and within its body may write a carry's new value over the old one only when
nothing reads the old one afterwards; a result may not be an argument, a constant or another result.
Where that does not hold the compiler inserts a copy, which is a buffer.
"""

from heapq import heappop, heappush

from recoup._memory._graph import Graph, Node, relink
from recoup._memory._kernels import remove_user
from recoup._memory._tables import ELEMENTWISE

IN_PLACE = frozenset({"dynamic-update-slice", "scatter", "sort"})
ALIASES = frozenset({"reshape", "gte", "barrier", "transpose"})
HOLDERS = frozenset({"barrier", "while", "conditional"})  # whose results may be other names of what they read


def root_op(node: Node) -> str:
    """The operation that writes the node's result."""
    if node.fused is not None:
        return node.fused.root.op  # type: ignore[no-any-return]
    return node.op


def updated(node: Node) -> Node | None:
    """The operand that the node updates in place, if it does."""
    op = root_op(node)
    if op not in IN_PLACE or op == "sort":
        return None
    first: Node
    if node.fused is not None:
        first = node.fused.root.operands[0]
        return first if any(x is first for x in node.operands) else None
    return node.operands[0]


def passed(branches: Node, k: int) -> Node | None:
    """The operand of a conditional that all its branches return as result k, if there is one."""
    found: Node | None = None
    for g in branches.bodies:
        x = g.outputs[k]
        if x.op != "parameter":
            return None
        operand = branches.operands[1 + x.attrs]
        if found is not None and operand is not found:
            return None
        found = operand
    return found


def definer(node: Node) -> Node:
    """The node whose buffer this one stands for (a loop's element: its initial value)."""
    while True:
        op = node.op
        if op in ("reshape", "transpose"):
            node = node.operands[0]
        elif op == "gte":
            maker = node.operands[0]
            if maker.op in ("barrier", "while"):
                node = maker.operands[node.attrs]
            else:
                operand = passed(maker, node.attrs) if maker.op == "conditional" else None
                if operand is None:
                    return node
                node = operand
        else:
            return node


def invariant(body: Graph, k: int) -> bool:
    """Whether a loop hands its element k through unchanged."""
    return body.outputs[k] is body.params[k]


def _copy(x: Node) -> Node:
    return Node("copy", x.shape, x.dtype, [x], "kept", x.eqn, x.id)


def _follow(x: Node, user: Node, copy: Node) -> None:
    """Puts a copy into the list of users of what it copies, in place of the user that reads it now."""
    x.users.append(copy)
    if all(y is not x for y in user.operands):
        remove_user(x.users, user)


def _holder(node: Node) -> Node:
    """As `definer`, but a loop's results are values of their own."""
    while node.op in ("reshape", "transpose", "gte"):
        if node.op == "gte" and node.operands[0].op != "barrier":
            maker = node.operands[0]
            operand = passed(maker, node.attrs) if maker.op == "conditional" else None
            if operand is not None:
                node = operand
                continue
            if maker.op != "while" or not invariant(maker.bodies[0], node.attrs):
                return node
        node = node.operands[0].operands[node.attrs] if node.op == "gte" else node.operands[0]
    return node


def insert_copies(g: Graph, *, body: bool, aliases: dict[int, int]) -> None:
    """Inserts the copies that one computation needs.

    Args:
      g: the computation.
      body: whether it is a loop's body, whose parameters are the loop's own buffers.
      aliases: result -> parameter whose buffer it is written to (donated, or the same element of a loop).
    """
    relink(g)
    users: dict[int, list[Node]] = {}
    for node in g.nodes:
        if node.op not in ALIASES or node.op == "barrier":
            for x in dict.fromkeys(node.operands):
                users.setdefault(id(_holder(x)), []).append(node)
    place = {id(node): i for i, node in enumerate(g.nodes)}
    outs: set[int] = {id(_holder(x)) for x in g.outputs}
    owned = set(aliases.values())

    def private(x: Node, user: Node) -> bool:
        d = _holder(x)
        if d.op == "constant" or (d.op == "parameter" and not (body or d.attrs in owned)):
            return False
        if id(d) in outs:
            return False
        others = [u for u in users.get(id(d), ()) if u is not user]
        if not others:
            return True
        return precede(others, user, place)

    for node in g.nodes:
        if node.op == "while":
            seen: set[int] = set()
            inner = node.bodies[0]
            for k, x in enumerate(node.operands):
                if invariant(inner, k):
                    continue
                key = id(_holder(x))
                if key in seen or not private(x, node):
                    node.operands[k] = _copy(x)
                    _follow(x, node, node.operands[k])
                seen.add(key)
        else:
            target = updated(node)
            if target is not None and not private(target, node):
                copy = _copy(target)
                _replace(node, {target: copy})
                _follow(target, node, copy)
    taken: set[int] = set()
    copies: dict[Node, Node] = {}  # of arguments
    waiting: dict[Node, None] = {}  # what reads them
    for k, x in enumerate(g.outputs):
        d: Node = _holder(x)
        if k in aliases:
            param = g.params[aliases[k]]
            if x is param:
                taken.add(id(d))
                continue
            if d.op == "constant" or d.op == "parameter" or id(d) in taken:
                g.outputs[k] = _copy(x)
            elif (not body and id(param) in outs) or late(param, d, users, place):
                copy = _copy(param)
                copy.users = list(param.users)
                readers = users.get(id(param), [])
                copies[param] = copy
                for u in readers:
                    if u.op in HOLDERS:
                        _read_copies(u, {param: copy})
                    else:  # one may read thousands of arguments: each is seen to once, below
                        waiting[u] = None
                if not body:  # where the argument itself is a result, its copy is
                    g.outputs[:] = [
                        copy if y is param or (y.attrs == "kept" and y.operands[0] is param) else y
                        for y in g.outputs
                    ]
                waits = any(u is d or precede([u], d, place) for u in readers)
                if not waits and (not body or _fresh(d, readers)):
                    # nothing makes the new value wait for the copy: it is moved in when both are there
                    moved = g.outputs[k] = _copy(x)
                    moved.after = copy
        elif d.op in ("constant", "parameter") or id(d) in taken:
            g.outputs[k] = _copy(x)
        taken.add(id(d))
    for u in waiting:
        _read_copies(u, copies)
    g.nodes = [*g.params, *(n for n in g.alive() if n.op != "parameter")]
    relink(g)


def _fresh(node: Node, readers: list[Node]) -> bool:
    """Whether a carry is a constant spread anew, which waits for nothing, and the old one is only read."""
    taken = any(u.op in HOLDERS or updated(u) is not None for u in readers)
    return node.op == "broadcast" and node.operands[0].op == "constant" and not taken


def _replace(node: Node, new: dict[Node, Node]) -> None:
    """Makes `node` read new nodes where it read old ones."""
    node.operands = [new.get(y, y) for y in node.operands]
    if node.fused is not None:
        node.fused.rename(new)


def _read_copies(user: Node, copies: dict[Node, Node]) -> None:
    """Makes `user` read the copies of the arguments that it reads, directly or under another name."""
    new: dict[Node, Node] = {}
    for y in user.operands:
        chain = []
        z = y.operands[0] if y.attrs == "kept" else y  # a loop's own copy is one of this copy
        while z not in copies and z.op in ("reshape", "transpose"):
            chain.append(z)
            z = z.operands[0]
        if z not in copies:
            continue
        made = copies[z]
        for link_ in reversed(chain):
            made = Node(link_.op, link_.shape, link_.dtype, [made], link_.attrs, link_.eqn, link_.id)
        if y.attrs == "kept":
            y.operands = [made]
        else:
            new[y] = made
    if new:
        _replace(user, new)


def late(param: Node, new: Node, users: dict[int, list[Node]], place: dict[int, int]) -> bool:
    """Whether something may read a carry after its new value is written."""
    if new is param:
        return False
    reads = users.get(id(param), [])
    if not reads:
        return False
    earlier = [u for u in reads if u is not new]
    if len(earlier) < len(reads) and not overwrites(new, param):
        return True
    return not precede(earlier, new, place)


def overwrites(node: Node, x: Node) -> bool:
    """Whether the node may write its result over `x`."""
    if updated(node) is x:
        return True
    if node.op == "sort":
        return x is node.operands[0]
    if node.op == "gte" and node.operands[0].op == "sort":
        return x is node.operands[0].operands[node.attrs]
    if node.fused is not None:
        return node.fused.in_place(x) and x.nbytes == node.nbytes and x.shape == node.shape
    return node.op in ELEMENTWISE and node.op != "copy" and x.shape == node.shape and x.nbytes == node.nbytes


def inputs(node: Node) -> list[Node]:
    """What the operation that writes the node's buffer reads."""
    if node.op == "gte" and node.operands[0].op == "sort":
        return node.operands[0].operands
    return node.operands


def precede(nodes: list[Node], last: Node, place: dict[int, int]) -> bool:
    """Whether `last` depends on all of `nodes`; `place` is each node's position, operands first."""
    # the latest first: where one is missing it is mostly that one, and nothing before it is looked at
    latest_first = sorted(nodes, key=lambda node: -place.get(id(node), -1))
    return all(_depends(last, node, place) for node in latest_first)


def _depends(last: Node, node: Node, place: dict[int, int]) -> bool:
    """Whether `last` depends on `node`: a walk towards the earliest, never past it."""
    end = place.get(id(node), -1)
    seen: set[int] = set()
    heap: list[tuple[int, int, Node]] = []
    reached = last
    while True:
        for x in reached.operands:
            if x is node:
                return True
            at = place.get(id(x), end)  # copies made meanwhile have no position: they are looked through
            if at >= end and id(x) not in seen:
                seen.add(id(x))
                heappush(heap, (at, len(seen), x))
        if not heap:
            return False
        reached = heappop(heap)[2]
