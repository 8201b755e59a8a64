"""A step compiled under the user's options, what the compiler says of it, and the result that a user calls.

Limits: the compiler's memory analysis is per device. Closed-over arrays are counted by the trace, as the
analysis does not show them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from recoup import _barrier, _compat, _levers
from recoup._inline import Flat
from recoup._plan import Plan
from recoup._progress import Progress
from recoup._report.of_plan import arena_data, certified_picture
from recoup._report.picture import Picture
from recoup._report.reported import Reported
from recoup._report.text import format_bytes
from recoup._trace import Traced, as_names, as_numbers, bind_static, trace
from recoup.errors import SignatureError

COMPILER = "compiler (memory analysis)"


@dataclass(frozen=True)
class CompiledMemory:
    """Memory of a compiled program, per device, in bytes, as the named instrument read it."""

    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    constants_bytes: int
    instrument: str = COMPILER

    @property
    def fixed_bytes(self) -> int:
        """What no plan changes: arguments, results and constants."""
        return self.arguments_bytes + self.outputs_bytes - self.aliased_bytes + self.constants_bytes

    @property
    def total_bytes(self) -> int:
        """Arguments + outputs - aliased + temporaries + constants: what decides whether a step fits."""
        return self.fixed_bytes + self.temporaries_bytes


class Fitted(Reported):
    """A step inside its budget. Call it as the step it was made from.

    Attributes:
      plan: what is kept and recomputed, at what price; its sizes are predictions.
      memory: what the compiler says of the compiled step, a `CompiledMemory`.
      unplanned_memory: the same of the step as it is, if it was compiled on the way; else None.
      compiled: the `jax.stages.Compiled`.
      fun: the rewritten step as an ordinary traceable function of the same arguments (static ones left out).
      compiles: how many compilations it took.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        plan: Plan,
        memory: CompiledMemory,
        compiled: Any,
        fun: Callable[..., Any],
        statics: tuple[tuple[int, ...], tuple[str, ...]],
        *,
        unplanned_memory: CompiledMemory | None = None,
        compiles: int = 1,
        adapted: bool = False,
        jit_options: Mapping[str, Any] | None = None,
    ):
        self._step, self._statics, self._adapted = step, statics, adapted
        self._jit_options = dict(jit_options or {})
        self.plan, self.memory, self.compiled, self.fun = plan, memory, compiled, fun
        self.unplanned_memory, self.compiles = unplanned_memory, compiles
        self.__name__ = getattr(step, "__name__", "step")
        self.__doc__ = getattr(step, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the fitted step.

        Raises:
          SignatureError: the arguments do not match those that the step was fitted for.
        """
        finish = None
        if self._adapted or self._statics != ((), ()):
            bound = bind_static(self._step, args, kwargs, *self._statics)
            args, kwargs, finish = bound.args, bound.kwargs, bound.finish
        try:
            result = self.compiled(*args, **kwargs)
        except TypeError as error:
            raise SignatureError(
                f"{self.__name__} was fitted for other arguments: {error}. Pass arrays of the fitted "
                "shapes and dtypes, or fit again (recoup.jit does so at the first call of each signature)"
            ) from error
        return result if finish is None else finish(result)

    def picture(self) -> Picture:
        """What `report` shows."""
        # reads a Fitted, so it cannot be imported before this class is there
        from recoup._instruments.compiled import arena_of

        arena = arena_of(self.compiled, self.memory.constants_bytes)
        picture = self.plan.picture()
        certified = certified_picture(picture, self.plan, self.memory, self.unplanned_memory, self.compiles)
        return certified.with_arena(self.__name__, arena_data(arena))

    @functools.cached_property
    def jitted(self) -> Any:
        """`fun` under `jax.jit` with the donation, shardings and compiler options that it was fitted with.

        For whatever takes a jitted function: `.lower(...)`, `.trace(...)`, `jax.export.export(...)`. Compiler
        options do not travel with an exported program: on CPU before JAX 0.12 it is planned, but the compiler
        that loads it may merge the recomputations.
        """
        return jax.jit(self.fun, **self._jit_options)

    def __repr__(self) -> str:
        return (
            f"<recoup.Fitted {self.__name__}: {format_bytes(self.memory.total_bytes)} certified by the "
            f"{self.memory.instrument}, {self.plan.price}>"
        )


class Compiler:
    """Compiles flat programs of one step under the user's options, and counts."""

    def __init__(
        self,
        traced: Traced,
        step: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        donate: Sequence[int],
        static: tuple[int, ...],
        names: tuple[str, ...],
        in_shardings: Any,
        out_shardings: Any,
        options: Mapping[str, Any] | None,
        progress: Progress,
    ):
        self.traced, self.step, self.progress = traced, step, progress
        self.statics = (static, names)
        self.call = (args, kwargs, donate)
        bound = bind_static(step, args, kwargs, static, names)
        self.args, self.kwargs, self.adapted = bound.args, bound.kwargs, bound.adapted
        self.jit_options: dict[str, Any] = {
            "donate_argnums": tuple(i for i, p in enumerate(bound.positions) if p in donate)
        }
        if in_shardings is not None:
            self.jit_options["in_shardings"] = in_shardings
        if out_shardings is not None:
            self.jit_options["out_shardings"] = bound.out_shardings(out_shardings)
        self.options = _compiler_options(options)
        self.count = 0

    @property
    def sharded(self) -> bool:
        """Whether the step may run on several devices: a budget is for each."""
        if "in_shardings" in self.jit_options or self.traced.flat.shards is not None:
            return True
        given = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((self.args, self.kwargs))]
        if any(s is not None and s.num_devices > 1 for s in given):
            return True
        names = {eqn.primitive.name for eqn in self.traced.flat.eqns}
        return not names.isdisjoint(["shard_map", "sharding_constraint"])

    def retrace(self, regions: str) -> None:
        """Traces again with the regions treated as a stored plan has them."""
        args, kwargs, donate = self.call
        self.traced = trace_step(self.step, args, kwargs, donate, *self.statics, regions)

    def compile(
        self, flat: Flat, stage: str | None, lever: str = ""
    ) -> tuple[Any, CompiledMemory, Callable[..., Any]]:
        """The compiled program, its memory, and the function it was compiled from. `lever`: see `_levers`."""
        if stage:
            self.progress.stage(stage)
        fun = to_function(flat, self.traced, getattr(self.step, "__name__", "step"))
        jitted = jax.jit(fun, **self.jit_options)
        compiled = jitted.lower(*self.args, **self.kwargs).compile(compiler_options=self.options_with(lever))
        self.count += 1
        return compiled, compiled_memory(compiled, self.traced), fun

    def fitted(
        self,
        plan: Plan,
        compiled: Any,
        memory: CompiledMemory,
        fun: Callable[..., Any],
        unplanned: CompiledMemory | None = None,
    ) -> Fitted:
        """The result."""
        return Fitted(
            self.step,
            plan,
            memory,
            compiled,
            fun,
            self.statics,
            unplanned_memory=unplanned,
            compiles=self.count,
            adapted=self.adapted,
            jit_options={**self.jit_options, "compiler_options": self.options_with(plan.lever)},
        )

    def options_with(self, lever: str) -> dict[str, Any] | None:
        """The compiler's options, and a lever's."""
        return {**self.options, **_levers.OPTIONS.get(lever, {})} or None


