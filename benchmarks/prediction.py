"""Predicted temporaries against compiled, over the zoo and a mixed-precision set, on the JAX at hand.

    python -m benchmarks.prediction [--scale small|bench] [--set zoo|mixed|all] [--json FILE] [NAME ...]

Each zoo model is taken as it is written and with `jax.checkpoint` by hand under two policies; the mixed
set takes the gradients of four small models with float32 parameters and bfloat16 arithmetic. Printed for
each: the compiled arena (the compiler's memory analysis, barriers kept), the prediction and its interval, the
error, and the times of both. Times are of one run on a possibly busy machine: read their ratio.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks.zoo import ZOO
from recoup import _compat
from recoup._memory import predict

MIB = 2**20


def cases(scale: str, which: str, names: list[str]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """(name, step, arguments) of each case."""
    if which in ("zoo", "all"):
        for name, entry in ZOO.items():
            if names and name not in names:
                continue
            yield f"{name}/plain", *entry.make(scale)
            for policy in ("nothing_saveable", "dots_saveable"):
                yield f"{name}/{policy}", *entry.by_hand(policy, scale)
    if which in ("mixed", "all"):
        from tests.memory.programs import MODELS, mixed_precision

        for name in MODELS:
            if not names or name in names:
                yield f"{name}/bfloat16", *mixed_precision(name)


def measure(name: str, step: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """One case: compiles it, predicts it, compares."""
    jaxpr = jax.make_jaxpr(step)(*args)
    start = time.perf_counter()
    predicted = predict(jaxpr)
    predict_s = time.perf_counter() - start
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"} if _compat.BARRIERS_NEED_OPTION else None
    start = time.perf_counter()
    compiled = jax.jit(step).lower(*args).compile(compiler_options=options)
    compile_s = time.perf_counter() - start
    truth = compiled.memory_analysis().temp_size_in_bytes
    low, mid, high = (m.temporaries_bytes for m in (predicted.low, predicted.estimate, predicted.high))
    return {
        "name": name,
        "equations": len(_compat.open_jaxpr(jaxpr)[0].eqns),
        "compiled_bytes": truth,
        "predicted_bytes": mid,
        "low_bytes": low,
        "high_bytes": high,
        "error": (mid - truth) / truth,
        "inside": low <= truth <= high,
        "predict_s": predict_s,
        "compile_s": compile_s,
        "opaque": list(predicted.opaque),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", default="small", choices=["small", "bench"])
    parser.add_argument("--set", dest="which", default="all", choices=["zoo", "mixed", "all"])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args(argv)
    rows = []
    print(
        f"JAX {jax.__version__}, {jax.default_backend()}, scale {args.scale}; sizes in MiB, times in seconds"
    )
    for name, step, step_args in cases(args.scale, args.which, args.names):
        row = measure(name, step, step_args)
        rows.append(row)
        print(
            f"{name:28s} {row['equations']:5d} equations  compiled {row['compiled_bytes'] / MIB:9.3f}  "
            f"predicted {row['predicted_bytes'] / MIB:9.3f} [{row['low_bytes'] / MIB:.2f}, "
            f"{row['high_bytes'] / MIB:.2f}]  {row['error']:+7.2%}  {'' if row['inside'] else 'outside  '}"
            f"{row['predict_s']:.2f} against {row['compile_s']:.1f}",
            flush=True,
        )
    if not rows:
        print("no such case", file=sys.stderr)
        return 2
    errors = [abs(row["error"]) for row in rows]
    inside = sum(row["inside"] for row in rows)
    print(
        f"{len(rows)} cases: median error {statistics.median(errors):.2%}, worst {max(errors):.2%}; "
        f"{inside} inside the interval; prediction / compile, median "
        f"{statistics.median(row['predict_s'] / row['compile_s'] for row in rows):.3f}"
    )
    if args.json:
        args.json.write_text(
            json.dumps({"jax": jax.__version__, "scale": args.scale, "rows": rows}, indent=1)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
