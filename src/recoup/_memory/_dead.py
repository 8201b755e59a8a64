"""Dead elements of loops and branches: carried, stacked or returned, and read by nobody that matters.

An element of a loop is needed if something reads its result, if the condition reads it, or if the new value
of a needed element depends on it. (The compiler's removal of dead parameters of loops, and of unused
results of conditionals.)
"""

from recoup._memory._graph import Graph, Node


def drop_dead(g: Graph) -> None:
    """Removes dead elements here and inside, and leaves the graph pruned."""
    g.prune()
    _inside(g)  # what is dead in a body needs no operand
    changed = False
    while _shrink(g):
        changed = True
        g.prune()  # what only a dead element was made for is dead too
    if changed:
        _inside(g)


def _inside(g: Graph) -> None:
    for node in g.nodes:
        for inner in node.bodies:
            drop_dead(inner)


def _shrink(g: Graph) -> bool:
    """Removes dead elements of the loops and branches here; whether there were any."""
    changed = False
    for node in reversed(g.nodes):
        if node.op == "while":
            changed |= _loop(node)
        elif node.op == "conditional":
            changed |= _branches(node)
        elif node.op == "barrier":
            changed |= _barrier(node)
    return changed


def _barrier(node: Node) -> bool:
    read = sorted({u.attrs for u in node.users})
    if len(read) == len(node.operands):
        return False
    place = {k: i for i, k in enumerate(read)}
    node.operands = [node.operands[k] for k in read]
    for user in node.users:
        user.attrs = place[user.attrs]
    return True


def _loop(node: Node) -> bool:
    body, *others = node.bodies
    count = len(node.operands)
    read = {u.attrs for u in node.users if u.op == "gte"}
    index = {id(p): k for k, p in enumerate(body.params)}
    for g in others:
        for x in _reached([*g.outputs, *g.effects]):
            if x.op == "parameter":
                read.add(x.attrs)
    inner = [x for x in body.alive() if x.op == "while" and not x.attrs]
    for x in _reached([*body.effects, *inner]):
        if x.op == "parameter":
            read.add(x.attrs)
    if not others:
        read.add(0)  # the counter of a loop of known length
    needed: set[int] = set()
    seen: set[int] = set()
    waiting = list(read)
    while waiting:
        k = waiting.pop()
        if k in needed:
            continue
        needed.add(k)
        for x in _reached([body.outputs[k]], seen):
            if x.op == "parameter":
                waiting.append(index[id(x)])
    if len(needed) == count:
        return False
    place = {k: i for i, k in enumerate(sorted(needed))}
    node.operands = [node.operands[k] for k in place]
    body.outputs = [body.outputs[k] for k in place]
    for g in node.bodies:
        _keep_params(g, place)
    for user in node.users:
        if user.op == "gte":
            user.attrs = place[user.attrs]
    return True


def _branches(node: Node) -> bool:
    changed = False
    read = sorted({u.attrs for u in node.users if u.op == "gte"})
    if len(read) < len(node.bodies[0].outputs):
        changed = True
        place = {k: i for i, k in enumerate(read)}
        for g in node.bodies:
            g.outputs = [g.outputs[k] for k in read]
        for user in node.users:
            if user.op == "gte":
                user.attrs = place[user.attrs]
    used = {x.attrs for g in node.bodies for x in _reached([*g.outputs, *g.effects]) if x.op == "parameter"}
    if len(used) < len(node.operands) - 1:
        changed = True
        place = {k: i for i, k in enumerate(sorted(used))}
        node.operands = [node.operands[0], *(node.operands[1 + k] for k in place)]
        for g in node.bodies:
            _keep_params(g, place)
    return changed


def _keep_params(g: Graph, place: dict[int, int]) -> None:
    g.params = [g.params[k] for k in place]
    for p in g.params:
        p.attrs = place[p.attrs]


def _reached(roots: list[Node], seen: set[int] | None = None) -> list[Node]:
    """Everything that the roots depend on, themselves included, less what was seen before."""
    seen = set() if seen is None else seen
    found: list[Node] = []
    stack = list(roots)
    while stack:
        x = stack.pop()
        if id(x) not in seen:
            seen.add(id(x))
            found.append(x)
            stack.extend(x.operands)
    return found
