"""The closed loop: trace, plan, compile, read the compiler's number, plan tighter if it is over, return only what is certified.

Idea: the memory model picks the first rung of the ladder that should fit; the compiler decides. If it disagrees, its number scales
the model's and the next rung is tried. Limits: at most `max_compiles` compilations; a budget is for one device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import jax

from recoup import _barrier, _compat, _explain, _ladder
from recoup._bound import lower_bound
from recoup._budget import Budget, host_free_bytes, parse_budget
from recoup._inline import Flat
from recoup._ladder import Ladder, Step
from recoup._plan import Plan
from recoup._progress import Progress
from recoup._report.text import format_bytes, format_percent
from recoup._trace import Traced, bind_static, trace
from recoup.errors import BudgetError, SignatureError

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
    def total_bytes(self) -> int:
        """Arguments + outputs - aliased + temporaries + constants: what decides whether a step fits."""
        return (
            self.arguments_bytes
            + self.outputs_bytes
            - self.aliased_bytes
            + self.temporaries_bytes
            + self.constants_bytes
        )


class Fitted:
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
    ):
        self._step, self._statics = step, statics
        self.plan, self.memory, self.compiled, self.fun = plan, memory, compiled, fun
        self.unplanned_memory, self.compiles = unplanned_memory, compiles
        self.__name__ = getattr(step, "__name__", "step")
        self.__doc__ = getattr(step, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the fitted step.

        Raises:
          SignatureError: the arguments do not match those that the step was fitted for.
        """
        if self._statics != ((), ()):
            bound = bind_static(self._step, args, kwargs, *self._statics)
            args, kwargs = bound.args, bound.kwargs
        try:
            return self.compiled(*args, **kwargs)
        except TypeError as error:
            raise SignatureError(
                f"{self.__name__} was fitted for other arguments: {error}. Pass arrays of the fitted shapes and dtypes, or fit "
                "again (recoup.jit does so at the first call of each signature)"
            ) from error

    def __repr__(self) -> str:
        return (
            f"<recoup.Fitted {self.__name__}: {format_bytes(self.memory.total_bytes)} certified by the {self.memory.instrument}, "
            f"{format_percent(self.plan.overhead, signed=True)} FLOPs>"
        )


def plan(
    step: Callable[..., Any],
    *args: Any,
    budget: SupportsIndex | str,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    regions: str = "respect",
) -> Plan:
    """Traces `step` and decides what to keep and what to recompute. Nothing compiles, nothing runs.

    Args:
      step: any function of arrays, typically a whole training step.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      budget: bytes per device for the whole step: an int, "4GiB", "60%" (of the unplanned step's predicted total), or "device".
      kwargs: keyword arguments of the step.
      donate_argnums, static_argnums, static_argnames: as for `jax.jit`.
      regions: "respect" keeps existing `jax.checkpoint` regions as they are; "replan" dissolves them and plans afresh.

    Returns:
      The cheapest `Plan` found whose predicted peak is within the budget.

    Raises:
      BudgetError: no plan found is within the budget.
      BudgetSyntaxError: the budget cannot be read.
    """
    wanted = parse_budget(budget)
    with Progress() as progress:
        progress.stage("tracing")
        traced = _trace(step, args, kwargs, donate_argnums, static_argnums, static_argnames, regions)
        progress.stage(f"planning {len(traced.program.ops)} operations")
        ladder = _ladder.build(traced, progress=progress)
        limit = _resolve(wanted, lambda: ladder.steps[0].predicted_bytes)
        at = ladder.first_within(limit)
        if at is None:
            raise _infeasible(ladder, limit, wanted)
        return _explain.to_plan(ladder, ladder.steps[at], limit, regions)


