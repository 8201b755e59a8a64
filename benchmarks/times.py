"""Does the order that the roofline predicts agree with the clock? Rungs of a step's ladder, timed in turn.

    python -m benchmarks.times [--write] [gpt resnet lstm ...]

The ladder is the one of `minimize="seconds"` (`recoup.calibrate`). For each model up to eight of its rungs,
and the one that `fit` would take if every rung were within the budget (marked), are compiled and timed round
by round: the median over rounds of a rung's time over the plain step's in the same round. Beside it: FLOPs
and the roofline's predicted seconds over the plain step's. Agreement is the share of pairs of rungs that both
put in the same order (Kendall), over pairs whose measured times differ by more than 3 %. `--write` keeps it
all in benchmarks/results/times-<JAX>.md. Nothing else may run meanwhile.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax

import recoup
from benchmarks.zoo import ZOO
from recoup import _ladder, _objective
from recoup._calibrate import predicted_seconds
from recoup._compiling import Compiler
from recoup._progress import Progress
from recoup._trace import to_program, trace

APART = 0.03
MODELS = ["mlp", "gpt", "gpt_scan", "vit", "resnet", "unet", "moe", "lstm"]


def measure(name: str, rounds: int, rungs: int, say: Any) -> tuple[int, int, int]:
    """Tell one model's rungs; pairs in the same order by FLOPs, by the roofline, and all pairs."""
    roofline = recoup.calibrate()
    step, args = ZOO[name].make("bench")
    with _objective.minimizing(roofline):
        traced = trace(step, args)
        ladder = _ladder.build(traced)
    steps = ladder.steps
    taken = _objective.quickest(ladder, 0, roofline, lambda _: True)
    spread = {round(i * (len(steps) - 1) / (rungs - 1)) for i in range(rungs)}
    chosen = [steps[k] for k in sorted({*spread, taken})]
    compiler = Compiler(traced, step, args, {}, (), (), (), None, None, None, Progress(enabled=False))
    runs: list[Any] = []
    predicted, flops = [], []
    for rung in chosen:
        runs.append(compiler.compile(rung.flat, None)[0])
        program = to_program(rung.flat)
        held = rung.prediction.estimate
        fresh = held.temporaries_bytes + held.outputs_bytes
        predicted.append(predicted_seconds(rung.flat, program, roofline, fresh))
        flops.append(program.flops)
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        jax.block_until_ready(run(*args))
    for _ in range(rounds):
        for own, run in zip(times, runs, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(run(*args))
            own.append(time.perf_counter() - began)
    ratios = [statistics.median(a / b for a, b in zip(own, times[0], strict=True)) for own in times]
    say(f"{name}: plain {statistics.median(times[0]):.3f} s, roofline {predicted[0]:.3f} s")
    say("  peak MiB   FLOPs  roofline  measured")
    for rung, work, seconds, ratio in zip(chosen, flops, predicted, ratios, strict=True):
        peak = rung.predicted_bytes / 2**20
        mark = "  taken" if rung is steps[taken] else ""
        say(f"  {peak:8.0f}  {work / flops[0]:6.3f}  {seconds / predicted[0]:8.3f}  {ratio:8.3f}{mark}")
    by_flops = by_roofline = pairs = 0
    for i, j in itertools.combinations(range(len(ratios)), 2):
        if abs(ratios[i] - ratios[j]) > APART * min(ratios[i], ratios[j]):
            pairs += 1
            by_flops += (flops[i] < flops[j]) == (ratios[i] < ratios[j])
            by_roofline += (predicted[i] < predicted[j]) == (ratios[i] < ratios[j])
    say(f"  pairs in the measured order: FLOPs {by_flops}, roofline {by_roofline}, of {pairs}")
    return by_flops, by_roofline, pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rungs", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    options = parser.parse_args()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    load = os.getloadavg()[0]
    say(f"JAX {jax.__version__}, {os.cpu_count()} cores, load average {load:.1f} at the start")
    say(str(recoup.calibrate(force=True)))
    found = [measure(name, options.rounds, options.rungs, say) for name in options.names]
    totals = [sum(column) for column in zip(*found, strict=True)]
    say(f"all: FLOPs {totals[0]}, roofline {totals[1]}, of {totals[2]} pairs")
    if options.write:
        path = Path(__file__).parent / "results" / f"times-{jax.__version__}.md"
        called = " ".join(sys.argv[1:])
        text = "\n".join(lines)
        path.write_text(
            f"# Predicted and measured order of rungs\n\n`python -m benchmarks.times {called}`\n\n"
            f"```\n{text}\n```\n"
        )


if __name__ == "__main__":
    main()
