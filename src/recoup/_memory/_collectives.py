"""What devices exchange: a device holds the operands and the results, each in a buffer of its own.

Limits: exchanges that the compiler combines into one are counted apart.
"""

from typing import Any

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
