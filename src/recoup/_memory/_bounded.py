"""recoup's own bounded loops (`recoup.scan` and its like): lowered as the program that they compile to."""

import functools
from typing import Any

import jax

from recoup import _compat
from recoup._memory._graph import Node
from recoup._memory._lower import Lowering, rule

_COMPUTES = {
    "recoup_loop": "compute_run",
    "recoup_loop_tangent": "compute_tangent",
    "recoup_loop_reverse": "compute_reverse",
    "recoup_loop_second": "compute_second",
}


@functools.lru_cache(maxsize=64)
def _program(name: str, avals: tuple[Any, ...], params: tuple[tuple[str, Any], ...]) -> Any:
    from recoup._loops import compute  # only programs with such a loop need the engine

    fun = getattr(compute, _COMPUTES[name])
    args = [_compat.as_struct(aval) for aval in avals]
    return jax.make_jaxpr(functools.partial(fun, **dict(params)))(*args)


@rule(*_COMPUTES)
def _bounded_loop(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    avals = tuple([v.aval for v in eqn.invars])
    closed = _program(eqn.primitive.name, avals, tuple(sorted(eqn.params.items())))
    inner, consts = _compat.open_jaxpr(closed)
    return low.jaxpr(inner, [low.const(c) for c in consts], xs)
