"""How long planning takes as programs grow: the zoo's GPT of 6, 24 and 96 unrolled layers.

The last also with plain gradient descent in place of AdamW, whose update is half of its operations. Each
scale runs in a process of its own. Times are of one run: tracing alone (`jax.make_jaxpr`); tracing for
planning, which also inlines calls and prices operations; and `recoup.plan` at 60 % of the unplanned step's
predicted total with parameters and optimizer state donated, which traces once more, plans and predicts.
Nothing compiles. Merged into `results/planning-<JAX version>.json`.

    python -m benchmarks.planning [SCALE ...]      bench, deep, deepest-sgd, deepest
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SCALES = ("bench", "deep", "deepest-sgd", "deepest")


def measure(scale: str) -> dict[str, Any]:
    """Plan the GPT at one scale."""
    import jax
    import jax.numpy as jnp

    import recoup
    from benchmarks.measure import count_equations
    from benchmarks.models.transformers import gpt_sgd
    from benchmarks.zoo import ZOO
    from recoup import _trace

    if scale.endswith("-sgd"):
        step, args = gpt_sgd(scale.removesuffix("-sgd"))
        args = jax.tree.map(jnp.asarray, args)
    else:
        step, args = ZOO["gpt"].make(scale)
    donated = tuple(range(len(args) - 1))  # all but the batch
    began = time.perf_counter()
    closed = jax.make_jaxpr(step)(*args)
    traced = time.perf_counter()
    operations = len(_trace.trace(step, args, donate_argnums=donated).program.ops)
    inlined = time.perf_counter()
    plan = recoup.plan(step, *args, budget="60%", donate_argnums=donated)
    planned = time.perf_counter()
    return {
        "scale": scale,
        "jax": jax.__version__,
        "recoup": recoup.__version__,
        "equations": count_equations(closed),
        "operations": operations,
        "trace_seconds": traced - began,
        "inline_seconds": inlined - traced,
        "plan_seconds": planned - inlined,
        "after_tracing_seconds": planned - inlined - (inlined - traced),
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "overhead": plan.overhead,
    }


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
        return 0
    for scale in sys.argv[1:] or SCALES:
        command = [sys.executable, "-m", "benchmarks.planning", "--child", scale]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode != 0:
            print(f"{scale}: its process ended with {ended.returncode}", file=sys.stderr)
            return 1
        row = json.loads(ended.stdout.splitlines()[-1])
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"planning-{row['jax']}.json"
        rows = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(rows | {scale: row}, indent=1) + "\n")
        print(
            f"{scale:12} {row['equations']:6} equations: traced in {row['trace_seconds']:.1f} s, planned in "
            f"{row['plan_seconds']:.1f} s ({row['after_tracing_seconds']:.1f} s of it after tracing) at "
            f"{row['overhead']:+.1%} FLOPs; wrote {path}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
