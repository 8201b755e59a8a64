"""Regions by hand: `checkpoint`, and `keep` inside them.

Idea: `checkpoint(fun)` evaluates `fun` as a region: its backward computes the body again, right before it
needs it, from what the body read. Works under plain `jax.jit(jax.grad(...))`, without `recoup.fit`, on every
supported JAX and backend, and under every transformation; the work is done in `_regions`.
Source: Chen et al. 2016 (arXiv:1604.06174) for the idea, `jax.checkpoint` for the form.
Limits: a region costs up to one more forward pass of its body per step; the finest split is not always the
smallest (see `recoup.regions`).
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import jax

from recoup import _compat
from recoup._config import config
from recoup._regions.names import keep_p
from recoup._regions.tracing import call_region
from recoup.errors import RegionFlowError
from recoup.policies import Policy

F = TypeVar("F", bound=Callable[..., Any])


@overload
def checkpoint(
    fun: F,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    allow_empty: bool = False,
) -> F: ...


@overload
def checkpoint(
    *,
    policy: Policy | None = None,
    name: str | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    allow_empty: bool = False,
) -> Callable[[F], F]: ...


def checkpoint(
    fun: Any = None,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    allow_empty: bool = False,
) -> Any:
    """A function whose backward recomputes its body instead of keeping its intermediate values.

    The result is a function with the same signature, arguments and results. What the body reads, argument or
    captured from scope, is kept, and so is its result; everything else is computed again when the backward
    comes to the region. Where nothing is differentiated it is the same program as without. A region inside
    another belongs to the outer one. Arguments that are no arrays (strings, None, flags, dataclasses,
    functions) reach the body as they are, and so do results.

    Use it on a function, or as a decorator with or without arguments:

        layer = recoup.checkpoint(layer)

        @recoup.checkpoint(policy=recoup.policies.products)
        def layer(params, x): ...

    Args:
      fun: any function value, method or callable object.
      policy: which intermediate values to keep all the same (see `recoup.policies`); None keeps those named
        with `recoup.keep`.
      name: the region's name in reports, errors and the compiled program's metadata; by default the
        function's.
      static_argnums: positions of arguments that must be known while tracing; a traced array there is an
        error.
      static_argnames: the same by name.
      allow_empty: accept a body that records no tensor operation, such as dropout in evaluation.

    Returns:
      The function, or a decorator if `fun` is left out.

    Raises:
      TypeError: `fun` is not callable, `policy` is no policy, or a static argument is a traced array.
      EmptyRegionError: E-GRAD-005, when a backward is asked of a body without tensor operations.
      RegionFlowError: E-FLOW-003, in strict mode (`recoup.config.strict`) outside any traced computation.
    """
    if fun is None:
        return functools.partial(
            checkpoint,
            policy=policy,
            name=name,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            allow_empty=allow_empty,
        )
    if not callable(fun):
        raise TypeError(f"recoup.checkpoint takes a function, got {fun!r}")
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(
            f"policy={policy!r} is no recoup policy; use those of recoup.policies, such as policies.products "
            "in place of jax.checkpoint_policies.dots_saveable"
        )
    positions = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    _check_static(fun, positions, names)
    region = name if name is not None else _name(fun)
    where = _where(fun)

    @functools.wraps(fun)
    def region_fun(*args: Any, **kwargs: Any) -> Any:
        if _compat.nothing_is_traced():
            if config.strict:
                raise RegionFlowError(
                    f"region {region!r} is evaluated{_compat.user_line()} outside any traced computation "
                    "(jit, grad, a loop), where it does nothing; trace it, or unset recoup.config.strict"
                )
            return fun(*args, **kwargs)
        if positions or names:
            _refuse_traced(fun, region, positions, names, args, kwargs)
        body = functools.partial(fun, *args, **kwargs)
        return call_region(body, (args, kwargs), region, where, policy, allow_empty=allow_empty)

    return region_fun


def keep(x: Any, name: str) -> Any:
    """Names a value, and keeps it for the backward of the region that it is in.

    Outside a region it is the identity. Name what a derivative reads: `gelu(keep(x @ w, "up"))` saves the
    product, whereas after the activation the product is computed again all the same, which is reported.

    Args:
      x: an array, or a tree of arrays, named alike.
      name: any string, for policies (`recoup.policies.names`) and reports.

    Returns:
      `x`.
    """
    if not isinstance(name, str):
        raise TypeError(f"recoup.keep names a value with a string, got {name!r}")
    return jax.tree.map(lambda leaf: _name_leaf(keep_p, leaf, name=name, kept=None), x)


def _name_leaf(primitive: Any, leaf: Any, **params: Any) -> Any:
    return primitive.bind(leaf, **params) if isinstance(leaf, jax.Array) else leaf


def _name(fun: Any) -> str:
    inner = inspect.unwrap(fun)
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))


def _where(fun: Any) -> str:
    """The function and its line, as JAX's messages print them."""
    inner = inspect.unwrap(fun)
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None)
    if code is None:
        code = getattr(vars(type(inner)).get("__call__"), "__code__", None)
    if code is None:
        return _name(fun)
    return f"{_name(fun)} at {os.path.relpath(code.co_filename)}:{code.co_firstlineno}"


def _check_static(fun: Any, positions: tuple[int, ...], names: tuple[str, ...]) -> None:
    if not all(isinstance(i, int) for i in positions) or not all(isinstance(n, str) for n in names):
        raise TypeError(
            f"static_argnums are integers and static_argnames strings, got {positions!r} and {names!r}"
        )
    parameters = _parameters(fun)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters]
    for wrong in (n for n in names if n not in known):
        raise TypeError(f"static_argnames={wrong!r} is no argument of {_name(fun)!r}; it has {known}")


def _parameters(fun: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        return None


def _refuse_traced(
    fun: Any, region: str, positions: tuple[int, ...], names: tuple[str, ...], args: Any, kwargs: Any
) -> None:
    for i in positions:
        if not -len(args) <= i < len(args):
            raise TypeError(
                f"static_argnums={i} of region {region!r}: it was called with {len(args)} positional "
                "arguments"
            )
    parameters = _parameters(fun) or []
    order = {p.name: i for i, p in enumerate(parameters)}
    static = [(f"argument {i}", args[i]) for i in positions]
    for name in names:
        if name in kwargs:
            static.append((f"argument {name!r}", kwargs[name]))
        elif order.get(name, len(args)) < len(args):
            static.append((f"argument {name!r}", args[order[name]]))
    for what, value in static:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise TypeError(
                f"{what} of region {region!r} is static, but it was called{_compat.user_line()} with a "
                f"traced array there: {value}"
            )
