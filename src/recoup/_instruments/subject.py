"""What an instrument measures: a step with its arguments, or a step that `recoup.fit` made.

Idea: every instrument that compiles takes the same words as `recoup.fit`; a `Fitted` is measured as it was
compiled, options and donation included.
Limits: a plain step is compiled as `jax.jit` compiles it, without the options that `fit` adds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from recoup import _compat
from recoup._compiling import Fitted
from recoup._trace import as_names, as_numbers, bind_static, trace
from recoup.errors import InstrumentError


@dataclass(frozen=True)
class Subject:
    """A function of arrays, its arguments (static ones taken out), and how it is compiled."""

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    donate: tuple[int, ...]
    options: dict[str, Any]
    constants_bytes: int
    ready: Any = None  # a `jax.stages.Compiled`, where there is one already

    @cached_property
    def compiled(self) -> Any:
        """The compiled program."""
        return self.ready if self.ready is not None else self.compile(self.donate)

    def compile(self, donate: Sequence[int]) -> Any:
        """Compiles it with these arguments donated."""
        jitted = jax.jit(self.fun, donate_argnums=tuple(donate))
        return jitted.lower(*self.args, **self.kwargs).compile(compiler_options=self.options or None)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to run with: zeros where only shapes were given."""
        made: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(_filled, (self.args, self.kwargs))
        return made

    def portable(self) -> tuple[bytes, list[Any]]:
        """The program for another process, and the arrays that it takes, in order (keys as their data).

        Arguments that the step never reads are left out, as `jax.jit` leaves them out.

        Raises:
          InstrumentError: it calls back into Python or runs on several devices.
        """
        leaves, tree = jax.tree.flatten((self.args, self.kwargs))
        used = _read(self.fun, self.args, self.kwargs)
        donated = _flags(self.args, self.kwargs, self.donate)

        def of_data(*data: Any) -> Any:
            full = list(leaves)
            for i, value in zip(used, data, strict=True):
                full[i] = _with_data(leaves[i], value)
            args, kwargs = jax.tree.unflatten(tree, full)
            return [_data(leaf) for leaf in jax.tree.leaves(self.fun(*args, **kwargs))]

        of_data.__name__ = of_data.__qualname__ = self.name
        data = [_data(leaves[i]) for i in used]
        numbers = tuple(position for position, i in enumerate(used) if donated[i])
        lowered = jax.jit(of_data, donate_argnums=numbers, keep_unused=True).lower(*data)
        module = _compat.portable_module(lowered)
        if module is None:
            raise InstrumentError(
                f"{self.name} calls back into Python or runs on several devices, so it cannot be moved to a "
                "process of its own; use the instruments that stay in this one (compiled, trace)"
            )
        return module, data


def prepare(
    step: Callable[..., Any] | Fitted,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Subject:
    """The subject of a measurement. The options are those of `recoup.fit`; a `Fitted` brings its own."""
    if isinstance(step, Fitted):
        return _of_fitted(step, args, kwargs or {})
    static, names = as_numbers(static_argnums), as_names(static_argnames)
    donate = as_numbers(donate_argnums, len(args))
    traced = trace(step, args, kwargs, static_argnums=static, static_argnames=names, donate_argnums=donate)
    bound = bind_static(step, args, kwargs or {}, static, names)
    positions = tuple(i for i, p in enumerate(bound.positions) if p in donate)
    name = getattr(step, "__name__", "step")
    fun = bound.fun
    fun.__name__ = fun.__qualname__ = name
    return Subject(
        name,
        fun,
        bound.args,
        bound.kwargs,
        positions,
        dict(compiler_options or {}),
        traced.program.constant_bytes,
    )


def _of_fitted(fitted: Fitted, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Subject:
    bound = bind_static(fitted._step, args, kwargs, *fitted._statics)
    donated, _ = fitted.compiled.args_info
    positions = [i for i, arg in enumerate(donated) if any(leaf.donated for leaf in jax.tree.leaves(arg))]
    return Subject(
        fitted.__name__,
        fitted.fun,
        bound.args,
        bound.kwargs,
        tuple(positions),
        dict(fitted._jit_options.get("compiler_options") or {}),
        fitted.memory.constants_bytes,
        fitted.compiled,
    )


def _read(fun: Callable[..., Any], args: Any, kwargs: Any) -> list[int]:
    """Which of the flat arguments the function reads or returns."""
    flat = trace(fun, args, kwargs).flat
    found = {v for eqn in flat.eqns for v in eqn.invars if not isinstance(v, _compat.Literal)}
    found |= {v for v in flat.outvars if not isinstance(v, _compat.Literal)}
    return [i for i, v in enumerate(flat.invars) if v in found]


def _flags(args: Any, kwargs: Any, donate: Sequence[int]) -> list[bool]:
    flags: list[bool] = []
    for i, arg in enumerate(args):
        flags += [i in donate] * len(jax.tree.leaves(arg))
    return [*flags, *([False] * len(jax.tree.leaves(kwargs)))]


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
    if not _is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)


def _with_data(like: Any, data: Any) -> Any:
    if not _is_key(like):
        return data
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def _filled(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return _with_data(leaf, jnp.zeros(data.shape, data.dtype))
    return jnp.zeros(leaf.shape, leaf.dtype)
