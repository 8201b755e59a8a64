"""Rewritings of a region's jaxpr: calls inlined, inner regions dissolved, callbacks dropped, reads traced
back.

Idea: a region decides value by value what to keep, so it looks through calls (`jit`, inner regions) that
would hide a value from it; an inner region belongs to the outer one. Loops and branches stay as they are,
rewritten inside. Limits: calls with constants, shardings or compiler options of their own, and calls that
touch mutable references, stay calls; custom derivatives stay whole until they are differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any

from recoup import _compat
from recoup._compat import Literal, Var
from recoup._regions.names import diagnostic_p, keep_p
from recoup.policies import PRODUCTS

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_CALLS |= {"eval_jaxpr": "jaxpr", "recoup_region": "jaxpr"}
REGIONS = frozenset(["recoup_region"])
CALLS = frozenset(_CALLS) - REGIONS
JAX_REGIONS = frozenset(["remat2", "checkpoint"])
_CALLS |= dict.fromkeys(JAX_REGIONS, "jaxpr")
_BODIES = frozenset(
    ["scan", "while", "cond", "shard_map", "jit", "pjit", "closed_call", "checkpoint", "remat2"]
)
_CALLBACKS = frozenset(["debug_callback", "debug_print"])
_CALLBACK_EFFECTS = frozenset(["DebugEffect", "OrderedDebugEffect"])

# Operations that only view or move data: merged with the forward pass or not, they keep nothing alive.
_VIEWS = frozenset(
    [
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "split",
        "rev",
        "copy",
        "copy_p",
        "iota",
        "stop_gradient",
        "random_wrap",
        "random_unwrap",
        "name",
        "recoup_keep",
        "recoup_diagnostic",
    ]
)


def map_bodies(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """The equation with `change` applied to each of its bodies, as open jaxprs."""

    def one(item: Any) -> Any:
        if not hasattr(item, "eqns"):
            return item
        return _compat.with_open(item, change)

    if eqn.primitive.name not in _BODIES:
        return eqn
    params = {
        key: type(param)(one(item) for item in param) if isinstance(param, tuple | list) else one(param)
        for key, param in eqn.params.items()
    }
    same = all(params[key] is param or params[key] == param for key, param in eqn.params.items())
    return eqn if same else eqn.replace(params=params)


def inline(jaxpr: Any, *, what: frozenset[str] = CALLS | REGIONS) -> Any:
    """The open jaxpr with calls of these kinds inlined, in the bodies of its loops too."""
    if not _has_calls(jaxpr, what):
        return jaxpr
    eqns: list[Any] = []
    env: dict[Any, Any] = {}
    _inline_into(eqns, jaxpr, env, None, what)
    outvars = [_read(env, v) for v in jaxpr.outvars]
    return jaxpr.replace(eqns=eqns, outvars=outvars)


def _has_calls(jaxpr: Any, what: frozenset[str]) -> bool:
    return any(
        _body(eqn, what) is not None or eqn.primitive.name in _BODIES or _compat.classic(eqn) is not eqn
        for eqn in jaxpr.eqns
    )


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom if isinstance(atom, Literal) else env.get(atom, atom)


def _inline_into(eqns: list[Any], jaxpr: Any, env: dict[Any, Any], caller: Any, what: frozenset[str]) -> None:
    for inner in map(_compat.classic, jaxpr.eqns):
        eqn = inner if caller is None else _compat.under(caller, inner)
        invars = [_read(env, v) for v in inner.invars]
        body = _body(inner, what)
        if body is not None:
            local = dict(zip(body.invars, invars, strict=True))
            _inline_into(eqns, body, local, eqn, what)
            env.update((v, _read(local, o)) for v, o in zip(inner.outvars, body.outvars, strict=True))
            continue
        outvars = inner.outvars
        if caller is not None:  # the body may be inlined twice
            outvars = [Var(v.aval) for v in inner.outvars]
            env.update(zip(inner.outvars, outvars, strict=True))
        eqn = eqn.replace(invars=invars, outvars=outvars)
        eqns.append(map_bodies(eqn, lambda body: inline(body, what=what)))


def _body(eqn: Any, what: frozenset[str]) -> Any:
    """The open jaxpr of a call that may be inlined."""
    name = eqn.primitive.name
    if name not in what:
        return None
    if name in ("jit", "pjit") and not _compat.is_plain_jit(eqn):
        return None
    body, consts = _compat.open_jaxpr(eqn.params[_CALLS[name]])
    if consts or _compat.const_vars(body) or _compat.touches_references(body):
        return None
    return body


def without_callbacks(jaxpr: Any) -> Any:
    """The open jaxpr without debugging callbacks, which the forward pass has already run."""
    if not any(type(e).__name__ in _CALLBACK_EFFECTS for e in jaxpr.effects):
        return jaxpr
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name not in _CALLBACKS:
            eqn = map_bodies(eqn, without_callbacks)
            eqns.append(eqn.replace(effects=_silent(eqn.effects)))
    return jaxpr.replace(eqns=eqns, effects=_silent(jaxpr.effects))


def _silent(effects: Any) -> set[Any]:
    return {e for e in effects if type(e).__name__ not in _CALLBACK_EFFECTS}


def records_nothing(jaxpr: Any) -> bool:
    """Whether a body has no tensor operation: names on values are none."""
    return all(eqn.primitive is keep_p or eqn.primitive is diagnostic_p for eqn in jaxpr.eqns)


def count_products(jaxpr: Any) -> int:
    """Matrix products and convolutions in an open jaxpr, its loops' bodies included once."""
    return sum(
        (eqn.primitive.name in PRODUCTS) + sum(count_products(_compat.open_jaxpr(b)[0]) for b in _bodies(eqn))
        for eqn in jaxpr.eqns
    )


