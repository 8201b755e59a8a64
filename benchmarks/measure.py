"""One model of the zoo, measured in one process: plain, by hand under each policy, recoup at several budgets.

All variants are compiled first; their steps are then timed in turn, round by round, and a ratio is the
median over rounds of a variant's time over plain's in the same round. FLOPs are counted on the jaxpr of each
variant by one counter, loops times their length. Memory is the compiler's own (arguments + outputs - aliased
+ temporaries, and the arrays that the step closes over).
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import recoup
from benchmarks.agreement import distance, to_numpy
from benchmarks.frontier_table import PAGE_BYTES
from benchmarks.zoo import POLICIES, Entry
from recoup import _cost, _memory
from recoup._barrier import FENCE_OPTIONS
from recoup._compat import BARRIERS_NEED_OPTION

MIB = 2**20
ROOT = str(Path(__file__).resolve().parent.parent) + os.sep  # results name no place of this machine
SHARES = (0.7, 0.5, 0.3)
NEAR = (1.0, 1 + 2.0**-7, 1 - 2.0**-7)  # factors of the arguments at which outputs are compared
JUMP = 100.0  # times as far from float64 as plain: not rounding

Row = dict[str, Any]


@dataclass
class Bench:
    """What is shared by the variants of one model: the plain step's numbers, and the rows made so far."""

    entry: Entry
    scale: str
    args: tuple[Any, ...]
    rows: list[Row] = field(default_factory=list)
    runs: list[Callable[..., Any]] = field(default_factory=list)
    plain_outputs: Any = None
    exact_outputs: Any = None

    def add(self, row: Row, run: Callable[..., Any]) -> None:
        """Record a variant, and compare its result with plain's."""
        outputs = _near(run, self.args)
        if self.plain_outputs is None:
            self.plain_outputs = outputs
        found = distance(self.plain_outputs, outputs, None)
        if not found.equal:
            if self.exact_outputs is None:
                self.exact_outputs = _float64_outputs(self.entry, self.scale)
            found = distance(self.plain_outputs, outputs, self.exact_outputs)
            if (found.ratio or 0.0) > JUMP:
                # A derivative that jumps (max pooling, where two inputs are equal but for rounding) puts one
                # program on the other side at one of the three points; a wrong one is wrong at all of them.
                three = (self.plain_outputs, outputs, self.exact_outputs)
                left = [distance(*(_without(k, tree) for tree in three)) for k in range(len(NEAR))]
                found = min(left, key=lambda d: d.ratio or 0.0)
                row["jumps"] = True
        row |= {
            "equal": found.equal,
            "ulps": found.ulps,
            "ratio_to_float64": found.ratio,
            "worst": found.worst,
        }
        self.rows.append(row)
        self.runs.append(run)

    @property
    def plain(self) -> Row:
        return self.rows[0]


def measure(entry: Entry, scale: str, repeats: int, say: Callable[[str], None]) -> Row:
    """Everything about one model as plain data."""
    step, args = entry.make(scale)
    bench = Bench(entry, scale, args)
    closed, trace_seconds = _timed(lambda: jax.make_jaxpr(step)(*args))
    equations = count_equations(closed)
    say(f"plain ({equations} equations)")
    row, compiled = _compiled_row("plain", step, args, None)
    bench.add(row | _prediction(closed) | {"trace_seconds": trace_seconds}, compiled)
    for policy in POLICIES:
        by_hand, _ = entry.by_hand(policy, scale)
        for options in (None, FENCE_OPTIONS) if BARRIERS_NEED_OPTION else (None,):
            say(f"by hand: {policy}{', barriers kept' if options else ''}")
            row, compiled = _compiled_row("by hand", by_hand, args, options)
            bench.add(row | {"policy": policy, "barriers_kept": options is not None}, compiled)
    for budget, why in _budgets(bench):
        say(f"recoup at {budget / MIB:.1f} MiB ({why})")
        _fit_row(bench, step, budget, why)
    _smallest(bench, step, say)
    say(f"timing {len(bench.runs)} variants, {repeats} rounds")
    _time_in_turn(bench, repeats)
    planning = _planning(step, args, bench)
    return {
        "model": entry.name,
        "scale": scale,
        "layout": entry.layout,
        "products": entry.products,
        "transformer": entry.transformer,
        "draws": entry.draws,
        "equations": equations,
        "rounds": repeats,
        "planning": planning,
        "variants": bench.rows,
    }


