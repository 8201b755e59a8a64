"""Values read out of a program without threading them through its returns: `diagnostic` and `collect`.

Idea: `diagnostic` is an identity with a name. `collect` traces a function and evaluates its jaxpr, noting
what passes through those identities; loops give their diagnostics as stacked outputs, regions as results. The
idea of harvesting tagged values is that of Oryx's `sow` and `reap`.
Limits: a diagnostic inside a branch, a `while` loop, a sharded function or a custom derivative rule is
refused with its line, as there is no place to return it from.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from recoup import _compat
from recoup._compat import Literal
from recoup._regions.names import diagnostic_p
from recoup._regions.primitive import region_p
from recoup._regions.tracing import trace_call
from recoup.errors import DiagnosticError

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_CALLS |= {"eval_jaxpr": "jaxpr"}

Found = list[tuple[str, Any]]


def diagnostic(x: Any, name: str) -> Any:
    """Marks a value to be read by `collect`, anywhere inside a function, a region or a scan.

    Inside a region the value is kept, so that it is computed once. Read the value that this returns from
    there on: a diagnostic that nothing reads may be removed as dead code when it is inside a loop.

    Args:
      x: an array, or a tree of arrays; the leaves of a tree are collected as `name` followed by their paths.
      name: the key under which `collect` returns it.

    Returns:
      `x`.
    """
    if not isinstance(name, str):
        raise TypeError(f"recoup.diagnostic names a value with a string, got {name!r}")

    def mark(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return diagnostic_p.bind(leaf, name=name + jax.tree_util.keystr(path))

    return jax.tree_util.tree_map_with_path(mark, x)


def collect(fun: Callable[..., Any]) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A function that also returns what `diagnostic` marks inside `fun`.

    Args:
      fun: any function of arrays; it may be a gradient, a step, or a loss that is differentiated later.

    Returns:
      A function with the signature of `fun` that returns `(fun(...), diagnostics)`. `diagnostics` maps each
      name to its value: stacked along a new first axis for a diagnostic inside a scan, a list in the order of
      evaluation if a name is used more than once.

    Raises:
      DiagnosticError: E-DIAG-001, for a diagnostic in a place that cannot return it, with its line.
    """

    @functools.wraps(fun)
    def collecting(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        name = getattr(fun, "__name__", "fun")
        traced = trace_call(functools.partial(fun, *args, **kwargs), "recoup.collect", name)
        outs, found = _evaluate(traced.jaxpr, traced.operands)
        return traced.rebuild(outs), _by_name(found)

    return collecting


def _by_name(found: Found) -> dict[str, Any]:
    grouped: dict[str, list[Any]] = {}
    for name, value in found:
        grouped.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in grouped.items()}


def _evaluate(jaxpr: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
    """Evaluates an open jaxpr; also returns the diagnostics met, in order."""
    env = dict(zip(jaxpr.invars, operands, strict=True))
    found: Found = []
    for eqn in jaxpr.eqns:
        values = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
        outs = _evaluate_eqn(eqn, values, found)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars], found


def _evaluate_eqn(eqn: Any, values: list[Any], found: Found) -> Sequence[Any]:
    name = eqn.primitive.name
    if eqn.primitive is diagnostic_p:
        found.append((eqn.params["name"], values[0]))
        return values
    if not _inside(eqn):
        return _compat.bind_eqn(eqn, values)
    if name in _CALLS:
        body, consts = _compat.open_jaxpr(eqn.params[_CALLS[name]])
        outs, inner = _evaluate(*_with_consts(body, consts, values))
        found.extend(inner)
        return outs
    if eqn.primitive is region_p:
        return _evaluate_region(eqn, values, found)
    if name == "scan":
        return _evaluate_scan(eqn, values, found)
    (first, *_) = _inside(eqn)
    line = _compat.user_frame(first)
    where = f" ({line.file}:{line.line})" if line is not None else ""
    raise DiagnosticError(
        f"diagnostic {first.params['name']!r}{where} is inside a {name}, which has no place to return it "
        "from; move it out, or return the value yourself"
    )


def _inside(eqn: Any) -> list[Any]:
    """The diagnostics in the bodies of an equation."""
    found = []
    for param in eqn.params.values():
        for body in param if isinstance(param, tuple | list) else (param,):
            for inner in getattr(body, "eqns", ()):
                found += [inner] if inner.primitive is diagnostic_p else _inside(inner)
    return found


def _with_consts(body: Any, consts: Sequence[Any], values: Sequence[Any]) -> tuple[Any, list[Any]]:
    if not consts:
        return body, list(values)
    return _compat.constants_as_inputs(body), [*consts, *values]


def _evaluate_region(eqn: Any, values: list[Any], found: Found) -> Sequence[Any]:
    names: list[str] = []
    body = eqn.params["jaxpr"]

    def wider(*args: Any) -> list[Any]:
        outs, inner = _evaluate(body, args)
        names[:] = [name for name, _ in inner]
        return [*outs, *(value for _, value in inner)]

    label = f"region {eqn.params['name']!r}"
    jaxpr, consts = _compat.trace_flat(wider, [v.aval for v in body.invars], label)
    captured = (*[True] * len(consts), *eqn.params["captured"])
    outs = region_p.bind(*consts, *values, **dict(eqn.params, jaxpr=jaxpr, captured=captured))
    count = len(body.outvars)
    found.extend(zip(names, outs[count:], strict=True))
    return list(outs[:count])


def _evaluate_scan(eqn: Any, values: list[Any], found: Found) -> Sequence[Any]:
    scan = _compat.scan_parts(eqn)
    body, body_consts = _compat.open_jaxpr(scan.body)
    split = scan.num_consts + scan.num_carry
    consts, carry, xs = values[: scan.num_consts], values[scan.num_consts : split], values[split:]
    names: list[str] = []

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        outs, inner = _evaluate(*_with_consts(body, body_consts, [*consts, *carry, *x]))
        names[:] = [name for name, _ in inner]
        return outs[: scan.num_carry], (outs[scan.num_carry :], [value for _, value in inner])

    carry, (ys, stacked) = jax.lax.scan(
        step, carry, xs, length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    found.extend(zip(names, stacked, strict=True))
    return [*carry, *ys]
