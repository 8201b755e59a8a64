"""A jaxpr evaluated one operation at a time, loops and branches too: what it says, without a compiler's view.

Idea: each primitive is run by itself on concrete arrays, so nothing is fused, merged or reordered, and two
programs that do the same operations on the same values give the same bits, whatever their order. That tells
a wrong rewriting from one that a compiler merely rounds differently.
Limits: slow; calls that are not listed here (sharded functions, regions under their own rules) run whole.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from recoup import _compat

_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
    "eval_jaxpr": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr", "recoup_region": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
    "remat": "jaxpr",
}  # fmt: skip
_IDENTITIES = ("recoup_barrier", "optimization_barrier")


def evaluate(closed: Any, *args: Any) -> list[Any]:
    """The results of a closed jaxpr on these arguments."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    variables = [*_compat.const_vars(jaxpr), *jaxpr.invars]
    env: dict[Any, Any] = dict(zip(variables, [*consts, *args], strict=True))
    # What nobody reads later is dropped, or a long program holds every value that it ever computed.
    last: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        last.update((v, i) for v in eqn.invars if not isinstance(v, _compat.Literal))
    results = {v for v in jaxpr.outvars if not isinstance(v, _compat.Literal)}

    def read(v: Any) -> Any:
        return v.val if isinstance(v, _compat.Literal) else env[v]

    for i, eqn in enumerate(jaxpr.eqns):
        values = [read(v) for v in eqn.invars]
        env.update(zip(eqn.outvars, _equation(eqn, values), strict=True))
        for v in eqn.invars:
            if not isinstance(v, _compat.Literal) and last[v] == i and v not in results:
                env.pop(v, None)
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, values: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _IDENTITIES:
        return values
    if name in _CALLS and _CALLS[name] in params:
        return evaluate(_closed(params[_CALLS[name]]), *values)
    if name == "cond":
        at = min(max(int(values[0]), 0), len(params["branches"]) - 1)
        return evaluate(params["branches"][at], *values[1:])
    if name == "while":
        return _while(params, values)
    if name == "scan":
        return _scan(_compat.scan_parts(eqn), eqn, values)
    return _compat.bind_eqn(eqn, values)


def _closed(jaxpr: Any) -> Any:
    if _compat.JAXPR_HOLDS_CONSTS or hasattr(jaxpr, "consts"):
        return jaxpr
    return _compat.close_jaxpr((), jaxpr.invars, jaxpr.outvars, jaxpr.eqns, ())


def _while(params: Any, values: list[Any]) -> list[Any]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    for_cond, for_body = values[:n_cond], values[n_cond : n_cond + n_body]
    carry = values[n_cond + n_body :]
    while bool(evaluate(params["cond_jaxpr"], *for_cond, *carry)[0]):
        carry = evaluate(params["body_jaxpr"], *for_body, *carry)
    return carry


def _scan(scan: Any, eqn: Any, values: list[Any]) -> list[Any]:
    consts, carry = values[: scan.num_consts], values[scan.num_consts : scan.num_consts + scan.num_carry]
    xs = values[scan.num_consts + scan.num_carry :]
    rows: list[list[Any]] = [[] for _ in eqn.outvars[scan.num_carry :]]
    steps = range(scan.length)
    for i in reversed(steps) if scan.reverse else steps:
        out = evaluate(_closed(scan.body), *consts, *carry, *(x[i] for x in xs))
        carry = out[: scan.num_carry]
        for row, value in zip(rows, out[scan.num_carry :], strict=True):
            row.append(value)
    stacked = []
    for row, v in zip(rows, eqn.outvars[scan.num_carry :], strict=True):
        ordered = row[::-1] if scan.reverse else row
        stacked.append(jnp.stack(ordered) if ordered else jnp.zeros(v.aval.shape, v.aval.dtype))
    return [*carry, *stacked]
