"""Twenty falling budgets on each model of the zoo: peaks never rise, costs never fall, results agree.

    python -m benchmarks.budgets [--scale small] [--budgets 20] [--log FILE] [NAME ...]
    python -m benchmarks.budgets --table FILE ... > results/budgets.md

Budgets fall in equal steps from what the step compiles to as it is to the smallest peak that planning
predicts; the first one that cannot be met ends the sweep. Each result is certified, and compared with plain
by the rule of `recoup.check`. All budgets of a model have one ladder, and compile each rung once. Prints a
line a model and, with `--log`, stores every point.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

import recoup
from benchmarks import fuzz
from benchmarks.zoo import ZOO
from recoup._report.text import format_bytes


@dataclass(frozen=True)
class Point:
    """One budget. `total_bytes` is the compiler's, 0 where the budget was refused. `cost` is what planning
    minimises (FLOPs, and bytes moved, see `recoup._cost`); `overhead` is extra FLOPs alone, as a share."""

    budget_bytes: int
    total_bytes: int
    cost: float
    overhead: float
    ulps: float
    compiles: int
    agrees: bool


@dataclass(frozen=True)
class Case:
    """A model's step and arguments, as `fuzz.Program` takes them."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = ()


def sweep(name: str, scale: str, count: int) -> list[Point]:
    """The points of one model, from the largest budget to the smallest."""
    program = fuzz.Program(Case(*ZOO[name].make(scale)), {})
    plain = program.fit(2**50).memory.total_bytes
    lowest = min(step.predicted_bytes for step in program.ladder.steps)
    points: list[Point] = []
    for i in range(count):
        budget = int(plain - (plain - lowest) * i / max(1, count - 1))
        try:
            fitted = program.fit(budget)
        except recoup.BudgetError:
            points.append(Point(budget, 0, 0.0, 0.0, 0.0, 0, True))
            break  # the smaller ones cannot be met either
        found = program.compare(program.run(fitted))
        total, overhead = fitted.memory.total_bytes, fitted.plan.overhead
        cost = program.step_of(fitted).cost
        points.append(Point(budget, total, cost, overhead, found.ulps, fitted.compiles, found.agrees))
    return points


def faults(points: list[Point]) -> list[str]:
    """What must not happen, in words."""
    found = []
    met = [p for p in points if p.total_bytes]
    for p in met:
        if p.total_bytes > p.budget_bytes:
            found.append(f"{p.total_bytes} bytes at a budget of {p.budget_bytes}")
        if not p.agrees:
            found.append(f"results differ by {p.ulps:.3g} ulps at {p.budget_bytes}")
    for above, below in itertools.pairwise(met):
        if below.total_bytes > above.total_bytes:
            found.append(f"the peak rises to {below.total_bytes} at {below.budget_bytes}")
        if below.cost < above.cost:
            found.append(f"the cost falls to {below.cost:.4g} at {below.budget_bytes}")
    return found


def table(pages: list[dict[str, Any]]) -> str:
    """Stored runs as Markdown: a row a model."""
    lines = [
        "# Twenty falling budgets on each model",
        "",
        "Made by `python -m benchmarks.budgets`. Budgets fall in equal steps from what the step compiles to",
        "as it is to the smallest peak that planning predicts; the first refused ends a row. Sizes are",
        "the compiler's. `ulps` is the largest difference of any output from plain, in units in the last",
        "place of its largest value; all agree by the rule of `recoup.check` unless a fault says otherwise.",
        "",
        "| JAX | scale | model | plain | met | down to | FLOPs there | compiles | ulps | faults |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for page in pages:
        for name, found in page["models"].items():
            points = [Point(**p) for p in found["points"]]
            met = [p for p in points if p.total_bytes]
            last = min(met, key=lambda p: p.total_bytes)
            share = last.total_bytes / points[0].budget_bytes
            worst = max(p.ulps for p in met)
            cells = (
                *(page["jax"], page["scale"], name, format_bytes(points[0].budget_bytes), len(met)),
                *(f"{share:.0%}", f"+{met[-1].overhead:.1%}", sum(p.compiles for p in met), f"{worst:.3g}"),
                "; ".join(found["faults"]) or "none",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--budgets", type=int, default=20)
    parser.add_argument("--log", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="the page of stored runs")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(path.read_text(encoding="utf-8")) for path in options.table]), end="")
        return
    stored = {}
    for name in options.names or ZOO:
        start = time.monotonic()
        points = sweep(name, options.scale, options.budgets)
        wrong = faults(points)
        met = [p for p in points if p.total_bytes]
        lowest = min(p.total_bytes for p in met) / met[0].budget_bytes
        print(
            f"{name:10} {len(met):3} budgets met, down to {lowest:.0%} at +{met[-1].overhead:.1%} FLOPs, "
            f"{time.monotonic() - start:.0f} s: {'; '.join(wrong) or 'in order'}",
            flush=True,
        )
        stored[name] = {"points": [asdict(p) for p in points], "faults": wrong}
        jax.clear_caches()
        if options.log is not None:
            page = {"jax": jax.__version__, "scale": options.scale, "models": stored}
            options.log.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
