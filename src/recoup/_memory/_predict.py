"""The pipeline of the memory model: jaxpr -> graph -> layouts -> fusion -> copies -> schedule ->
buffers.

It imitates XLA:CPU's pipeline pass by pass; each module says which pass it follows. Other backends
have the same structure and other rules: their predictions are marked as unverified in
`Prediction.opaque`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from recoup import _compat
from recoup._collector import paused
from recoup._memory import (
    _bounded,
    _collectives,
    _control,
    _host,
    _math,
    _ordering,
    _random,
    _shapes,
    _special,
)
from recoup._memory._allocate import Arena, allocate
from recoup._memory._copies import definer, insert_copies, passed
from recoup._memory._dead import drop_dead
from recoup._memory._fusion import fuse_loops
from recoup._memory._graph import ITEM_BYTES, Graph, Node
from recoup._memory._heap import heap_bytes
from recoup._memory._late import simplify_late
from recoup._memory._layout import assign_layouts
from recoup._memory._library import fuse_library
from recoup._memory._lower import Lowering, full_shape, squeeze
from recoup._memory._results import Life, Live, MemoryBytes, Point, Prediction
from recoup._memory._schedule import breadth_first, depth_first
from recoup._memory._tables import SLACK, Tables, tables

# They register their rules.
_LOADED = (_bounded, _collectives, _control, _host, _math, _ordering, _random, _shapes, _special)
# What is not known, and how it may be taken otherwise: ties in the schedule, the places of equal buffers.
LIKELY, REVERSED = (False, ""), (True, "")
EQUALS = ((False, "backwards"), (False, "short"))
POINTER_BYTES = 8  # several results come with a table of pointers


def _aval_bytes(aval: Any) -> int:
    shape, dtype = full_shape(aval)
    return int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES.get(dtype, 1)


def _lower(jaxpr: Any, *, barriers_hold: bool, far: bool = True, host_apart: bool = False) -> Lowering:
    """The program as a small graph. `far`: see `Lowering`."""
    inner, consts = _compat.open_jaxpr(jaxpr)
    g = Graph()
    g.entry, g.host_apart = True, host_apart
    t = tables(_compat.JAX_VERSION)
    g.native_half, g.merges_constants = t.native_half, t.merges_constants
    lowering = Lowering(g, {}, {}, barriers_hold=barriers_hold, far=far)
    params = []
    for v in inner.invars:
        shape, dtype = full_shape(v.aval)
        params.append(g.param(squeeze(shape), dtype))
    g.outputs = lowering.jaxpr(inner, [lowering.const(c) for c in consts], params, top=True)
    return lowering


def _lowered(jaxpr: Any, *, barriers_hold: bool, host_apart: bool = False) -> list[Lowering]:
    """The program; and once more if a loop moved out of two loops: the compiler may leave it between them."""
    lower = functools.partial(_lower, jaxpr, barriers_hold=barriers_hold, host_apart=host_apart)
    whole = lower()
    if not whole.onward:
        return [whole]
    return [whole, lower(far=False)]


def _optimize(g: Graph, t: Tables) -> None:
    """Layouts and fusion, in this computation and all inside it. Needs it pruned."""
    simplify_late(g)
    g.renumber()
    for node in g.nodes:
        for inner in node.bodies:
            _optimize(inner, t)
    assign_layouts(g, t)
    g.prune()
    fuse_library(g, t)
    g.reorder()
    fuse_loops(g, t)


def _finish(g: Graph, aliases: dict[int, int]) -> None:
    """From the program as it is written to operations with their copies."""
    drop_dead(g)
    _optimize(g, tables(_compat.JAX_VERSION))
    _copy_all(g, body=False, aliases=aliases)


def _copy_all(g: Graph, *, body: bool, aliases: dict[int, int]) -> None:
    for node in g.nodes:
        for i, inner in enumerate(node.bodies):
            looped = node.op == "while" and i == 0
            kept = {k: k for k in range(len(inner.outputs))} if looped else {}
            if node.op == "conditional":
                kept = {k: x.attrs for k, x in enumerate(inner.outputs) if passed(node, k) is not None}
            _copy_all(inner, body=looped, aliases=kept)
    insert_copies(g, body=body, aliases=aliases)


def _branches(g: Graph) -> bool:
    """Whether a branch or a loop of unknown length is in it: the module's order is less well known then."""
    return any(
        node.op == "conditional"
        or (node.op == "while" and not node.attrs)
        or any(map(_branches, node.bodies))
        for node in g.nodes
        if node.bodies
    )


def _arena(g: Graph, donated: dict[int, int], way: tuple[bool, str], deep: bool) -> Arena:
    stay = tables(_compat.JAX_VERSION).barriers_stay
    schedule = functools.partial(depth_first if deep else breadth_first, reverse=way[0])
    return allocate(g, schedule, donated, barriers_stay=stay, equal=way[1])


