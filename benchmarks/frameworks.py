"""Whole training steps of the libraries that JAX users train with, unmodified, each fitted at two budgets.

    python -m benchmarks.frameworks                      # all; writes benchmarks/results/frameworks-<JAX>.md
    python -m benchmarks.frameworks nnx_steps            # those of one module, printed only

The steps are in `examples/frameworks`. For each budget, a share of what the unplanned step compiles to: what
the compiler certifies; whether the results of one step equal plain (to the bit, or the largest difference
in units of the last place of each result's largest value); predicted over compiled bytes; and extra FLOPs,
counted from the program. Where a difference is large, the step as it is, compiled without fusion, says what
rounding alone does to that result: a gradient that is zero but for rounding (of an attention's key bias) is
divided by its own size in Adam's first step.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import recoup
from recoup._check import UNFUSED_OPTIONS

RESULTS = Path(__file__).parent / "results"
LARGE_ULPS = 1024


@dataclass(frozen=True)
class Case:
    """One step: a function of `examples/frameworks` that returns (step, args), and what it needs."""

    target: str
    library: str
    what: str
    shares: tuple[int, int] = (80, 70)
    regions: str = "respect"
    computes: str = "float32"  # differences are in units of the last place of this type

    def missing(self) -> str:
        """Why the case cannot run here, or nothing."""
        return "" if importlib.util.find_spec(self.library) else f"{self.library} is not installed"

    def make(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The step and its arguments, fresh."""
        module, name = self.target.split(":")
        made: tuple[Callable[..., Any], tuple[Any, ...]] = getattr(
            importlib.import_module(f"examples.frameworks.{module}"), name
        )()
        return made


CASES = (
    Case("nnx_steps:make", "flax", "Flax NNX: convolutions, batch norm, dropout, nnx.Optimizer"),
    Case("nnx_steps:make_remat", "flax", "Flax NNX: transformer under nnx.jit, nnx.remat inside"),
    Case("nnx_steps:make_functional", "flax", "Flax NNX: functional form"),
    Case("linen_steps:make", "flax", "Flax Linen: TrainState, mutable collections, dropout"),
    Case("linen_steps:make_scan", "flax", "Flax Linen: nn.scan"),
    Case("linen_steps:make_scan_remat", "flax", "Flax Linen: nn.scan over nn.remat", (85, 80)),
    Case("equinox_steps:make", "equinox", "Equinox: filter_jit, functions as leaves", (80, 75)),
    Case("equinox_steps:make_stateful", "equinox", "Equinox: stateful batch norm, dropout"),
    Case("haiku_steps:make", "haiku", "Haiku: state and random keys"),
    Case("optax_steps:make", "optax", "Optax: AdamW, schedule, clipping", (80, 65)),
    Case("optax_steps:make_multisteps", "optax", "Optax: MultiSteps", (80, 65)),
    Case("optax_steps:make_microbatch", "optax", "Optax: microbatch", (90, 80)),
    Case(
        "optax_steps:make_mixed_precision",
        "optax",
        "bf16 compute, f32 state, loss scaling",
        (80, 60),
        computes="bfloat16",
    ),
    Case("optax_steps:make_lora", "optax", "low-rank adapters on frozen weights", (80, 60)),
    Case("inference_steps:make", "numpyro", "NumPyro: SVI step"),
    Case("inference_steps:make_log_density", "numpyro", "NumPyro: gradient of a log density", (85, 70)),
    Case("diffrax_steps:make", "diffrax", "Diffrax: DirectAdjoint"),
    Case("diffrax_steps:make_recursive", "diffrax", "Diffrax: RecursiveCheckpointAdjoint"),
    Case("diffrax_steps:make_backsolve", "diffrax", "Diffrax: BacksolveAdjoint", (90, 85)),
    Case("shapes_of_training:make_contrastive", "optax", "contrastive loss, two encoders", (80, 60)),
    Case("shapes_of_training:make_gan", "optax", "GAN, two losses"),
    Case("shapes_of_training:make_meta", "optax", "meta-learning, inner gradients", (85, 80)),
    Case("shapes_of_training:make_physics", "optax", "physics-informed, second derivatives", (85, 75)),
    Case(
        "shapes_of_training:make_attention",
        "equinox",
        "attention in jax.checkpoint, replanned",
        (80, 65),
        "replan",
    ),
)


@dataclass(frozen=True)
class Row:
    """What one budget gave. `ulps` is 0 where the results are equal to the bit.

    `rounding_ulps` is what rounding alone does to the results that differ much; `agrees` says whether that
    explains each of them.
    """

    case: Case
    share: int
    limit_bytes: int
    plain_bytes: int
    compiled_bytes: int
    predicted_bytes: int
    overhead: float
    compiles: int
    ulps: float
    rounding_ulps: float
    agrees: bool

    @property
    def certified(self) -> bool:
        """Whether the compiler's number is within the budget."""
        return self.compiled_bytes <= self.limit_bytes


