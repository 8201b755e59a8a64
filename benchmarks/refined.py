"""What the general solver adds to the dear end of the zoo's ladders. Nothing compiles.

    python -m benchmarks.refined [--write] [unet resnet ...]

For each model: where the dear end begins (share of the plain step's temporaries, and extra cost in % of one
pass), and, over thirty budgets from there down, the cost of the plan found with the search over that without
it: mean (geometric), least and most. Then the seconds of the ladder and of the search.
`--write` keeps it in benchmarks/results/refined-<JAX>.md.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.zoo import ZOO
from recoup import _ladder
from recoup._refine import refined
from recoup._trace import trace

BUDGETS = 30
MODELS = ["mlp", "gpt", "vit", "moe", "resnet", "unet", "lstm", "gpt_scan"]


def compare(name: str) -> str:
    """One model's row."""
    step, args = ZOO[name].make("bench")
    traced = trace(step, args)
    began = time.perf_counter()
    ladder = _ladder.build(traced)
    built = time.perf_counter() - began
    began = time.perf_counter()
    after = refined(ladder, lambda _: False)
    searched = time.perf_counter() - began
    if after.refined is None:
        return f"| {name} | none | | | | | |"
    whole = sum(op.cost for op in traced.program.ops)
    above = ladder.steps[after.refined - 1]
    fixed = ladder.steps[0].predicted_bytes - ladder.steps[0].prediction.high.temporaries_bytes
    lowest = min(rung.predicted_bytes for rung in ladder.steps)
    ratios = []
    budgets = np.geomspace(above.predicted_bytes - fixed, lowest - fixed + 1, BUDGETS + 1)[1:]
    for budget in budgets.astype(int).tolist():
        old, new = (found.first_within(budget + fixed) for found in (ladder, after))
        if old is not None and new is not None and ladder.steps[old].cost:
            ratios.append(after.steps[new].cost / ladder.steps[old].cost)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    temporaries = above.prediction.high.temporaries_bytes
    share = temporaries / ladder.steps[0].prediction.high.temporaries_bytes
    cells = f"{share:.0%} | {above.cost / whole:.1%} | {mean:.2f} | {min(ratios):.2f} | {max(ratios):.2f}"
    return f"| {name} | {cells} | {built:.1f} + {searched:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    options = parser.parse_args()
    lines = [
        "| model | dear end from | cost there | with / without, mean | least | most | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for name in options.names:
        lines.append(compare(name))
        print(lines[-1], flush=True)
    if options.write:
        path = Path(__file__).parent / "results" / f"refined-{jax.__version__}.md"
        title = f"# The dear end of the ladders, searched (JAX {jax.__version__})"
        path.write_text("\n".join([title, "", *lines, ""]))


if __name__ == "__main__":
    main()
