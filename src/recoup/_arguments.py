"""Arguments that are more than trees of arrays: functions as leaves, Equinox modules, Flax NNX objects.

Idea: a leaf that is no array becomes a node without leaves (`Fixed`), so that it belongs to the structure of
the arguments: compared at each call, part of the signature, returned as it came. NNX objects, which steps
change in place, become their state, and their new state is one more result that is written back after the
call. Each library's own convention holds: under an Equinox module Python numbers are not traced.
Limits: a step may change the arrays of NNX objects, not which there are nor their static attributes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from recoup.errors import EffectError


@jax.tree_util.register_static
class Fixed:
    """A value that is part of the structure of the arguments, not an array."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fixed):
            return NotImplemented
        if self.value is other.value:
            return True
        return type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))

    def __repr__(self) -> str:
        text = repr(self.value)
        return text if len(text) <= 80 else f"{type(self.value).__name__}(...)"


class Objects(NamedTuple):
    """The state of one argument's NNX objects. The first such argument carries the structure of all."""

    structure: Fixed | None
    state: Any


class Updated(NamedTuple):
    """What a step over NNX objects returns: its result, and the objects' state after it."""

    result: Any
    states: tuple[Any, ...]


class Adapted(NamedTuple):
    """A call as a function of arrays. `finish` turns that function's result into the step's."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    finish: Callable[[Any], Any]
    changed: bool
    updates: bool  # whether results are `Updated`


def adapt(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Adapted:
    """The call `fun(*args, **kwargs)` with arrays only; unchanged where it has nothing else.

    Adapted arguments are accepted as well, and left as they are.
    """
    given: dict[str, Any] = {str(i): arg for i, arg in enumerate(args)} | dict(kwargs)
    objects = {name: arg for name, arg in given.items() if _has_objects(arg)}
    pure = dict(given)
    if objects:
        pure |= _split(objects)
    pure = {name: _fix(arg) for name, arg in pure.items()}
    changed: bool = bool(jax.tree.structure(pure) != jax.tree.structure(given))  # type: ignore[operator]

    def call(*pure_args: Any, **pure_kwargs: Any) -> Any:
        named: dict[str, Any] = {str(i): arg for i, arg in enumerate(pure_args)} | pure_kwargs
        states = {name: arg for name, arg in named.items() if isinstance(arg, Objects)}
        structure = next((s.structure for s in states.values() if s.structure is not None), None)
        own: dict[str, Any] = {}
        if structure is not None:
            own = _merge(structure, {name: s.state for name, s in states.items()})
        named = {name: _unfix(arg) for name, arg in named.items()} | own
        result = fun(*(named[str(i)] for i in range(len(pure_args))), **{k: named[k] for k in pure_kwargs})
        result = _fix(result)
        if structure is None:
            return result
        after = _split(own)
        _same_structure(structure, next(iter(after.values())).structure, fun)
        return Updated(result, tuple(s.state for s in after.values()))

    def finish(result: Any) -> Any:
        if objects:
            result, states = result
            _write_back(objects, states)
        return _unfix(result)

    if not changed:
        return Adapted(fun, tuple(args), dict(kwargs), lambda result: result, False, False)
    positional = tuple(pure[str(i)] for i in range(len(args)))
    return Adapted(call, positional, {name: pure[name] for name in kwargs}, finish, True, bool(objects))


def _fix(tree: Any) -> Any:
    """What is no array as `Fixed`: functions, and under an Equinox module every leaf but arrays."""
    module = _class("equinox", "Module")

    def fix(x: Any) -> Any:
        if module is not None and isinstance(x, module):
            return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else Fixed(leaf), x)
        return Fixed(x) if callable(x) and not _is_array(x) else x

    return jax.tree.map(fix, tree, is_leaf=lambda x: module is not None and isinstance(x, module))


def _unfix(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: x.value if isinstance(x, Fixed) else x, tree, is_leaf=lambda x: isinstance(x, Fixed)
    )


def _is_array(x: Any) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape")


def _class(module: str, name: str) -> Any:
    """A class of a library, if that is loaded: nothing is imported for a user who does not use it."""
    return getattr(sys.modules.get(module), name, None)


def _has_objects(arg: Any) -> bool:
    kinds = _class("flax.nnx", "Pytree"), _class("flax.nnx", "Variable"), _class("flax.nnx", "State")
    if None in kinds:
        return False
    mutable, state = kinds[:2], kinds[2]
    stop = lambda x: isinstance(x, (*mutable, state))
    return any(isinstance(x, mutable) for x in jax.tree.leaves(arg, is_leaf=stop))


def _split(objects: Mapping[str, Any]) -> dict[str, Objects]:
    """All objects are split together, so that what they share stays shared."""
    nnx = sys.modules["flax.nnx"]
    structure, state = nnx.split(dict(objects))
    parts = {name: Objects(None, state[name] if name in state else nnx.State({})) for name in sorted(objects)}
    first = next(iter(parts))
    parts[first] = Objects(Fixed(structure), parts[first].state)
    return parts


def _merge(structure: Fixed, states: Mapping[str, Any]) -> dict[str, Any]:
    nnx = sys.modules["flax.nnx"]
    merged: dict[str, Any] = nnx.merge(structure.value, nnx.State(dict(states)))
    return merged


def _write_back(objects: Mapping[str, Any], states: Sequence[Any]) -> None:
    nnx = sys.modules["flax.nnx"]
    nnx.update(dict(objects), nnx.State(dict(zip(sorted(objects), states, strict=True))))


def _same_structure(before: Fixed, after: Fixed | None, fun: Callable[..., Any]) -> None:
    if before != after:
        raise EffectError(
            f"{getattr(fun, '__name__', 'the step')} changes the structure of its NNX objects: it adds or "
            "removes variables, or sets a static attribute (as model.train() does). Do that once before "
            "fitting, or run one step of the unfitted function first"
        )