def _compiled_row(
    kind: str, step: Callable[..., Any], args: tuple[Any, ...], options: dict[str, str] | None
) -> tuple[Row, Callable[..., Any]]:
    jitted = jax.jit(step)
    lowered, lower_seconds = _timed(lambda: jitted.lower(*args))
    compiled, seconds = _timed(lambda: lowered.compile(compiler_options=options))
    memory = compiled.memory_analysis()
    sizes = {
        "arguments_bytes": memory.argument_size_in_bytes,
        "outputs_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries_bytes": memory.temp_size_in_bytes,
    }
    row = {"kind": kind, "flops": _cost.flops(jax.make_jaxpr(step)(*args)), **sizes}
    row |= {"total_bytes": sum(sizes.values()), "compile_seconds": lower_seconds + seconds}
    return row, compiled


def _budgets(bench: Bench) -> list[tuple[int, str]]:
    """70, 50 and 30 % of plain's temporaries, and the memory of every by-hand point below plain's.

    A page is added to the latter: two programs that hold the same arrays differ by their scalars and by eight
    bytes for each value that a loop passes on.
    """
    plain = bench.plain
    fixed = plain["arguments_bytes"] + plain["outputs_bytes"]
    budgets = [
        (fixed + int(share * plain["temporaries_bytes"]), f"{share:.0%} of temporaries") for share in SHARES
    ]
    for row in bench.rows:
        # a point that saves nothing is plain, and plain is what recoup returns there
        if row["kind"] == "by hand" and row["total_bytes"] < plain["total_bytes"]:
            kept = ", barriers kept" if row["barriers_kept"] else ""
            budgets.append((row["total_bytes"] + PAGE_BYTES, f"memory of {row['policy']}{kept}"))
    seen: dict[int, str] = {}
    for budget, why in budgets:
        seen[budget] = f"{seen[budget]}; {why}" if budget in seen else why
    return list(seen.items())


def _fit_row(bench: Bench, step: Callable[..., Any], budget: int, why: str) -> bool:
    row: Row = {"kind": "recoup", "why": why, "budget_bytes": budget}
    began = time.perf_counter()
    try:
        fitted = recoup.fit(step, *bench.args, budget=budget)
    except recoup.BudgetError as error:
        seconds = time.perf_counter() - began
        bench.rows.append(
            row | {"feasible": False, "fit_seconds": seconds, "error": str(error).replace(ROOT, "")}
        )
        bench.runs.append(_no_run)
        return False
    seconds = time.perf_counter() - began
    memory = fitted.memory
    rewritten = jax.make_jaxpr(fitted.fun)(*bench.args)
    row |= _prediction(rewritten)
    row |= {
        "feasible": True,
        "fit_seconds": seconds,
        "compiles": fitted.compiles,
        "flops": _cost.flops(rewritten),
        "arguments_bytes": memory.arguments_bytes,
        "outputs_bytes": memory.outputs_bytes - memory.aliased_bytes,
        "temporaries_bytes": memory.temporaries_bytes,
        "total_bytes": memory.total_bytes,
        "planned_total_bytes": fitted.plan.peak_bytes,
        "lower_bound_bytes": fitted.plan.lower_bound_bytes,
        "certified": memory.total_bytes <= budget,
    }
    bench.add(row, fitted)
    return True