def predictions_are_verified() -> bool:
    """Whether the memory model imitates the compiler that is used here: XLA for CPUs."""
    return jax.default_backend() == "cpu"


def to_function(flat: Flat, traced: Traced, name: str) -> Callable[..., Any]:
    """The flat program as a function of the step's own (dynamic) arguments and results."""
    closed = flat.closed()

    def fitted_step(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != traced.in_tree:
            raise SignatureError(f"the step was fitted for arguments {traced.in_tree}, got {tree}")
        return jax.tree.unflatten(traced.out_tree, _compat.eval_jaxpr(closed, *leaves))

    fitted_step.__name__ = fitted_step.__qualname__ = name
    return fitted_step


def compiled_memory(compiled: Any, traced: Traced) -> CompiledMemory:
    """Reads the compiler's memory analysis; closed-over arrays count as constants, wherever they are put."""
    stats = compiled.memory_analysis()
    constants = traced.program.constant_bytes
    arguments = int(stats.argument_size_in_bytes)
    return CompiledMemory(
        arguments_bytes=arguments,
        outputs_bytes=int(stats.output_size_in_bytes),
        aliased_bytes=int(stats.alias_size_in_bytes),
        temporaries_bytes=int(stats.temp_size_in_bytes),
        constants_bytes=constants,
    )


def _compiler_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    merged = dict(options or {})
    if _compat.BARRIERS_NEED_OPTION and jax.default_backend() == "cpu":
        for key, value in _barrier.FENCE_OPTIONS.items():
            merged[key] = f"{merged[key]},{value}" if merged.get(key) else value
    return merged


def trace_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    donate_argnums: Sequence[int] | int,
    static_argnums: Sequence[int] | int,
    static_argnames: Sequence[str] | str,
    regions: str,
) -> Traced:
    if regions not in ("respect", "replan"):
        raise ValueError(f'regions={regions!r} is not understood: "respect" or "replan"')
    return trace(
        step,
        args,
        kwargs,
        static_argnums=as_numbers(static_argnums),
        static_argnames=as_names(static_argnames),
        donate_argnums=as_numbers(donate_argnums, len(args)),
        dissolve_regions=regions == "replan",
    )
