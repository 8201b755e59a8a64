"""What devices exchange: a device holds the operands and the results, each in a buffer of its own.

Where the compiler divides arrays, a constraint on an argument that leaves it whole gathers it.
Limits: exchanges that the compiler combines into one are counted apart.
"""

from typing import Any

from recoup._cost import constraint_bytes
from recoup._memory._graph import Node
from recoup._memory._lower import Lowering, rule, squeeze


@rule("psum", "psum_invariant", "pmin", "pmax", "all_gather", "all_gather_invariant", "all_gather_reduced",
      "all_to_all", "ppermute", "reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter")  # fmt: skip
def _exchange(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    name = eqn.primitive.name
    outs = []
    # Operands of one equation are exchanged apart, and combined again by the compiler.
    for v, x in zip(eqn.outvars, xs, strict=True):
        outs.append(low.g.new("opaque", squeeze(tuple(v.aval.shape)), x.dtype, (x,), name))
    return outs


@rule("axis_index")
def _axis_index(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return low.multi("opaque", eqn, xs, "axis_index")


_MOVES = frozenset(["convert", "reshape", "transpose", "slice", "dynamic-slice", "copy", "broadcast"])


@rule("sharding_constraint", "reshard")
def _constrain(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    x = xs[0]
    while x.operands and (x.op in _MOVES or (x.op == "gte" and x.operands[0].op == "barrier")):
        x = x.operands[0].operands[x.attrs] if x.op == "gte" else x.operands[0]
    received, copies = constraint_bytes(eqn)
    if x.op != "parameter" or not received:
        return list(xs)
    whole = low.g.new("opaque", xs[0].shape, xs[0].dtype, (xs[0],), "all-gather")
    whole.nbytes *= copies  # sizes are those of all devices together
    return [whole]