def fit(
    step: Callable[..., Any],
    *args: Any,
    budget: SupportsIndex | str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    regions: str = "respect",
    plan: Plan | str | Path | None = None,
    max_compiles: int = 4,
) -> Fitted:
    """Plans, compiles and certifies: the same step (same results), inside the budget.

    Args:
      step: any function of arrays, typically a whole training step: gradient, update and all.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      budget: bytes per device for the whole step (arguments + outputs - aliased + temporaries + constants): an int, "4GiB",
        "60%" (of the unplanned step's compiled total), or "device" (what the device has free, less a headroom).
      kwargs: keyword arguments of the step.
      donate_argnums, static_argnums, static_argnames, in_shardings, out_shardings: as for `jax.jit`.
      compiler_options: passed to the compiler.
      regions: "respect" keeps existing `jax.checkpoint` regions as they are; "replan" dissolves them and plans afresh.
      plan: a `Plan`, or the path of a saved one, to apply without solving.
      max_compiles: how many compilations at most.

    Returns:
      A `Fitted`. A budget that the step meets as it is returns the step as it is, and its plan says so.

    Raises:
      BudgetError: nothing within the budget was found; names the smallest peak, the bound and what sets it.
      BudgetSyntaxError: the budget cannot be read.
      PlanError: `plan` was made for another step.
    """
    wanted = None if budget is None else parse_budget(budget)
    if wanted is None and plan is None:
        raise TypeError('fit() needs budget= (such as "4GiB" or "60%"), or plan=')
    with Progress() as progress:
        progress.stage("tracing")
        traced = _trace(step, args, kwargs, donate_argnums, static_argnums, static_argnames, regions)
        compiler = _Compiler(
            traced, step, args, kwargs or {}, _numbers(donate_argnums), _numbers(static_argnums), _names(static_argnames),
            in_shardings, out_shardings, compiler_options, progress,
        )  # fmt: skip
        if plan is not None:
            return _apply(compiler, plan, wanted, regions)
        assert wanted is not None
        return _search(compiler, wanted, regions, max_compiles)


def _apply(compiler: "_Compiler", plan: Plan | str | Path, wanted: Budget | None, regions: str) -> Fitted:
    stored = plan if isinstance(plan, Plan) else Plan.load(plan)
    if stored.regions != regions and regions == "respect":
        compiler.retrace(stored.regions)
    flat = _explain.apply_plan(compiler.traced, stored)
    result = compiler.compile(flat, "compiling the stored plan")
    limit = stored.budget_bytes if wanted is None else _resolve(wanted, lambda: stored.unplanned_bytes)
    total = result[1].total_bytes
    if limit and total > limit:
        raise BudgetError(
            f"the stored plan compiles to {format_bytes(total)} here, over its budget of {format_bytes(limit)}; plan again"
        )
    return compiler.fitted(stored, *result)


def _search(compiler: "_Compiler", wanted: Budget, regions: str, max_compiles: int) -> Fitted:
    progress, traced = compiler.progress, compiler.traced
    progress.stage(f"planning {len(traced.program.ops)} operations")
    ladder = _ladder.build(traced, progress=progress)
    plain = ladder.steps[0]
    unplanned: CompiledMemory | None = None

    def compile_plain() -> tuple[Any, CompiledMemory, Callable[..., Any]]:
        nonlocal unplanned
        result = compiler.compile(plain.flat, "compiling the step as it is")
        unplanned = result[1]
        return result

    first: tuple[Any, CompiledMemory, Callable[..., Any]] | None = None
    if wanted.kind == "share":
        first = compile_plain()
    limit = _resolve(wanted, lambda: first[1].total_bytes if first else plain.predicted_bytes)
    if first is None and plain.prediction.low.total_bytes <= limit:
        first = compile_plain()
    if first is not None and first[1].total_bytes <= limit:
        return compiler.fitted(_explain.to_plan(ladder, plain, limit, regions), *first, unplanned=unplanned)

    scale, start = 1.0, 1
    tried: list[tuple[Step, int]] = []
    while compiler.count < max_compiles:
        at = ladder.first_within(limit, scale, start)
        if at is None:
            at = ladder.steps.index(ladder.lowest())
            # The model is over by no more than its own error: the lowest rung is worth a compilation.
            if at < start or ladder.steps[at].prediction.low.total_bytes * min(scale, 1.0) > 1.1 * limit:
                break
        rung = ladder.steps[at]
        progress.stage(
            f"compiling a plan of {format_bytes(rung.predicted_bytes)} (predicted), {format_percent(rung.extra_flops / traced.program.flops, signed=True)} FLOPs"
        )
        result = compiler.compile(rung.flat, None)
        total = result[1].total_bytes
        if total <= limit:
            return compiler.fitted(
                _explain.to_plan(ladder, rung, limit, regions), *result, unplanned=unplanned
            )
        tried.append((rung, total))
        scale = max(scale, total / rung.predicted_bytes)
        start = at + 1
    raise _infeasible(ladder, limit, wanted, tried)


