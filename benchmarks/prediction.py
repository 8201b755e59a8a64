"""Predicted temporaries against compiled, on the JAX at hand: the zoo, fitted steps, random programs.

    python -m benchmarks.prediction [--scale small|bench] [--sets zoo,fitted,mixed,random] [--programs N]
                                    [--write] [NAME ...]

`zoo`: each model as it is written and with `jax.checkpoint` by hand under two policies. `fitted`: what
`recoup.fit` returns at three budgets each (the first three of 85, 70, 55, 92, 78 % that can be met).
`mixed`: gradients of four small models with float32 parameters and bfloat16 arithmetic. `random`: steps of
`benchmarks.programs`, seeds 0 to N-1 at size "medium".

Instruments: compiled is the compiler's memory analysis (temporaries), barriers kept; predicted is
`recoup._memory.predict`, which compiles nothing. An error is relative to the compiled temporaries;
differences of up to 4 KiB count as none (a handful of scalars and alignment, all that some programs have).
Times are of one run on a possibly busy machine: read their ratio. With the XLA flag
`--xla_backend_optimization_level=0` compiling is cheaper and no size changes (equal on 26 random programs on
JAX 0.12), but its time says nothing. `--write` stores the tables in
`benchmarks/results/prediction-VERSION.md`, one section a set, keeping the sections that were not run.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import recoup
from benchmarks import programs
from benchmarks.zoo import ZOO
from recoup import _compat
from recoup._barrier import FENCE_OPTIONS
from recoup._memory import predict

MIB = 2**20
SETS = ("zoo", "fitted", "mixed", "random")
BUDGETS = (85, 70, 55, 92, 78)
SLACK_BYTES = 4096
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One program: sizes in bytes, times in seconds; `compile_s` is None where `fit` compiled it."""

    name: str
    equations: int
    compiled_bytes: int
    low_bytes: int
    predicted_bytes: int
    high_bytes: int
    predict_s: float
    compile_s: float | None
    opaque: tuple[str, ...]

    @property
    def error(self) -> float:
        off = self.predicted_bytes - self.compiled_bytes
        return 0.0 if abs(off) <= SLACK_BYTES else off / max(self.compiled_bytes, SLACK_BYTES)

    @property
    def inside(self) -> bool:
        low, high = self.low_bytes - SLACK_BYTES, self.high_bytes + SLACK_BYTES
        return low <= self.compiled_bytes <= high

    @property
    def width(self) -> float:
        return (self.high_bytes - self.low_bytes) / max(self.predicted_bytes, SLACK_BYTES)


