"""Sharded steps on 8 virtual CPU devices, fitted at two budgets: certified, predicted, exchanged.

    python -m benchmarks.sharding                # all; writes benchmarks/results/sharding-<JAX>.md
    python -m benchmarks.sharding map_fsdp@60%   # this one, printed only

The steps are those of `tests/sharding/steps.py`. Bytes are those of one device (all hold the same), by the
compiler's memory analysis; budgets are shares of what the step as it is compiles to. "Uncalibrated" is the
memory model's estimate before anything compiled, "predicted" what the plan reports after the plain step was.
Differences are relative to the largest value of a result.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

WHAT = {
    "data": "data parallel (jit)",
    "fsdp": "weights and state in shards (jit)",
    "donated": "the same, donated",
    "optimizer_state": "optimizer state in shards (jit)",
    "tensor": "tensor parallel, 2 x 4 (jit)",
    "data_and_tensor": "data and tensor parallel, 4 x 2 (jit)",
    "constrained": "weights gathered by a constraint (jit)",
    "map_data": "data parallel, gradient in shard_map",
    "map_unchecked": "the same, check_vma=False",
    "map_fsdp": "FSDP, gradient in shard_map",
    "map_fsdp_outside": "FSDP, gradient of shard_map",
    "map_tensor": "tensor parallel, 2 x 4, gradient in shard_map",
    "map_scan": "FSDP, layers in a scan in shard_map",
    "map_accumulate": "microbatches in a scan in shard_map",
    "map_twice": "FSDP, two shard_maps on an explicit mesh, loss outside",
    "map_gathered": "FSDP, large weights, gradient in shard_map",
    "map_gathered_outside": "FSDP, large weights, gradient of shard_map",
}
BUDGETS = {"constrained": (75, 60), "map_gathered": (60, 45), "map_gathered_outside": (60, 45)}
TIGHTER = {"map_accumulate": 70, "map_tensor": 55}


def measure(cases: list[str]) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.sharding.programs", *cases],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        raise SystemExit(child.stderr[-2000:])
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        "| step | budget | plain KiB | certified KiB | from plain | from one device | predicted / compiled "
        "| uncalibrated / compiled | extra FLOPs | gathered again | exchanges, plain | exchanges, fitted |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, row in found.items():
        name, _, budget = case.partition("@")
        equal = "to the bit" if row["from_plain"] == 0 else f"{row['from_plain']:.0e}"
        again = f"{row['gathers']}, {row['gathered_bytes'] / 1024:.0f} KiB" if row["gathers"] else "–"
        own = f"{row['uncalibrated'] / row['compiled']:.3f}" if name.startswith("map") else "–"
        exchanges = [", ".join(f"{n} {kind}" for kind, n in counts.items()) for counts in row["collectives"]]
        lines.append(
            f"| {WHAT[name]} | {budget} | {row['plain'] / 1024:.0f} | {row['compiled'] / 1024:.0f} "
            f"({row['compiled'] / row['plain']:.0%}) | {equal} | {row['from_one_device']:.0e} "
            f"| {row['predicted'] / row['compiled']:.3f} | {own} | {row['overhead']:+.1%} | {again} "
            f"| {exchanges[0]} | {exchanges[1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    import jax

    chosen = sys.argv[1:]
    every = [f"{c}@{b}%" for c in WHAT for b in BUDGETS.get(c, (75, TIGHTER.get(c, 60)))]
    text = table(measure(chosen or every))
    print(text)
    if not chosen:
        head = (
            "# Sharded steps, fitted\n\n`python -m benchmarks.sharding`, "
            f"JAX {jax.__version__}, 8 virtual CPU devices; bytes of one device.\n\n"
        )
        (RESULTS / f"sharding-{jax.__version__}.md").write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
