"""A step as one flat jaxpr: calls inlined, dead code and duplicates removed.

Idea: planning sees the whole joint program (forward, backward, optimizer) as one list of equations. Calls
that only group equations (`jit`, `closed_call`, undifferentiated custom derivatives) are inlined; whatever
has a meaning of its own (loops, branches, sharded regions, `jax.checkpoint` regions unless asked otherwise)
stays one equation. Duplicates are merged because the compiler merges them too, so a plan must not count them
twice.
Limits: a call with shardings, layouts or compiler options of its own stays a call.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recoup import _compat
from recoup._barrier import FENCE
from recoup._compat import DropVar, Literal, Var
from recoup._scopes import region_scope

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr",
    "recoup_region": "jaxpr",  # its backward holds its barrier as an equation
}
_REMATTED = "rematted_computation"  # JAX's own name for what a region computes again
_REGIONS = {"remat2": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr"}


@dataclass(frozen=True)
class Flat:
    """A flat program. `constvars` stand for `consts`, the arrays that the step closes over."""

    constvars: tuple[Any, ...]
    consts: tuple[Any, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    eqns: tuple[Any, ...]
    like: Any  # the traced jaxpr: names of arguments and results
    shards: Any = None  # of a program of one of several devices (see `_shards`)
    placed: Mapping[Any, Any] = field(default_factory=dict)  # arguments' shardings, where they are divided

    def closed(self) -> Any:
        """As a closed jaxpr, to evaluate."""
        return self.per_device() if self.shards is None else self.shards.closed(self)

    def per_device(self) -> Any:
        """As a closed jaxpr of what each device runs, to measure: its equations are the program's."""
        return _compat.close_jaxpr(
            self.constvars, self.invars, self.outvars, self.eqns, self.consts, like=self.like
        )


def flatten(closed: Any, *, dissolve_regions: bool = False) -> Flat:
    """Inlines, removes dead code, merges duplicates.

    Args:
      closed: a closed jaxpr.
      dissolve_regions: also inline existing `jax.checkpoint` regions; their recomputation then merges with
        the forward pass, and the planner decides afresh.
    """
    outs = len(_compat.open_jaxpr(closed)[0].outvars)
    jaxpr, consts = _compat.open_jaxpr(_compat.dce_jaxpr(closed, [True] * outs))
    builder = _Builder(dissolve_regions)
    env: dict[Any, Any] = {}
    for var, const in zip(_compat.const_vars(jaxpr), consts, strict=True):
        env[var] = builder.constant(const, var)
    builder.run(jaxpr, env, None)
    outvars = tuple(env.get(v, v) if not isinstance(v, Literal) else v for v in jaxpr.outvars)
    eqns = _live(_as_without_regions(builder.eqns) if dissolve_regions else builder.eqns, outvars)
    read = {v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal)}
    read |= {v for v in outvars if not isinstance(v, Literal)}
    pairs = [(v, c) for v, c in builder.constants if v in read]
    return Flat(
        tuple(v for v, _ in pairs),
        tuple(c for _, c in pairs),
        tuple(jaxpr.invars),
        outvars,
        tuple(eqns),
        closed,
    )