def _smallest(bench: Bench, step: Callable[..., Any], say: Callable[[str], None]) -> None:
    """Go below the smallest by-hand point until the budget cannot be met."""
    points = [row["total_bytes"] for row in bench.rows if row["kind"] == "by hand"]
    plain = bench.plain
    fixed = plain["arguments_bytes"] + plain["outputs_bytes"]
    temporaries = min(points) - fixed
    for share in (0.95, 0.8):
        budget = fixed + int(share * temporaries)
        say(f"recoup at {budget / MIB:.1f} MiB ({share:.0%} of the smallest by hand)")
        if not _fit_row(bench, step, budget, f"{share:.0%} of the temporaries of the smallest by hand"):
            return


def _time_in_turn(bench: Bench, repeats: int) -> None:
    times: list[list[float]] = [[] for _ in bench.runs]
    for _ in range(repeats):
        for i, run in enumerate(bench.runs):
            if run is _no_run:
                continue
            _, seconds = _timed(lambda run=run: jax.block_until_ready(run(*bench.args)))
            times[i].append(seconds)
    for row, own in zip(bench.rows, times, strict=True):
        if own:
            row["step_seconds"] = statistics.median(own)
            row["step_ratio"] = statistics.median(a / b for a, b in zip(own, times[0], strict=True))


def _planning(step: Callable[..., Any], args: tuple[Any, ...], bench: Bench) -> Row:
    """Tracing and planning alone, at half of plain's temporaries, beside the plain step's compile time."""
    budget = bench.plain["total_bytes"] - bench.plain["temporaries_bytes"] // 2
    began = time.perf_counter()
    # finding that no plan fits takes as long as finding one that does
    with contextlib.suppress(recoup.BudgetError):
        recoup.plan(step, *args, budget=budget)
    seconds = time.perf_counter() - began
    return {"plan_seconds": seconds, "plain_compile_seconds": bench.plain["compile_seconds"]}


def _prediction(closed: Any) -> Row:
    """What the memory model says of a traced program, before it is compiled."""
    found, seconds = _timed(lambda: _memory.predict(closed))
    sizes = [getattr(found, end).temporaries_bytes for end in ("low", "estimate", "high")]
    return {"predicted_temporaries_bytes": sizes, "predict_seconds": seconds, "opaque": list(found.opaque)}


def _float64_outputs(entry: Entry, scale: str) -> Any:
    with jax.enable_x64(True):
        step, args = entry.float64(scale)
        return _near(jax.jit(step), args)


def _near(run: Callable[..., Any], args: Sequence[Any]) -> list[tuple[str, np.ndarray]]:
    """The outputs of a step at its arguments and at two points beside them, stacked.

    A distance to float64 is the largest of each output. Of a single number, such as a loss, one run says
    little: it may be right to the last bit by luck.
    """

    def scaled(x: jax.Array, by: float) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        narrow = x.astype(np.float32) if x.dtype == np.float64 else x  # the same numbers in double precision
        return (narrow * jnp.asarray(by, narrow.dtype)).astype(x.dtype)

    found = []
    for by in NEAR:
        near = jax.tree.map(lambda x, by=by: scaled(x, by), tuple(args)) if by != 1.0 else args
        found.append(to_numpy(jax.block_until_ready(run(*near))))
    return [(path, np.stack([outputs[i][1] for outputs in found])) for i, (path, _) in enumerate(found[0])]


def count_equations(closed: Any) -> int:
    """Equations of a jaxpr and of those inside it."""
    count = 0
    for eqn in closed.eqns:
        count += 1
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns"):
                    count += count_equations(inner)
                elif hasattr(inner, "jaxpr"):
                    count += count_equations(inner.jaxpr)
    return count


def _no_run(*_: Any) -> None:
    raise RuntimeError("a budget that was not met has no step to run")


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def _without(k: int, outputs: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    return [(path, np.delete(runs, k, axis=0)) for path, runs in outputs]
