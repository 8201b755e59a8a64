"""The decorator form: a step that is fitted at the first call of each signature.

Idea: a signature is the tree of the arguments, their shapes and dtypes, and the values of static arguments,
as for `jax.jit`.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax

from recoup._compiling import Fitted
from recoup._fit import fit
from recoup._host import HostMemory
from recoup._objective import FLOPS
from recoup._report.text import format_bytes
from recoup._trace import as_names, as_numbers, bind_static

if TYPE_CHECKING:
    from recoup._calibrate import Roofline


def jit(
    step: Callable[..., Any] | None = None,
    *,
    budget: SupportsIndex | str,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    regions: str = "respect",
    offload: bool | HostMemory = False,
    levers: bool = True,
    minimize: "str | Roofline" = FLOPS,
    quiet: bool = False,
) -> Callable[..., Any]:
    """`jax.jit` with a budget: `step` is planned, compiled and certified at the first call of each signature.

    The planned memory is printed to stderr before the first step of a signature runs, unless `quiet`.

    Args:
      step: the function; leave it out to use `jit(budget=...)` as a decorator.
      budget: as for `recoup.fit`.
      donate_argnums, static_argnums, static_argnames, in_shardings, out_shardings, compiler_options, regions,
        offload, levers, minimize: as for `recoup.fit`.
      quiet: print nothing.

    Returns:
      A function called as `step`; its `fitted` attribute maps each signature seen to its `Fitted`.

    Raises:
      BudgetError: at the first call of a signature that cannot be fitted.
    """
    if step is None:
        return functools.partial(
            jit,
            budget=budget,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            compiler_options=compiler_options,
            regions=regions,
            offload=offload,
            levers=levers,
            minimize=minimize,
            quiet=quiet,
        )
    numbers, names = as_numbers(static_argnums), as_names(static_argnames)
    cache: dict[Any, Fitted] = {}

    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = bind_static(step, args, kwargs, numbers, names)
        leaves, tree = jax.tree.flatten((bound.args, bound.kwargs))
        dynamic = set(bound.positions)
        static = (
            tuple((i, arg) for i, arg in enumerate(args) if i not in dynamic),
            tuple(sorted((k, v) for k, v in kwargs.items() if k not in bound.kwargs)),
        )
        key = (tree, tuple(jax.typeof(leaf) for leaf in leaves), static)
        found = cache.get(key)
        if found is None:
            found = fit(
                step,
                *args,
                budget=budget,
                kwargs=kwargs,
                donate_argnums=donate_argnums,
                static_argnums=static_argnums,
                static_argnames=static_argnames,
                in_shardings=in_shardings,
                out_shardings=out_shardings,
                compiler_options=compiler_options,
                regions=regions,
                offload=offload,
                levers=levers,
                minimize=minimize,
            )
            cache[key] = found
            if not quiet:
                print(_announcement(found), file=sys.stderr)
        return found(*args, **kwargs)

    call.fitted = cache  # type: ignore[attr-defined]
    return call


def _announcement(found: Fitted) -> str:
    return (
        f"recoup: {found.__name__}: planned {format_bytes(found.plan.peak_bytes)}, certified "
        f"{format_bytes(found.memory.total_bytes)} of {format_bytes(found.plan.budget_bytes)} by the "
        f"{found.memory.instrument}, {found.plan.price}"
    )