def _infeasible(
    ladder: Ladder, limit: int, wanted: Budget, tried: Sequence[tuple[Step, int]] = ()
) -> BudgetError:
    bound, where = lower_bound(ladder.traced.program, ladder.tradable())
    lowest = min(
        ladder.steps, key=lambda s: s.predicted_bytes if s is ladder.steps[-1] else s.peak_bytes * 1e3
    )
    peak = lowest.prediction.peak
    top = f"; its peak is held by {peak[0].op} at {peak[0].source or 'no user line'}" if peak else ""
    found = f"{format_bytes(lowest.predicted_bytes)} (predicted)"
    if tried:
        smallest = min(total for _, total in tried)
        found += f", {format_bytes(smallest)} (compiled)"
    return BudgetError(
        f"the budget of {format_bytes(limit)} ({wanted.text!r}) cannot be met. Smallest peak found: {found}{top}. No plan can be "
        f"below {format_bytes(bound)}, set by {where}. Raise the budget, donate arguments that the step replaces "
        "(donate_argnums=), or make the batch smaller"
    )


class _Compiler:
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
        self.args, self.kwargs = bound.args, bound.kwargs
        self.jit_options: dict[str, Any] = {
            "donate_argnums": tuple(i for i, p in enumerate(bound.positions) if p in donate)
        }
        if in_shardings is not None:
            self.jit_options["in_shardings"] = in_shardings
        if out_shardings is not None:
            self.jit_options["out_shardings"] = out_shardings
        self.options = _compiler_options(options)
        self.count = 0

    def retrace(self, regions: str) -> None:
        """Traces again with the regions treated as a stored plan has them."""
        args, kwargs, donate = self.call
        self.traced = _trace(self.step, args, kwargs, donate, *self.statics, regions)

    def compile(self, flat: Flat, stage: str | None) -> tuple[Any, CompiledMemory, Callable[..., Any]]:
        """The compiled program, its memory, and the function it was compiled from."""
        if stage:
            self.progress.stage(stage)
        fun = to_function(flat, self.traced, getattr(self.step, "__name__", "step"))
        jitted = jax.jit(fun, **self.jit_options)
        compiled = jitted.lower(*self.args, **self.kwargs).compile(compiler_options=self.options or None)
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
        )


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
    """Reads the compiler's memory analysis; closed-over arrays count as constants wherever the compiler puts them."""
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


def _resolve(wanted: Budget, unplanned: Callable[[], int]) -> int:
    if wanted.kind == "share":
        return wanted.resolve(unplanned_bytes=unplanned())
    if wanted.kind == "device":
        return wanted.resolve(free_bytes=device_free_bytes())
    return wanted.resolve()


def device_free_bytes() -> int | None:
    """What the first local device has free; on a CPU, what the machine could still hand out."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    return host_free_bytes() if device.platform == "cpu" else None


def _trace(
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
        static_argnums=_numbers(static_argnums),
        static_argnames=_names(static_argnames),
        donate_argnums=_numbers(donate_argnums),
        dissolve_regions=regions == "replan",
    )


def _numbers(numbers: Sequence[int] | int) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _names(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
