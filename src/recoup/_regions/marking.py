"""Which values of a region's forward pass are kept: the policy applied, and what it says to the user.

Idea: a kept value gets a `recoup_keep` equation right after its producer, and everything else reads the value
through it. So the producer is computed again only if something reads it in another way: when a name comes
after an activation whose derivative reads the activation's input, the input's product is still recomputed,
and that is reported instead of happening in silence. The results of the region are kept as well where that
saves a product, as whoever reads them after the region mostly holds them anyway.
Limits: names inside a loop's body are kept per step; inside branches and `while` loops they are not.
"""

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recoup import _compat, _cost
from recoup._compat import DropVar, Literal, Var
from recoup._regions.jaxprs import late_outputs, map_bodies
from recoup._regions.names import diagnostic_p, keep_p, kept_name
from recoup.errors import RegionWarning
from recoup.policies import PRODUCTS, Candidate, Names, Policy, chooses_names, nothing

RESULT = ""  # the name under which a region's own results are kept


@dataclass
class Marks:
    """What a policy met and kept."""

    policy: Policy
    seen: set[str] = field(default_factory=set)  # names met, kept or not
    matched: set[str] = field(default_factory=set)
    by_policy: int = 0


def mark(jaxpr: Any, unknown: Sequence[bool], policy: Policy | None, *, results: bool) -> tuple[Any, Marks]:
    """The open jaxpr with kept values marked, and what the policy found.

    Args:
      jaxpr: a region's values and tangents, calls inlined.
      unknown: which inputs are tangents (or depend on some): what depends on them is never kept.
      policy: None keeps what `keep` and `diagnostic` name.
      results: whether to keep the region's results, too.
    """
    marks = Marks(nothing if policy is None else policy)
    return _mark_body(jaxpr, unknown, marks, 1, results=results), marks


def _mark_body(jaxpr: Any, unknown: Sequence[bool], marks: Marks, times: int, *, results: bool) -> Any:
    late = {v for v, u in zip(jaxpr.invars, unknown, strict=True) if u}
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars if not isinstance(v, DropVar)}
    wanted = {v for v in jaxpr.outvars if results and not isinstance(v, Literal)} & made
    named = _named_values(jaxpr, made, marks)
    env: dict[Any, Any] = {}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        invars = [v if isinstance(v, Literal) else env.get(v, v) for v in eqn.invars]
        if id(eqn) in named.dropped:  # moved to where its value is made
            env[eqn.outvars[0]] = invars[0]
            continue
        flags = [not isinstance(v, Literal) and v in late for v in eqn.invars]
        late.update(v for v, is_late in zip(eqn.outvars, late_outputs(eqn, late), strict=True) if is_late)
        eqn = _mark_loop(eqn.replace(invars=invars), flags, marks, times)
        eqns.append(eqn)
        if eqn.primitive is keep_p:
            continue
        for var in eqn.outvars:
            if isinstance(var, DropVar) or var in late:
                continue
            name = named.by_value.get(var)
            if eqn.primitive is diagnostic_p:
                name = eqn.params["name"]
            if name is None and _policy_keeps(eqn, var, marks, times):
                name = eqn.primitive.name
            if name is None and var in wanted:
                name = RESULT
            if name is not None:
                eqns += _keep(var, name, named.lines.get(var, eqn), env)
    outvars = [v if isinstance(v, Literal) else env.get(v, v) for v in jaxpr.outvars]
    return jaxpr.replace(eqns=eqns, outvars=outvars)


def _keep(var: Any, name: str, line: Any, env: dict[Any, Any]) -> list[Any]:
    """The equations that keep a value, through its diagnostic if it has one, so that this is evaluated
    once."""
    source, eqns = var, []
    if line.primitive is diagnostic_p and var not in line.outvars:
        source = Var(var.aval)
        eqns.append(line.replace(invars=[var], outvars=[source]))
    kept = Var(var.aval)
    eqns.append(_compat.new_eqn([source], [kept], keep_p, {"name": name, "kept": True}, like=line))
    env[var] = kept
    return eqns


def _mark_loop(eqn: Any, unknown: Sequence[bool], marks: Marks, times: int) -> Any:
    if eqn.primitive.name != "scan":
        return eqn
    length = times * _compat.scan_parts(eqn).length
    return map_bodies(eqn, lambda body: _mark_body(body, unknown, marks, length, results=False))


