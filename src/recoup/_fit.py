"""The closed loop: trace, plan, compile, read the compiler's number, plan tighter if it is over, return only
what is certified.

Idea: the memory model picks the first rung of the ladder that should fit, or a lever of the compiler where
that is cheaper; the compiler decides. If it disagrees, its number scales the model's and the next rung is
tried. Limits: at most `max_compiles` compilations; a budget is for one device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax

from recoup import _check, _explain, _host, _ladder, _levers, _objective
from recoup._budget import Budget, host_free_bytes, parse_budget
from recoup._compiling import CompiledMemory, Compiler, Fitted, predictions_are_verified, trace_step
from recoup._evidence import Evidence
from recoup._host import HostMemory
from recoup._infeasible import fixed_bytes, infeasible
from recoup._ladder import Ladder, Step
from recoup._per_device import PerDevice
from recoup._plan import Plan
from recoup._progress import Progress
from recoup._refine import refined
from recoup._report.text import format_bytes, format_percent
from recoup._trace import NEVER_REPEATED, Traced, as_names, as_numbers
from recoup._verify import verify
from recoup.errors import BudgetError

if TYPE_CHECKING:
    from recoup._calibrate import Roofline


def plan(
    step: Callable[..., Any],
    *args: Any,
    budget: SupportsIndex | str,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    regions: str = "respect",
    offload: bool | HostMemory = False,
    minimize: "str | Roofline" = _objective.FLOPS,
) -> Plan:
    """Traces `step` and decides what to keep and what to recompute. Nothing compiles, nothing runs.

    Args:
      step: any function of arrays, typically a whole training step.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      budget: bytes per device for the whole step: an int, "4GiB", "60%" (of the unplanned step's predicted
        total), or "device".
      kwargs: keyword arguments of the step.
      donate_argnums, static_argnums, static_argnames: as for `jax.jit`.
      regions: "respect" keeps existing `jax.checkpoint` regions as they are; "replan" dissolves them and
        plans afresh.
      offload: whether residuals may also be moved to the host's memory and back: True where that is another
        memory than the device's (rates from `recoup.calibrate`), or a `HostMemory` to plan for.
      minimize: "flops": the least extra work, counted; "seconds": the least predicted time on this device, by
        `recoup.calibrate`; or a `Roofline`. The quickest plan may hold less than the budget allows.

    Returns:
      The cheapest `Plan` found whose predicted peak is within the budget.

    Raises:
      BudgetError: no plan found is within the budget.
      BudgetSyntaxError: the budget cannot be read.
    """
    wanted = parse_budget(budget)
    with Progress() as progress, _objective.minimizing(minimize) as roofline:
        progress.stage("tracing")
        traced = trace_step(step, args, kwargs, donate_argnums, static_argnums, static_argnames, regions)
        progress.stage(f"planning {len(traced.program.ops)} operations")
        ladder = _build(traced, progress, offload, compiles=False)
        leaves = jax.tree.leaves((args, kwargs or {}))
        limit = _resolve(wanted, lambda: ladder.steps[0].predicted_bytes, leaves)

        def fits(rung: Step) -> bool:
            return rung.predicted_bytes <= limit

        ladder = refined(ladder, fits, progress)
        at = ladder.first_within(limit)
        if at is None:
            raise infeasible(ladder, limit, wanted)
        if roofline is not None:
            at = _objective.quickest(ladder, at, roofline, fits)
        return _explain.to_plan(ladder, ladder.steps[at], limit, regions, roofline=roofline)


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
    offload: bool | HostMemory = False,
    levers: bool = True,
    minimize: "str | Roofline" = _objective.FLOPS,
    plan: Plan | str | Path | None = None,
    max_compiles: int = 4,
    check: bool = False,
) -> Fitted:
    """Plans, compiles and certifies: the same step (same results), inside the budget.

    Args:
      step: any function of arrays, typically a whole training step: gradient, update and all.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      budget: bytes per device for the whole step (arguments + outputs - aliased + temporaries + constants):
        an int, "4GiB", "60%" (of the unplanned step's compiled total), or "device" (what the device has free,
        less a headroom).
      kwargs: keyword arguments of the step.
      donate_argnums, static_argnums, static_argnames, in_shardings, out_shardings: as for `jax.jit`.
      compiler_options: passed to the compiler.
      regions: "respect" keeps existing `jax.checkpoint` regions as they are; "replan" dissolves them and
        plans afresh.
      offload: whether residuals may also be moved to the host's memory and back: True (rates from
        `recoup.calibrate`), or a `HostMemory`. On a CPU that is the same memory, and nothing is moved.
      levers: whether the compiler may be told to order the step so that less is alive at once, where that
        meets the budget and a plan that recomputes would be dear, or there is none; on CPU, unless
        `compiler_options` or XLA_FLAGS choose an order. `Plan.lever` names it.
      minimize: "flops": the least extra work, counted; "seconds": the least predicted time on this device, by
        `recoup.calibrate`; or a `Roofline`. The quickest plan may hold less than the budget allows, and be
        quicker than the step as it is.
      plan: a `Plan`, or the path of a saved one, to apply without solving.
      max_compiles: how many compilations at most.
      check: run the step as it is and the fitted one once, on these arguments (drawn where they are structs),
        and compare the results (see `recoup.check`) before returning.

    Returns:
      A `Fitted`. A budget that the step meets as it is returns the step as it is, and its plan says so.

    Raises:
      BudgetError: nothing within the budget was found; names the smallest peak, the bound and what sets it.
      BudgetSyntaxError: the budget cannot be read.
      PlanError: `plan` was made for another step.
      AgreementError: `check` is given and the results differ.
    """
    wanted = None if budget is None else parse_budget(budget)
    if wanted is None and plan is None:
        raise TypeError('fit() needs budget= (such as "4GiB" or "60%"), or plan=')
    with Progress() as progress, _objective.minimizing(minimize) as roofline:
        progress.stage("tracing")
        traced = trace_step(step, args, kwargs, donate_argnums, static_argnums, static_argnames, regions)
        compiler = Compiler(
            traced, step, args, kwargs or {},
            as_numbers(donate_argnums, len(args)), as_numbers(static_argnums), as_names(static_argnames),
            in_shardings, out_shardings, compiler_options, progress,
        )  # fmt: skip
        if plan is not None:
            fitted = _apply(compiler, plan, wanted, regions)
        else:
            assert wanted is not None
            fitted = _search(compiler, wanted, regions, max_compiles, offload, levers, roofline)
        if check:
            progress.stage("checking the results")
            _check.refuse_disagreement(_check.check(step, fitted, *args, kwargs=kwargs), fitted.__name__)
        return fitted


def _build(traced: Traced, progress: Progress, offload: bool | HostMemory, *, compiles: bool) -> Ladder:
    host = _host.resolve(offload, compiles=compiles)
    ladder = _ladder.build(traced, progress=progress, host=host)
    return replace(ladder, host=_host.SAME) if offload is not False and host is None else ladder


def _apply(compiler: Compiler, plan: Plan | str | Path, wanted: Budget | None, regions: str) -> Fitted:
    stored = plan if isinstance(plan, Plan) else Plan.load(plan)
    if stored.regions != regions and regions == "respect":
        compiler.retrace(stored.regions)
    flat = _explain.apply_plan(compiler.traced, stored)
    if stored.lever and not _may_order(compiler):
        stored = replace(stored, lever="")
    result = compiler.compile(flat, "compiling the stored plan", stored.lever)
    limit = stored.budget_bytes if wanted is None else _resolve(wanted, lambda: stored.unplanned_bytes)
    total = result[1].total_bytes
    if limit and total > limit:
        same = ""
        if stored.offloaded_bytes and not _host.apart():
            moved = format_bytes(stored.offloaded_bytes)
            same = f" ({moved} of it offloaded: here the host's memory is the device's)"
        raise BudgetError(
            f"the stored plan compiles to {format_bytes(total)}{same} here, "
            f"over its budget of {format_bytes(limit)}; plan again"
        )
    evidence = Evidence(compiler.traced, flat, lever=stored.lever)
    return compiler.fitted(replace(stored, evidence=evidence), *result)


def _may_order(compiler: Compiler) -> bool:
    """Whether the compiler has another order to offer here, and the user has not chosen one."""
    return predictions_are_verified() and _levers.left_alone(compiler.options)


def _search(
    compiler: Compiler,
    wanted: Budget,
    regions: str,
    max_compiles: int,
    offload: bool | HostMemory,
    levers: bool,
    roofline: "Roofline | None",
) -> Fitted:
    progress, traced = compiler.progress, compiler.traced
    progress.stage(f"planning {len(traced.program.ops)} operations")
    ladder = _build(traced, progress, offload, compiles=True)
    plain = ladder.steps[0]
    unplanned: CompiledMemory | None = None

    def compile_plain() -> tuple[Any, CompiledMemory, Callable[..., Any]]:
        nonlocal unplanned
        result = compiler.compile(plain.flat, "compiling the step as it is")
        unplanned = result[1]
        return result

    first: tuple[Any, CompiledMemory, Callable[..., Any]] | None = None
    # Where the memory model is not that of this compiler, or is of whole arrays, plain is measured first.
    scaled = compiler.sharded or not predictions_are_verified()
    if wanted.kind == "share" or scaled:
        first = compile_plain()
    leaves = jax.tree.leaves((compiler.args, compiler.kwargs))
    limit = _resolve(wanted, lambda: first[1].total_bytes if first else plain.predicted_bytes, leaves)
    # Half a percent below the estimate is within its error, and the compiler has the last word.
    scale, start = 0.995, 1
    low = min(plain.prediction.low.total_bytes, scale * plain.prediction.estimate.total_bytes)
    if first is None and low <= limit:
        first = compile_plain()
    each: PerDevice | None = None
    if scaled and first:
        # A program of one device is measured as it is.
        divided = leaves if traced.flat.shards is None else ()
        each = PerDevice(divided, plain, first[1])

    def following(scale: float, start: int) -> int | None:
        if each is None:
            return ladder.first_within(limit, scale, start)
        return each.first_within(ladder.steps, limit, start)

    def explained(step: Step) -> Plan:
        made = _explain.to_plan(ladder, step, limit, regions, certified=True, roofline=roofline)
        if each is None or first is None:
            return made
        held, bound = first[1], "arguments and results, per device"
        peak = each.total_bytes(step)
        made = replace(made, peak_bytes=peak, unplanned_bytes=held.total_bytes)
        if not compiler.sharded:
            return made
        if traced.flat.shards is not None:
            fixed = held.fixed_bytes - fixed_bytes(plain)
            return replace(made, lower_bound_bytes=max(held.fixed_bytes, made.lower_bound_bytes + fixed))
        return replace(made, lower_bound_bytes=held.fixed_bytes, bound=bound)

    def as_it_is() -> Fitted | None:
        """The plain step if it meets the budget; compiled if it was not."""
        nonlocal first
        first = first or compile_plain()
        if first[1].total_bytes > limit:
            return None
        return compiler.fitted(explained(plain), *first, unplanned=unplanned)

    def fits(rung: Step) -> bool:
        if each is not None:
            return each.total_bytes(rung) <= limit
        return rung.prediction.estimate.total_bytes * scale <= limit

    def quickest(at: int) -> int:
        return at if roofline is None else _objective.quickest(ladder, at, roofline, fits)

    def compiled(rung: Step) -> tuple[Any, CompiledMemory, Callable[..., Any]]:
        extra = rung.extra_flops / max(traced.program.flops, 1.0)
        progress.stage(
            f"compiling a plan of {format_bytes(rung.predicted_bytes)} (predicted), "
            f"{format_percent(extra, signed=True)} FLOPs{rung.lever and f', {rung.lever}'}"
        )
        verify(rung.variant.flat, rung.flat, NEVER_REPEATED)
        return compiler.compile(rung.flat, None, rung.lever)

    if first is not None and (found := as_it_is()) is not None:
        if compiler.count < max_compiles and (lower := quickest(0)):
            result = compiled(ladder.steps[lower])
            if result[1].total_bytes <= limit:
                return compiler.fitted(explained(ladder.steps[lower]), *result, unplanned=unplanned)
        return found

    ladder = refined(ladder, fits, progress)
    pulled = _levers.offered(plain) if levers and not scaled and _may_order(compiler) else None
    lever = pulled  # until it is tried
    tried: list[tuple[Step, int]] = []
    # The model may be wrong about the plain step too: near the budget, the last compilation is for that one.
    near = plain.prediction.low.total_bytes <= 1.15 * limit + 2**16
    while compiler.count < max(1, max_compiles - (near and first is None)):
        at = following(scale, start)
        at = None if at is None else quickest(at)
        rung = None if at is None else ladder.steps[at]
        if lever is not None and _levers.pays(lever, rung, limit):
            # What the step meets as it is needs no lever.
            if near and first is None and (found := as_it_is()) is not None:
                return found
            rung, at, lever = lever, None, None
        elif rung is None:
            at = ladder.lowest(start)
            # The model is over by no more than its own error: the lowest rung is worth a compilation.
            if at is None or (ladder.steps[at].prediction.low.total_bytes > 1.1 * limit and not scaled):
                break
            rung = ladder.steps[at]
        result = compiled(rung)
        total = result[1].total_bytes
        if total <= limit:
            return compiler.fitted(explained(rung), *result, unplanned=unplanned)
        tried.append((rung, total))
        if at is None:
            continue
        scale = max(scale, total / rung.prediction.estimate.total_bytes)
        if each is not None:
            each.learn(rung, result[1])
        start = at + 1
    if first is None and compiler.count < max_compiles and near:
        # A budget that plain meets is never refused.
        if (found := as_it_is()) is not None:
            return found
        assert first is not None
        tried.append((plain, first[1].total_bytes))
    after = following(scale, start)
    left = None if after is None else ladder.steps[after]
    if lever is not None and _levers.pays(lever, left, limit):
        left = lever
    if left is not None:
        predicted = format_bytes(left.predicted_bytes if each is None else each.total_bytes(left))
        raise BudgetError(
            f"no plan within {format_bytes(limit)} ({wanted.text!r}) was certified in "
            f"max_compiles={max_compiles} "
            f"compilations; the next plan is predicted at {predicted}: allow more compilations"
        )
    raise infeasible(ladder, limit, wanted, tried, first[1] if compiler.sharded and first else None, pulled)


def _resolve(wanted: Budget, unplanned: Callable[[], int], arguments: Sequence[Any] = ()) -> int:
    if wanted.kind == "share":
        return wanted.resolve(unplanned_bytes=unplanned())
    if wanted.kind == "device":
        free_bytes = device_free_bytes()
        # A budget counts the arguments; those that are there already are not free, but they are the step's.
        return wanted.resolve(free_bytes=None if free_bytes is None else free_bytes + _held_bytes(arguments))
    return wanted.resolve()


def _held_bytes(arguments: Sequence[Any]) -> int:
    """Bytes of these that the first local device holds already, each array once."""
    device = jax.local_devices()[0]
    arrays = {id(x): x for x in arguments if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)}
    there = [x for x in arrays.values() if not x.is_deleted()]
    return sum(s.data.nbytes for x in there for s in x.addressable_shards if s.device == device)


def device_free_bytes() -> int | None:
    """What the first local device has free; on a CPU, what the machine could still hand out."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    return host_free_bytes() if device.platform == "cpu" else None