@paused()
def predict(
    jaxpr: Any,
    *,
    donated: Sequence[bool] = (),
    backend: str = "cpu",
    barriers_hold: bool = True,
    host_apart: bool = False,
    orders: int = 2,
    deep: bool = False,
) -> Prediction:
    """Predicts the compiled memory of a program from its jaxpr, without compiling.

    Args:
      jaxpr: a closed jaxpr, usually of a whole training step.
      donated: for each input, whether it is donated.
      backend: the platform; only "cpu" is verified against its compiler.
      barriers_hold: whether barriers survive the compiler's common-subexpression elimination.
      host_apart: whether what is moved to host memory takes nothing on the device. On a CPU it does.
      orders: how many orders of simultaneously ready operations to try, of two; the interval spans them. With
        branches or loops of unknown length in the program two ways more are tried to place equal buffers.
      deep: whether the compiler is told to order operations depth first (see `recoup._levers`).

    Returns:
      The prediction, all sizes in bytes.
    """
    inner, _ = _compat.open_jaxpr(jaxpr)
    lowering, *others = _lowered(jaxpr, barriers_hold=barriers_hold, host_apart=host_apart)
    if backend != "cpu":
        lowering.opaque[f"backend {backend} (rules unverified)"] = None
    # what no result depends on is not passed to the compiled program at all
    _, used = _compat.dce_open(inner, [True] * len(inner.outvars))
    arguments = sum(_aval_bytes(v.aval) for v, u in zip(inner.invars, used, strict=True) if u)
    donated = [d and u for d, u in zip(donated, used, strict=False)]
    outputs = sum(_aval_bytes(v.aval) for v in inner.outvars)
    if len(inner.outvars) > 1:
        outputs += POINTER_BYTES * len(inner.outvars)
    constants = sum(lowering.constants.values())
    aliases = _match_donations(inner, donated)
    aliased = sum(_aval_bytes(inner.outvars[k].aval) for k in aliases)

    arenas = []
    for way in (lowering, *others):
        _finish(way.g, aliases)
        ways = [LIKELY, REVERSED][: orders if way is lowering else 1]
        if _branches(way.g):
            ways += EQUALS
        arenas += [_arena(way.g, aliases, taken, deep) for taken in ways]
    layouts = [heap_bytes(a.plan, a.peak_bytes) for a in arenas]
    low = round(min(a.peak_bytes for a in arenas) * (1 - SLACK))
    high = round(max(first for _, first in layouts) * (1 + SLACK))

    def memory(temporaries: int) -> MemoryBytes:
        return MemoryBytes(arguments, outputs, aliased, temporaries, constants)

    first = arenas[0]
    sources = _Sources(inner)
    timeline = tuple(
        Point(i, live, _name(n), n.eqn, sources[n.eqn])
        for i, (n, live) in enumerate(zip(first.order, first.live, strict=True))
    )
    peak = tuple(Live(b, _name(n), n.eqn, sources[n.eqn], n.shape, n.dtype) for n, b in first.alive)
    lives = tuple(
        Life(size, start, end, _name(n), n.eqn, inside, n.shape, n.dtype)
        for n, size, start, end, inside in first.lives
    )
    return Prediction(
        memory(low), memory(layouts[0][0]), memory(high), timeline, peak, tuple(lowering.opaque), lives
    )


def buffers(jaxpr: Any) -> list[tuple[bool, ...]]:
    """For each top-level equation, which of its results the compiler writes to a buffer.

    The others are fused into their readers: recomputed there, if there are several. Results that are another
    value under another name (a reshape, a barrier's result) count as written if that value is.
    """
    lowering = _lowered(jaxpr, barriers_hold=True)[0]
    g = lowering.g
    drop_dead(g)
    _optimize(g, tables(_compat.JAX_VERSION))
    written = set()
    for node in g.nodes:
        written.add(id(node))
        if node.fused is not None:
            written.add(id(node.fused.root))
        elif node.op == "library":
            written.add(id(node.attrs[2]))
    return [tuple([_read(x) and id(definer(x)) in written for x in outs]) for outs in lowering.values]


def _read(node: Node) -> bool:
    """Whether a barrier passes this value on: what nobody reads has left it."""
    while node.op in ("reshape", "transpose"):
        node = node.operands[0]
    return node.op != "gte" or node.operands[0].op != "barrier" or bool(node.users)


def _name(node: Node) -> str:
    if node.fused is not None:
        return str(node.fused.root.op)
    if node.op == "library":
        return str(node.attrs[0])
    if node.op == "opaque" and isinstance(node.attrs, str):
        return node.attrs
    return node.op


def _match_donations(inner: Any, donated: Sequence[bool]) -> dict[int, int]:
    """Output -> donated input of the same shape and dtype, first come first served as JAX matches them."""
    free: dict[Any, list[int]] = {}
    for i, (v, d) in enumerate(zip(inner.invars, donated, strict=False)):
        if d:
            free.setdefault(full_shape(v.aval), []).append(i)
    out: dict[int, int] = {}
    for k, v in enumerate(inner.outvars):
        have = free.get(full_shape(v.aval))
        if have:
            out[k] = have.pop(0)
    return out


class _Sources:
    """`file:line` of each top-level equation, read when asked for."""

    def __init__(self, inner: Any):
        self.eqns = inner.eqns
        self.cache: dict[int, str] = {-1: ""}

    def __getitem__(self, i: int) -> str:
        got = self.cache.get(i)
        if got is None:
            frame = _compat.user_frame(self.eqns[i])
            got = self.cache[i] = f"{frame.file}:{frame.line}" if frame is not None else ""
        return got