class _Builder:
    def __init__(self, dissolve_regions: bool):
        self.dissolve_regions = dissolve_regions
        self.calls = _CALLS | _REGIONS if dissolve_regions else _CALLS
        self.eqns: list[Any] = []
        self.constants: list[tuple[Any, Any]] = []
        self._by_id: dict[int, Any] = {}
        self._seen: dict[Hashable, list[Any]] = {}

    def constant(self, value: Any, var: Any) -> Any:
        if id(value) not in self._by_id:
            fresh = Var(var.aval)
            self._by_id[id(value)] = fresh
            self.constants.append((fresh, value))
        return self._by_id[id(value)]

    def run(self, jaxpr: Any, env: dict[Any, Any], caller: Any) -> None:
        """Appends the jaxpr's equations; `env` maps its variables to the flat program's, and is extended."""
        newer = _barriers_of_newer_remat(jaxpr) if self.dissolve_regions else set()
        for inner in jaxpr.eqns:
            invars = [v if isinstance(v, Literal) else env.get(v, v) for v in inner.invars]
            eqn = inner if caller is None else _compat.under(caller, inner)
            body = self._body(eqn)
            if body is not None:
                self._inline(eqn, body, invars, env)
                continue
            eqn = _compat.classic(eqn).replace(invars=invars)
            if id(inner) in newer or (eqn.primitive.name == "recoup_barrier" and self.dissolve_regions):
                env.update(zip(inner.outvars, invars, strict=True))
                continue
            if eqn.primitive.name == "recoup_barrier":
                # Compiled by `fit`, which keeps optimization barriers: no data dependence is needed.
                eqn = eqn.replace(params={**eqn.params, "mode": FENCE})
            if eqn.primitive.name == "recoup_keep" and self.dissolve_regions:
                eqn = eqn.replace(params={**eqn.params, "kept": None})  # a name, and no decision
            if eqn.primitive.name == "scan":
                # So that a body's calls and duplicates count once in the plain step too, as the compiler has
                # it.
                body = flatten(eqn.params["jaxpr"], dissolve_regions=self.dissolve_regions).closed()
                eqn = eqn.replace(params={**eqn.params, "jaxpr": body})
            key = _key(eqn)
            if key is not None and key in self._seen:
                for mine, theirs in zip(eqn.outvars, self._seen[key], strict=True):
                    env[mine] = theirs
                continue
            # A body inlined twice needs variables of its own each time; at the top the traced ones serve.
            outvars = eqn.outvars if caller is None and key is None else [Var(v.aval) for v in eqn.outvars]
            env.update(zip(inner.outvars, outvars, strict=True))
            self.eqns.append(eqn.replace(outvars=outvars))
            if key is not None:
                self._seen[key] = outvars

    def _body(self, eqn: Any) -> Any:
        name = eqn.primitive.name
        if (newer := _compat.newer_remat_body(eqn)) is not None:
            return newer
        param = self.calls.get(name)
        if param is None or param not in eqn.params:
            return None
        if name in ("jit", "pjit") and not _plain_jit(eqn.params):
            return None
        return eqn.params[param]

    def _inline(self, eqn: Any, body: Any, invars: Sequence[Any], env: dict[Any, Any]) -> None:
        jaxpr, consts = _compat.open_jaxpr(body)
        if eqn.primitive.name == "recoup_region":  # so that reports name it
            eqn = _compat.named(eqn, region_scope(eqn.params["name"]))
        inner: dict[Any, Any] = dict(zip(jaxpr.invars, invars, strict=True))
        for var, const in zip(_compat.const_vars(jaxpr), consts, strict=True):
            inner[var] = self.constant(const, var)
        self.run(jaxpr, inner, eqn)
        for outer, var in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[outer] = var if isinstance(var, Literal) else inner[var]


def _as_without_regions(eqns: Sequence[Any]) -> list[Any]:
    """Moves what dissolved regions computed and nothing else does (factors of derivatives) to right after
    what it reads: where it would be without regions, so that what waits for the backward is seen."""
    at: dict[Any, int] = {}
    places = []
    for i, eqn in enumerate(eqns):
        made = [at[v] for v in eqn.invars if not isinstance(v, Literal) and v in at]
        again = made and not eqn.effects and _REMATTED in str(eqn.source_info.name_stack)
        places.append(max(made) if again else i)
        at.update(dict.fromkeys(eqn.outvars, places[-1]))
    return [eqns[i] for i in sorted(range(len(eqns)), key=lambda i: (places[i], i))]


def _barriers_of_newer_remat(jaxpr: Any) -> set[int]:
    """The equations (by identity) that order the recomputations of JAX's newer `jax.checkpoint`, which traces
    its backward as a barrier and what reads it; a barrier of the user's own is none of them."""
    found = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "optimization_barrier":
            found.update(dict.fromkeys(eqn.outvars, id(eqn)))
    return {
        found[v]
        for eqn in jaxpr.eqns
        if found and _REMATTED in str(eqn.source_info.name_stack)
        for v in eqn.invars
        if not isinstance(v, Literal) and v in found
    }


def _plain_jit(params: dict[str, Any]) -> bool:
    shardings = [*params.get("in_shardings", ()), *params.get("out_shardings", ())]
    layouts = [*params.get("in_layouts", ()), *params.get("out_layouts", ())]
    return (
        all(_compat.is_unspecified(s) for s in shardings)
        and all(layout is None for layout in layouts)
        and not params.get("compiler_options_kvs")
    )


def _key(eqn: Any) -> Hashable | None:
    """What makes two equations the same computation; None for those that may not be merged."""
    if eqn.effects or not eqn.outvars or "barrier" in eqn.primitive.name:
        return None
    operands = tuple(
        (type(v.val).__name__, str(v.val), str(v.aval)) if isinstance(v, Literal) else v for v in eqn.invars
    )
    if any(isinstance(v, Literal) and getattr(v.aval, "shape", ()) != () for v in eqn.invars):
        return None
    key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())), str(eqn.ctx.compute_type))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _live(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    needed = {v for v in outvars if not isinstance(v, Literal)}
    kept = []
    for eqn in reversed(eqns):
        if _compat.effects(eqn) or any(v in needed for v in eqn.outvars if not isinstance(v, DropVar)):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return kept[::-1]