def _bodies(eqn: Any) -> list[Any]:
    params = [p if isinstance(p, tuple | list) else (p,) for p in eqn.params.values()]
    return [body for items in params for body in items if hasattr(body, "eqns")]


def read_groups(jaxpr: Any) -> tuple[tuple[int, ...], ...]:
    """For the operations of an open jaxpr the sets of inputs that they depend on; only the smallest sets.

    Ordering one input of each set orders every operation. Views are not counted.
    """
    upstream: dict[Any, frozenset[int]] = {v: frozenset([i]) for i, v in enumerate(jaxpr.invars)}
    found: set[frozenset[int]] = set()
    for eqn in jaxpr.eqns:
        reads = frozenset[int]().union(
            *(upstream.get(v, ()) for v in eqn.invars if not isinstance(v, Literal))
        )
        upstream.update((v, reads) for v in eqn.outvars)
        if reads and eqn.primitive.name not in _VIEWS:
            found.add(reads)
    return smallest_sets(found)


def smallest_sets(sets: Sequence[frozenset[int]] | set[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """The sets that contain no other, sorted."""
    minimal: list[frozenset[int]] = []
    for candidate in sorted(sets, key=len):
        if not any(smaller <= candidate for smaller in minimal):
            minimal.append(candidate)
    return tuple(sorted(tuple(sorted(group)) for group in minimal))


def late_results(jaxpr: Any, late: Sequence[bool]) -> list[bool]:
    """Which results of an open jaxpr depend on its late inputs."""
    known = {v for v, is_late in zip(jaxpr.invars, late, strict=True) if is_late}
    for eqn in jaxpr.eqns:
        known.update(v for v, is_late in zip(eqn.outvars, late_outputs(eqn, known), strict=True) if is_late)
    return [not isinstance(v, Literal) and v in known for v in jaxpr.outvars]


def late_outputs(eqn: Any, late: set[Any]) -> list[bool]:
    """Which results of an equation depend on late values; looks into loops and calls, not into branches."""
    flags = [not isinstance(v, Literal) and v in late for v in eqn.invars]
    if not any(flags):
        return [False] * len(eqn.outvars)
    name = eqn.primitive.name
    if name == "scan":
        scan = _compat.scan_parts(eqn)
        body = _compat.open_jaxpr(scan.body)[0]
        fixed, carry, rest = _cut(flags, scan.num_consts, scan.num_carry)
        while True:
            out = late_results(body, [*fixed, *carry, *rest])
            grown = [a or b for a, b in zip(carry, out[: scan.num_carry], strict=True)]
            if grown == carry:
                return [*carry, *out[scan.num_carry :]]
            carry = grown
    if name == "while":
        body = _compat.open_jaxpr(eqn.params["body_jaxpr"])[0]
        count = len(eqn.outvars)
        fixed, carry = flags[len(flags) - len(body.invars) : -count], flags[-count:]
        while True:
            grown = [a or b for a, b in zip(carry, late_results(body, [*fixed, *carry]), strict=True)]
            if grown == carry:
                return carry
            carry = grown
    if name in _BODIES and name != "cond":
        (body,) = (_compat.open_jaxpr(p)[0] for p in eqn.params.values() if hasattr(p, "eqns"))
        return late_results(body, flags)
    return [True] * len(eqn.outvars)


def _cut(flags: Sequence[bool], first: int, second: int) -> tuple[list[bool], list[bool], list[bool]]:
    both = first + second
    return list(flags[:first]), list(flags[first:both]), list(flags[both:])
