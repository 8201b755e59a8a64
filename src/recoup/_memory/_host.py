"""Moves between the device's memory and the host's.

On a CPU both are the same memory and a move is nothing at all. Elsewhere what lies in host memory takes no
bytes on the device; fetched, it has a buffer of its own again.
"""

from typing import Any

from recoup import _compat
from recoup._memory._graph import Node
from recoup._memory._lower import Lowering, rule


@rule("device_put")
def _device_put(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    if not (low.g.host_apart and _compat.is_memory_move(eqn)):
        return list(xs)
    if _compat.on_host(eqn.outvars[0].aval):
        return [low.g.new("custom-call", (), "uint8", tuple(xs), "to host")]
    return low.multi("custom-call", eqn, xs, "from host")