def measure(
    name: str,
    step: Any,
    args: tuple[Any, ...],
    donate: Sequence[int] = (),
    compiled_bytes: int | None = None,
) -> Row:
    """One case: predicts it, and compiles it unless the compiler's number is known."""
    jaxpr = jax.make_jaxpr(step)(*args)
    donated = [i in donate for i, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
    start = time.perf_counter()
    predicted = predict(jaxpr, donated=donated)
    predict_s = time.perf_counter() - start
    compile_s = None
    if compiled_bytes is None:
        options = FENCE_OPTIONS if _compat.BARRIERS_NEED_OPTION else None
        lowered = jax.jit(step, donate_argnums=tuple(donate)).lower(*args)
        start = time.perf_counter()
        compiled = lowered.compile(compiler_options=options)
        compile_s = time.perf_counter() - start
        compiled_bytes = compiled.memory_analysis().temp_size_in_bytes
    sizes = [m.temporaries_bytes for m in (predicted.low, predicted.estimate, predicted.high)]
    equations = len(_compat.open_jaxpr(jaxpr)[0].eqns)
    return Row(name, equations, compiled_bytes, *sizes, predict_s, compile_s, predicted.opaque)


def rows_of(which: str, scale: str, names: Sequence[str], count: int) -> Iterator[Row]:
    """The measured rows of one set."""
    if which == "random":
        for seed in range(count):
            case = programs.draw(seed, "medium")
            yield measure(f"program {seed}", case.step, case.args, case.donate)
            jax.clear_caches()
        return
    if which == "mixed":
        from tests.memory.programs import MODELS, mixed_precision

        for name in MODELS:
            if not names or name in names:
                yield measure(f"{name}/bfloat16", *mixed_precision(name))
        return
    for name, entry in ZOO.items():
        if names and name not in names:
            continue
        if which == "zoo":
            yield measure(f"{name}/plain", *entry.make(scale))
            for policy in ("nothing_saveable", "dots_saveable"):
                yield measure(f"{name}/{policy}", *entry.by_hand(policy, scale))
        else:
            yield from _fitted(name, *entry.make(scale))
        jax.clear_caches()


def _fitted(name: str, step: Any, args: tuple[Any, ...]) -> Iterator[Row]:
    met = 0
    for percent in BUDGETS:
        if met == 3:
            return
        try:
            fitted = recoup.fit(step, *args, budget=f"{percent}%")
        except recoup.BudgetError:
            continue
        met += 1
        yield measure(f"{name} at {percent} %", fitted.fun, args, (), fitted.memory.temporaries_bytes)


def line(row: Row) -> str:
    against = f" against {row.compile_s:.1f} s" if row.compile_s is not None else ""
    low, high = row.low_bytes / MIB, row.high_bytes / MIB
    return (
        f"{row.name:28s} {row.equations:5d} equations  compiled {row.compiled_bytes / MIB:9.3f}  "
        f"predicted {row.predicted_bytes / MIB:9.3f} [{low:.3f}, {high:.3f}]  "
        f"{row.error:+8.2%}  {'' if row.inside else 'outside  '}{row.predict_s:.2f}{against}"
        f"{'  opaque: ' + ', '.join(row.opaque) if row.opaque else ''}"
    )


def summary(rows: Sequence[Row]) -> str:
    """The numbers of a set in one sentence."""
    errors = sorted(abs(row.error) for row in rows)
    timed = [row.predict_s / row.compile_s for row in rows if row.compile_s]
    text = (
        f"{len(rows)} programs: median error {statistics.median(errors):.2%}, 95th percentile "
        f"{errors[min(len(errors) - 1, int(0.95 * len(errors)))]:.2%}, worst {errors[-1]:.2%}; the interval "
        f"holds {sum(row.inside for row in rows)} of {len(rows)}, median width "
        f"{statistics.median(row.width for row in rows):.1%}"
    )
    if timed:
        text += (
            f"; prediction over compile time, median {statistics.median(timed):.3f}, worst {max(timed):.2f}"
        )
    return text + "."


def markdown(title: str, rows: Sequence[Row]) -> str:
    head = f"## {title}\n\n{summary(rows)}\n\n"
    head += "| program | equations | compiled MiB | predicted | low | high | error | inside | opaque |\n"
    head += "|---|---:|---:|---:|---:|---:|---:|---|---|\n"
    shown = rows if len(rows) <= 60 else sorted(rows, key=lambda r: -abs(r.error))[:40]
    cells = [
        f"| {r.name} | {r.equations} | {r.compiled_bytes / MIB:.3f} | {r.predicted_bytes / MIB:.3f} | "
        f"{r.low_bytes / MIB:.3f} | {r.high_bytes / MIB:.3f} | {r.error:+.2%} | "
        f"{'yes' if r.inside else 'no'} | {', '.join(r.opaque)} |"
        for r in shown
    ]
    rest = "" if len(shown) == len(rows) else "\n\nThe forty largest errors are shown."
    return head + "\n".join(cells) + rest + "\n"


def write(path: Path, sections: dict[str, str]) -> None:
    """Replaces these sections of a results file, and keeps the others."""
    old = path.read_text() if path.exists() else ""
    kept = {s.split("\n", 1)[0]: "## " + s for s in re.split(r"^## ", old, flags=re.M)[1:]}
    for text in sections.values():
        kept[text[3:].split("\n", 1)[0]] = text
    head = (
        f"# Predicted temporaries against compiled, JAX {jax.__version__}, {jax.default_backend()}\n\n"
        "Made by `python -m benchmarks.prediction --write`; what is measured is said there.\n"
    )
    path.write_text("\n".join([head, *(text.rstrip() + "\n" for text in kept.values())]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", default="small", choices=["small", "bench"])
    parser.add_argument("--sets", default="zoo,mixed", help=f"some of {','.join(SETS)}")
    parser.add_argument("--programs", type=int, default=200, metavar="N", help="how many random programs")
    parser.add_argument("--write", action="store_true", help="store the tables in benchmarks/results")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args(argv)
    sets = args.sets.split(",")
    if not set(sets) <= set(SETS):
        parser.error(f"--sets takes some of {', '.join(SETS)}")
    print(f"JAX {jax.__version__}, {jax.default_backend()}, scale {args.scale}; sizes in MiB")
    sections = {}
    for which in sets:
        rows = []
        for row in rows_of(which, args.scale, args.names, args.programs):
            rows.append(row)
            print(line(row), flush=True)
        if not rows:
            print(f"{which}: no such case", file=sys.stderr)
            return 2
        title = f"{which}, {args.scale}" if which in ("zoo", "fitted") else which
        print(f"{title}: {summary(rows)}")
        sections[title] = markdown(title, rows)
    if args.write:
        path = RESULTS / f"prediction-{jax.__version__}.md"
        write(path, sections)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