def run(case: Case, shares: Sequence[int] | None = None) -> list[Row]:
    """Fits a case at each of its budgets and compares one step with the plain one."""
    step, args = case.make()
    rows: list[Row] = []
    want: list[np.ndarray] = []
    plain_bytes = 0
    for share in case.shares if shares is None else shares:
        budget: int | str = share * plain_bytes // 100 if plain_bytes else f"{share}%"
        fitted = recoup.fit(step, *args, budget=budget, regions=case.regions)
        if fitted.unplanned_memory is not None:
            plain_bytes = fitted.unplanned_memory.total_bytes
        if not want:
            want = outcome(jit_of(step, args), args)
        eps = float(jax.numpy.finfo(case.computes).eps)
        ulps = differences(want, outcome(fitted, args), eps)
        large = {i: d for i, d in enumerate(ulps) if d >= LARGE_ULPS}
        rounding = [0.0] * len(ulps)
        if large:
            unfused = recoup.fit(step, *args, budget="100%", compiler_options=UNFUSED_OPTIONS)
            rounding = differences(want, outcome(unfused, args), eps)
        rows.append(
            Row(
                case=case,
                share=share,
                limit_bytes=fitted.plan.budget_bytes,
                plain_bytes=plain_bytes,
                compiled_bytes=fitted.memory.total_bytes,
                predicted_bytes=fitted.plan.peak_bytes,
                overhead=fitted.plan.overhead,
                compiles=fitted.compiles,
                ulps=max(ulps, default=0.0),
                rounding_ulps=max((rounding[i] for i in large), default=0.0),
                agrees=all(d <= 4 * rounding[i] for i, d in large.items()),
            )
        )
    return rows


def jit_of(step: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """The library's own way to compile its step: steps that are compiled already stay as they are."""
    if hasattr(step, "lower"):
        return step
    nnx = sys.modules.get("flax.nnx")
    compiled: Callable[..., Any] = jax.jit(step)
    if nnx and any(isinstance(arg, nnx.Pytree) for arg in args):
        compiled = nnx.jit(step)
    return compiled


def outcome(run_step: Callable[..., Any], args: Sequence[Any]) -> list[np.ndarray]:
    """All arrays that a step returns, and those of its arguments afterwards (objects change in place)."""
    args = fresh(args)
    result = run_step(*args)
    leaves = [x for x in jax.tree.leaves((result, args)) if hasattr(x, "dtype")]
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def fresh(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with copies of NNX objects, which steps change."""
    nnx = sys.modules.get("flax.nnx")
    objects = {i: arg for i, arg in enumerate(args) if nnx and isinstance(arg, nnx.Pytree)}
    copies = nnx.clone(objects) if nnx and objects else {}
    return tuple(copies.get(i, arg) for i, arg in enumerate(args))


def differences(want: Sequence[np.ndarray], got: Sequence[np.ndarray], eps: float) -> list[float]:
    """The largest difference of each result, in units (`eps`) of the last place of its largest value."""
    return [_difference(a, b, eps) for a, b in zip(want, got, strict=True)]


def _difference(a: np.ndarray, b: np.ndarray, eps: float) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return 0.0
    if a.dtype.kind not in "fV" or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(np.abs(x - y).max() / (eps * np.abs(x).max()))


def table(results: Sequence[tuple[Case, list[Row] | str]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| step | budget | plain KiB | certified KiB | equal | predicted/compiled | extra FLOPs | compiles |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, rows in results:
        if isinstance(rows, str):
            short = rows if len(rows) < 200 else rows[:200] + "…"
            lines.append(f"| {case.what} | – | – | – | – | – | – | {short} |")
            continue
        for row in rows:
            equal = "to the bit" if row.ulps == 0 else f"{row.ulps:.2g} ulp"
            equal += f" (rounding alone {row.rounding_ulps:.2g})" if row.rounding_ulps else ""
            lines.append(
                f"| {case.what} | {row.share} % | {row.plain_bytes / 1024:.0f} | "
                f"{row.compiled_bytes / 1024:.0f} ({row.compiled_bytes / row.plain_bytes:.0%}) | {equal} | "
                f"{row.predicted_bytes / row.compiled_bytes:.3f} | {row.overhead:+.1%} | {row.compiles} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="modules or module:function; all when left out")
    chosen = parser.parse_args().only
    results: list[tuple[Case, list[Row] | str]] = []
    for case in CASES:
        if chosen and case.target not in chosen and case.target.split(":")[0] not in chosen:
            continue
        reason = case.missing()
        try:
            found: list[Row] | str = f"skipped: {reason}" if reason else run(case)
        except recoup.BudgetError as error:
            found = "not met: " + str(error).replace(f"{RESULTS.parent.parent}/", "")
        results.append((case, found))
        print(table(results[-1:]).splitlines()[2:], flush=True)
    text = table(results)
    print(text)
    if not chosen:
        made = f"`python -m benchmarks.frameworks`, JAX {jax.__version__}, CPU; compiler's memory analysis."
        head = f"# Steps of libraries, fitted\n\n{made}\n\n"
        (RESULTS / f"frameworks-{jax.__version__}.md").write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