@dataclass
class _Named:
    by_value: dict[Any, str] = field(default_factory=dict)
    lines: dict[Any, Any] = field(default_factory=dict)  # value -> the equation that names it
    dropped: set[int] = field(default_factory=set)


def _named_values(jaxpr: Any, made: set[Any], marks: Marks) -> _Named:
    named = _Named()
    root: dict[Any, Any] = {}  # what a dropped name hands on -> the value: a name of a name is another one
    for eqn in jaxpr.eqns:
        name = kept_name(eqn)
        if name is None:
            continue
        marks.seen.add(name)
        ours = eqn.primitive is not _compat.name_p
        value = root.get(eqn.invars[0], eqn.invars[0])
        candidate = Candidate("name", _bytes(value), 0.0, name)
        # JAX's own names are inert unless a policy asks for them.
        always = ours and not chooses_names(marks.policy)
        if eqn.primitive is diagnostic_p or always or marks.policy.keeps(candidate):
            marks.matched.add(name)
            if value in made and value not in named.by_value:
                named.by_value[value] = name
                named.lines[value] = eqn
                if ours:
                    named.dropped.add(id(eqn))
                    root[eqn.outvars[0]] = value
    return named


def _policy_keeps(eqn: Any, var: Any, marks: Marks, times: int) -> bool:
    if kept_name(eqn) is not None:
        return False
    operation = eqn.primitive.name
    batched = operation == "dot_general" and any(eqn.params["dimension_numbers"][1])
    size = times * _bytes(var)
    keeps = marks.policy.keeps(Candidate(operation, size, times * _cost.eqn_flops(eqn), None, batched))
    marks.by_policy += keeps
    return keeps


def _bytes(atom: Any) -> int:
    return _compat.aval_bytes(atom.aval)


def report_misses(marks: Marks, region: str) -> None:
    """Warns of names that a policy asks for and the region lacks, and of a policy that keeps nothing."""
    wanted = {name for p in marks.policy.parts() if isinstance(p, Names) for name in p.wanted}
    for name in sorted(wanted - marks.seen):
        close = difflib.get_close_matches(name, sorted(marks.seen), 1, 0.5)
        if close:
            hint = f"did you mean {close[0]!r}?"
        elif marks.seen:
            hint = f"its names are {', '.join(map(repr, sorted(marks.seen)))}"
        else:
            hint = 'it has no names: give one with recoup.keep(x, "name")'
        warn(f"policy {marks.policy!r}: region {region!r} has no value named {name!r}; {hint}")
    if not wanted and marks.policy != nothing and not marks.by_policy and not marks.matched:
        warn(f"policy {marks.policy!r} keeps no value of region {region!r}: all of it is recomputed")


def report_recomputed_producers(first: Any, second: Any, region: str) -> None:
    """Warns of kept names whose product is computed again all the same.

    Args:
      first: the forward part, with its marks.
      second: what the backward computes, dead code removed.
      region: the region's name.
    """
    again = {v for eqn in second.eqns if eqn.primitive.name in PRODUCTS for v in eqn.outvars}
    if not again:
        return
    producer = {v: eqn for eqn in first.eqns for v in eqn.outvars}
    for eqn in first.eqns:
        if eqn.primitive is not keep_p or not eqn.params["kept"] or eqn.params["name"] in (RESULT, *PRODUCTS):
            continue
        product = _product_behind(eqn, producer, again)
        if product is not None:
            name, line = eqn.params["name"], _compat.user_frame(product)
            where = f" ({line.file}:{line.line})" if line is not None else ""
            warn(
                f"region {region!r}: {name!r} is kept, and the {product.primitive.name}{where} that it is "
                "computed from is still recomputed, because a derivative reads that product itself; name the "
                "product instead, as in activation(keep(x @ w))"
            )


def _product_behind(eqn: Any, producer: dict[Any, Any], again: set[Any]) -> Any:
    """The product that reaches a kept value through elementwise operations only and is computed again."""
    front, visited = list(eqn.invars), set()
    while front:
        var = front.pop()
        source = None if isinstance(var, Literal) else producer.get(var)
        if source is None or var in visited:
            continue
        visited.add(var)
        if source.primitive.name in PRODUCTS:
            if var in again:
                return source
        elif source.primitive is not keep_p:
            front.extend(source.invars)
    return None


def warn(message: str) -> None:
    """A `RegionWarning` at the user's line."""
    warnings.warn(message, RegionWarning, stacklevel=_compat.user_stacklevel())
