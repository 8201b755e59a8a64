"""Mutation score of the machines, the value numbering and rewriting: how many small errors tests notice.

    python -m benchmarks.mutants [--sample 80] [--seed 0] [--log FILE] [MODULE ...]    run mutants, minutes
    python -m benchmarks.mutants --table FILE ...                                     the page of stored runs

cosmic-ray changes one thing at a time in a copy of the source (a comparison, a constant, an operator, a
condition, a loop) and runs a few fast tests; a mutant is killed if one fails, or if they take ten times as
long. What is sampled is drawn with a seed. Mutants of type annotations are left out: they say nothing of the
tests.
"""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = {
    "_solve/_check": ["tests/breaking/test_schedule_machines.py", "tests/solve/test_machine.py"],
    "_loops/machine": ["tests/breaking/test_schedule_machines.py", "tests/loops/test_schedules.py"],
    "_planner/machine": ["tests/spine/test_machine.py", "tests/breaking/test_schedule_machines.py"],
    "_verify": ["tests/breaking/test_machines.py"],
    "_rewrite": ["tests/breaking/test_rewriting.py"],
}
UNIONS = "core/ReplaceBinaryOperator_BitOr"  # in these modules `|` stands in type annotations only


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed: where it is and what it changed."""

    line: int
    operator: str
    diff: str


@dataclass(frozen=True)
class Score:
    """One module: mutants that could be made, that were run, and killed; `timed_out` of them by the limit."""

    module: str
    mutants: int
    run: int
    killed: int
    timed_out: int
    seconds: float
    survivors: tuple[Survivor, ...]


def score(module: str, sample: int, seed: int, copy: Path) -> Score:
    """Runs a sample of a module's mutants in a copy of the tree."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

    start = time.monotonic()
    file = f"src/recoup/{module}.py"
    options = "-x -q -p no:cacheprovider -p no:xdist -o addopts=--import-mode=importlib -m 'not slow'"
    command = f"{shlex.quote(sys.executable)} -m pytest {options} {' '.join(TESTS[module])}"
    # CI: hypothesis then draws the same examples each time, and stores none
    env = os.environ | {"PYTHONPATH": str(copy / "src"), "CI": "1", "JAX_PLATFORMS": "cpu"}

    def run(*arguments: str) -> None:
        subprocess.run(arguments, cwd=copy, env=env, check=True, stdout=subprocess.DEVNULL)

    begun = time.monotonic()
    run(*shlex.split(command))  # unchanged, they pass; it also warms the caches
    allowed = 10 * (time.monotonic() - begun)
    shutil.rmtree((copy / file).parent / "__pycache__", ignore_errors=True)
    name = module.replace("/", ".")
    config, session = copy / f"{name}.toml", copy / f"{name}.sqlite"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{file}"\ntimeout = {allowed:.1f}\nexcluded-modules = []\n'
        f'test-command = {json.dumps(command)}\n[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    tool = [sys.executable, "-m", "cosmic_ray.cli"]
    run(*tool, "init", config.name, session.name)
    with use_db(session, WorkDB.Mode.open) as work:
        items = [i for i in work.work_items if not i.mutations[0].operator_name.startswith(UNIONS)]
        items.sort(key=lambda i: _place(i.mutations[0]))
        chosen = {i.job_id for i in random.Random(seed).sample(items, min(sample, len(items)))}
        skipped = WorkResult(worker_outcome=WorkerOutcome.SKIPPED)
        work.set_multiple_results([i.job_id for i in work.work_items if i.job_id not in chosen], skipped)
    run(*tool, "exec", config.name, session.name)
    survivors, killed, timed_out = [], 0, 0
    with use_db(session, WorkDB.Mode.open) as work:
        for item, result in work.completed_work_items:
            if item.job_id not in chosen:
                continue
            if result.test_outcome == TestOutcome.SURVIVED:
                mutation = item.mutations[0]
                diff = "\n".join(r for r in str(result.diff).splitlines() if re.match(r"[+-](?![+-])", r))
                survivors.append(Survivor(mutation.start_pos[0], mutation.operator_name, diff))
            elif result.test_outcome == TestOutcome.KILLED:
                killed += 1
                timed_out += result.output == "timeout"
            else:
                raise RuntimeError(f"a mutant of {module} could not be run: {result.output}")
    survivors.sort(key=lambda s: (s.line, s.operator, s.diff))
    return Score(
        module, len(items), len(chosen), killed, timed_out, round(time.monotonic() - start), tuple(survivors)
    )


def _place(mutation: Any) -> tuple[Any, ...]:
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def table(pages: list[dict[str, Any]]) -> str:
    """The scores as Markdown, and every survivor with its change."""
    scores = [score for page in pages for score in page["scores"]]
    lines = [
        "# Mutants",
        "",
        "Made by `python -m benchmarks.mutants` (cosmic-ray; its first lines say how).",
        "",
        "| module | mutants | run | killed | by the time limit | score | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in scores:
        counts = s["mutants"], s["run"], s["killed"], s["timed_out"]
        cells = f"`{s['module']}`", *counts, f"{s['killed'] / s['run']:.0%}"
        lines.append(f"| {' | '.join(map(str, cells))} | {s['seconds']:.0f} |")
    ran, killed = sum(s["run"] for s in scores), sum(s["killed"] for s in scores)
    made = sum(s["mutants"] for s in scores)
    lines += [f"| all | {made} | {ran} | {killed} | | {killed / ran:.0%} | |", ""]
    lines += ["## Survivors"]
    for s in scores:
        for one in s["survivors"]:
            lines += ["", f"`{s['module']}`, line {one['line']}:", "```diff", one["diff"], "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)} (default: all)")
    parser.add_argument("--sample", type=int, default=80, help="mutants of each module (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--log", type=Path, metavar="FILE", help="store the scores as JSON")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print the page of stored runs")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(path.read_text(encoding="utf-8")) for path in options.table]), end="")
        return
    scores = []
    with tempfile.TemporaryDirectory(prefix="recoup-mutants-") as place:
        copy = Path(place)
        for part in ("src", "tests", "benchmarks"):
            shutil.copytree(
                ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        shutil.copy(ROOT / "pyproject.toml", copy)
        for module in options.modules or TESTS:
            found = score(module, options.sample, options.seed, copy)
            scores.append(asdict(found))
            print(f"{module:16} {found.killed} of {found.run} killed, {found.seconds:.0f} s", flush=True)
            if options.log is not None:
                page = {"seed": options.seed, "scores": scores}
                options.log.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
