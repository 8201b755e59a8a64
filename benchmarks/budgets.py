"""Twenty falling budgets on each model of the zoo: peaks never rise, costs never fall, results agree.

    python -m benchmarks.budgets [--scale small] [--budgets 20] [--log FILE] [NAME ...]

Budgets are shares of what the step compiles to as it is, from all of it down to a few percent below the first
one that cannot be met. Each result is certified, and compared with plain by `recoup.check`. Prints a line a
model and, with `--log`, stores every point.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import jax

import recoup
from benchmarks.zoo import ZOO


@dataclass(frozen=True)
class Point:
    """One budget. `total_bytes` is the compiler's, 0 where the budget was refused."""

    budget_bytes: int
    total_bytes: int
    overhead: float
    ulps: float
    compiles: int
    agrees: bool


def sweep(name: str, scale: str, count: int) -> list[Point]:
    """The points of one model, from the largest budget to the smallest."""
    step, args = ZOO[name].make(scale)
    plain = recoup.fit(step, *args, budget="100%").memory.total_bytes
    points: list[Point] = []
    for i in range(count):
        budget = int(plain * (1.0 - 0.9 * i / max(1, count - 1)))
        try:
            fitted = recoup.fit(step, *args, budget=budget)
        except recoup.BudgetError:
            points.append(Point(budget, 0, 0.0, 0.0, 0, True))
            break  # the smaller ones cannot be met either
        found = recoup.check(step, fitted, *args)
        total = fitted.memory.total_bytes
        points.append(Point(budget, total, fitted.plan.overhead, found.ulps, fitted.compiles, found.agrees))
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
        if below.overhead < above.overhead:
            found.append(f"the cost falls to {below.overhead:.4f} at {below.budget_bytes}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--budgets", type=int, default=20)
    parser.add_argument("--log", type=Path, metavar="FILE")
    options = parser.parse_args()
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
