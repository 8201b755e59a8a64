"""From a user's body function to a jaxpr over flat arrays, with captured tensors as operands.

What the body reads from the enclosing scope (weights, keys, traced values) becomes a const of the loop and so
gets its gradient like any input. Debug prints run in the forward pass only; effects that recomputation would
repeat are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import no_effects

from recoup import _compat
from recoup._loops.spec import call, trace
from recoup.errors import EffectError

DEBUG_EFFECTS = {"DebugEffect", "OrderedDebugEffect"}
# says that a collective names a mesh axis; nothing happens twice
HARMLESS_EFFECTS = {"NamedAxisEffect"}


@dataclass(frozen=True)
class Captured:
    """A function of flat arrays: `jaxpr(*consts, *args)`, and what it returned as a tree."""

    jaxpr: Any
    consts: list[Any]
    out_tree: Any

    @property
    def out_avals(self) -> list[Any]:
        return list(self.jaxpr.out_avals)


def capture(fun: Callable[..., Any], avals: Sequence[Any], leading: int = 0) -> Captured:
    """Trace `fun` of flat arrays; its consts go in after the first `leading` arguments."""
    out_tree = None

    def flat(*args: Any) -> list[Any]:
        nonlocal out_tree
        leaves, out_tree = jax.tree.flatten(fun(*args))
        return [jnp.asarray(leaf) for leaf in leaves]

    closed = trace(flat, avals)
    refuse_effects(closed)
    consts = [c if isinstance(c, jax.Array) else jnp.asarray(c) for c in _compat.open_jaxpr(closed)[1]]
    jaxpr = _compat.open_jaxpr(closed)[0]

    def opened(*args: Any) -> list[Any]:
        head, c, tail = args[:leading], args[leading : leading + len(consts)], args[leading + len(consts) :]
        return list(jax.core.eval_jaxpr(jaxpr, c, *head, *tail))

    whole = trace(opened, [*avals[:leading], *[jax.typeof(c) for c in consts], *avals[leading:]])
    return Captured(whole, consts, out_tree)


def refuse_effects(closed: Any) -> None:
    """Raise for an effect that a reverse pass would repeat."""
    bad = [e for e in closed.effects if type(e).__name__ not in DEBUG_EFFECTS | HARMLESS_EFFECTS]
    if not bad:
        return
    kinds = ", ".join(sorted({type(e).__name__ for e in bad}))
    eqns = _compat.open_jaxpr(closed)[0].eqns
    where = next((_compat.user_frame(q) for q in eqns if any(e in bad for e in q.effects)), None)
    line = f" at {where.file}:{where.line}" if where is not None else ""
    raise EffectError(
        f"the loop's body has an effect ({kinds}){line} that the reverse pass would repeat each time it "
        "runs a step again; move it out of the loop, return the value as an output of the "
        "step, or use jax.lax.scan"
    )


def has_debug(closed: Any) -> bool:
    """Whether it prints or calls back for debugging."""
    return any(type(e).__name__ in DEBUG_EFFECTS for e in closed.effects)


def quiet(closed: Any) -> Any:
    """The same jaxpr without its debug prints and callbacks, for the steps that are run again."""
    if not has_debug(closed):
        return closed
    jaxpr, consts = _compat.open_jaxpr(closed)
    silent = _without_debug(jaxpr)
    avals = [v.aval for v in silent.invars]
    return trace(lambda *args: list(jax.core.eval_jaxpr(silent, consts, *args)), avals)


def _without_debug(jaxpr: Any) -> Any:
    eqns = []
    for eqn in jaxpr.eqns:
        if not has_debug(eqn):
            eqns.append(eqn)
        elif any(_is_jaxpr(p) or _holds_jaxprs(p) for p in eqn.params.values()):
            params = {k: _quiet_param(p) for k, p in eqn.params.items()}
            eqns.append(eqn.replace(params=params, effects=no_effects))
        elif eqn.outvars:
            raise EffectError(
                f"the loop's body calls {eqn.primitive}, whose result a reverse pass cannot recompute"
            )
    return jaxpr.replace(eqns=eqns, effects=no_effects)


def _is_jaxpr(p: Any) -> bool:
    return hasattr(p, "eqns") and hasattr(p, "effects")


def _holds_jaxprs(p: Any) -> bool:
    return isinstance(p, tuple | list) and any(_is_jaxpr(q) for q in p)


def _quiet_param(p: Any) -> Any:
    if _holds_jaxprs(p):
        return type(p)(_quiet_param(q) for q in p)
    return _compat.with_open(p, _without_debug) if _is_jaxpr(p) else p


def check_carry(
    what: str, init: Any, in_avals: Sequence[Any], out_avals: Sequence[Any], in_tree: Any, out_tree: Any
) -> None:
    """Raise unless the body returns a carry of the same tree, shapes and types as it takes.

    Raises:
        TypeError: naming each leaf that differs.
    """
    if in_tree != out_tree:
        raise TypeError(
            f"{what}: the body returns a carry of another structure than it takes: in {in_tree}, "
            f"out {out_tree}"
        )
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(init)[0]]
    wrong = [
        f"carry{name}: in {_short(a)}, out {_short(b)}"
        for name, a, b in zip(names, in_avals, out_avals, strict=True)
        if a.shape != b.shape or a.dtype != b.dtype
    ]
    if wrong:
        raise TypeError(
            f"{what}: the body returns a carry of another type than it takes: {'; '.join(wrong)}. "
            "Convert the initial value, or the body's result, with .astype"
        )


def _short(aval: Any) -> str:
    return (
        f"{np.dtype(aval.dtype).name if isinstance(aval.dtype, np.dtype) else aval.dtype}{list(aval.shape)}"
    )


def promote_weak(init: Sequence[Any], out_avals: Sequence[Any]) -> list[Any]:
    """Initial values such as the Python number 0. take the type that the body gives them, as in `jax.lax`."""
    return [
        jax.lax.convert_element_type(a, b.dtype)
        if getattr(jax.typeof(a), "weak_type", False) and a.dtype != b.dtype
        else a
        for a, b in zip(init, out_avals, strict=True)
    ]


__all__ = ["Captured", "call", "capture", "check_carry", "promote_weak", "quiet", "refuse_effects"]
