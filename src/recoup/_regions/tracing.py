"""One call of a region: the body traced, everything that is no traced array passed through.

Idea: the body is traced as a function of nothing; whatever it reads, its arguments included, is captured, and
the captured values become the region's operands. So a value needs no listing, wherever it hides (a closure, a
dataclass, an object's attribute), and arguments that are no arrays reach the body as they are. The results
are taken apart the same way: traced arrays go through the region, the rest is handed back as the body made
it. Mutable references are taken out of the region: it reads their contents as operands and returns new
contents, which are written once, outside.
Limits: the body is traced at every call, so that it always sees the current values of what it captures;
nothing is cached. Python values inside objects that are neither pytrees nor dataclasses are not looked into.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from recoup import _compat
from recoup._regions import jaxprs
from recoup._regions.primitive import region_p, region_params
from recoup.policies import Policy

_Tracer = jax.core.Tracer


def call_region(
    body: Callable[[], Any],
    arguments: Any,
    name: str,
    where: str,
    policy: Policy | None,
    *,
    allow_empty: bool,
) -> Any:
    """Evaluates `body()` as a region.

    Args:
      body: the function with its arguments bound.
      arguments: its arguments, to tell them from what it captured.
      name: the region's name in reports and errors.
      where: the function and its line, for errors about escaped tracers.
      policy: what to keep; None for what `keep` names.
      allow_empty: whether a body without tensor operations is fine.
    """
    traced = trace_call(body, f"recoup region {name!r}", where)
    jaxpr, operands = jaxprs.inline(traced.jaxpr, what=jaxprs.REGIONS), traced.operands
    passed = {id(leaf) for leaf in _leaves(arguments)}
    if jaxprs.records_nothing(jaxpr):
        if not allow_empty:
            _require_no_backward(arguments, name, policy)
        return traced.rebuild(list(jax.core.eval_jaxpr(jaxpr, (), *operands)))
    captured = [id(x) not in passed for x in operands]
    return traced.rebuild(_bind(jaxpr, operands, captured, name, policy))


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """A call as an open jaxpr, the values it reads, and its result with slots for the jaxpr's outputs."""

    jaxpr: Any
    operands: list[Any]
    skeleton: Any

    def rebuild(self, outs: Sequence[Any]) -> Any:
        """The call's result, from the outputs of the jaxpr."""
        return _map_leaves(lambda leaf: outs[leaf.index] if isinstance(leaf, _Slot) else leaf, self.skeleton)


def trace_call(body: Callable[[], Any], label: str, where: str) -> TracedCall:
    """Traces a function of nothing; `label` and `where` name it in errors about escaped tracers."""
    made: list[Any] = []
    skeleton: list[Any] = []

    def thunk() -> list[Any]:
        result = body()
        skeleton.append(_map_leaves(lambda leaf: _take(leaf, made), result))
        return made

    jaxpr, operands = _compat.trace_thunk(thunk, label, where)
    return TracedCall(jaxpr, operands, skeleton[0])


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands in a result for the region's result of this index."""

    index: int


def _take(leaf: Any, made: list[Any]) -> Any:
    if not _compat.from_current_trace(leaf):
        return leaf  # made outside: an argument or captured value handed on, or no array
    made.append(leaf)
    return _Slot(len(made) - 1)


def _require_no_backward(arguments: Any, name: str, policy: Policy | None) -> None:
    """Passes the arguments through an empty region, whose backward is an error."""
    tracers = [
        x for x in _leaves(arguments) if isinstance(x, _Tracer) and not _compat.is_reference(jax.typeof(x))
    ]
    if tracers:
        jaxpr, _ = _compat.trace_flat(
            lambda *xs: list(xs), [jax.typeof(x) for x in tracers], f"region {name!r}"
        )
        params = region_params(jaxpr, name, policy, [False] * len(tracers), empty=True)
        region_p.bind(*tracers, **params)


def _bind(
    jaxpr: Any, operands: list[Any], captured: list[bool], name: str, policy: Policy | None
) -> list[Any]:
    """The region's equation; references are read before it and written after it."""
    references = [i for i, x in enumerate(operands) if _compat.is_reference(jax.typeof(x))]
    if not references and not _compat.touches_references(jaxpr):
        return list(region_p.bind(*operands, **region_params(jaxpr, name, policy, captured, empty=False)))
    written = _compat.written_references(jaxpr)
    pure, consts = _compat.discharge(jaxpr)
    count = len(jaxpr.outvars)
    kept_results = [*range(count), *(count + references.index(i) for i in references if i in written)]
    pure = pure.replace(outvars=[pure.outvars[i] for i in kept_results], debug_info=_compat.no_names(pure))
    contents = [x[...] if i in references else x for i, x in enumerate(operands)]
    flags = [*[True] * len(consts), *captured]
    outs = region_p.bind(*consts, *contents, **region_params(pure, name, policy, flags, empty=False))
    for index, value in zip((i for i in references if i in written), outs[count:], strict=True):
        operands[index][...] = value
    return list(outs[:count])


def _is_dataclass(x: Any) -> bool:
    return dataclasses.is_dataclass(x) and not isinstance(x, type | _Slot)


def _fields(x: Any) -> Iterator[tuple[str, Any]]:
    return ((f.name, getattr(x, f.name)) for f in dataclasses.fields(x) if hasattr(x, f.name))


def _leaves(tree: Any) -> Iterator[Any]:
    """The leaves of a tree, with the fields of dataclasses that are no pytrees."""
    for leaf in jax.tree.leaves(tree):
        if _is_dataclass(leaf):
            for _, value in _fields(leaf):
                yield from _leaves(value)
        else:
            yield leaf


def _map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with its leaves changed; dataclasses that are no pytrees are copied, not built anew."""

    def one(leaf: Any) -> Any:
        if not _is_dataclass(leaf):
            return change(leaf)
        changed = {key: _map_leaves(change, value) for key, value in _fields(leaf)}
        if all(changed[key] is value for key, value in _fields(leaf)):
            return leaf
        twin = copy.copy(leaf)
        for key, value in changed.items():
            object.__setattr__(twin, key, value)
        return twin

    return jax.tree.map(one, tree)
