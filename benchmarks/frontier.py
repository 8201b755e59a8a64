"""recoup against plain and against `jax.checkpoint` by hand, on every model of the zoo, as one table.

Each model is measured in a process of its own (`measure.py`); the results of the models that ran are merged
into `benchmarks/results/frontier-<JAX version>.json`, and the table beside it is made from that file.

    python -m benchmarks.frontier                     every model at full size: half an hour on two cores
    python -m benchmarks.frontier --models gpt,unet   only these; the others' results stay
    python -m benchmarks.frontier --quick             small sizes, one round; writes frontier-quick-*
"""

import argparse
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.frontier", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--models", help="comma-separated names (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timing (default: 5)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one model (default: 1800)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _child(options)

    from benchmarks.zoo import ZOO

    names = options.models.split(",") if options.models else list(ZOO)
    unknown = [name for name in names if name not in ZOO]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(ZOO)}")
    failed = [name for name in names if not _run_child(name, options)]
    if failed:
        print(f"frontier: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_child(name: str, options: argparse.Namespace) -> bool:
    """Measure one model in a process of its own and merge what it found."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "result.json"
        command = [sys.executable, "-m", "benchmarks.frontier", "--child", name, "--out", str(file)]
        command += [
            "--repeats",
            str(1 if options.quick else options.repeats),
            *(["--quick"] if options.quick else []),
        ]
        try:
            code = subprocess.run(command, timeout=options.timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"{name}: no result within {options.timeout:.0f} s", file=sys.stderr)
            return False
        if code != 0:
            print(f"{name}: its process ended with {code}", file=sys.stderr)
            return False
        result = json.loads(file.read_text())
    result["model"]["wall_seconds"] = time.perf_counter() - began
    _merge(result, options)
    return True


def _merge(result: dict[str, Any], options: argparse.Namespace) -> None:
    from benchmarks.frontier_table import markdown

    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"frontier-{'quick-' if options.quick else ''}{result['versions']['jax']}"
    path = options.out / f"{stem}.json"
    whole = json.loads(path.read_text()) if path.exists() else {"models": {}}
    model = result["model"] | {"versions": result["versions"], "date": result["date"]}
    whole = {
        "command": "python -m benchmarks.frontier" + (" --quick" if options.quick else ""),
        "models": whole["models"] | {model["model"]: model},
    }
    path.write_text(json.dumps(whole, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(whole))
    print(f"{model['model']}: {model['wall_seconds']:.0f} s, wrote {path.with_suffix('.md')}", flush=True)


def _child(options: argparse.Namespace) -> int:
    from benchmarks.measure import measure
    from benchmarks.zoo import ZOO

    def say(text: str) -> None:
        print(f"  {options.child}: {text}", file=sys.stderr, flush=True)

    model = measure(ZOO[options.child], "small" if options.quick else "bench", options.repeats, say)
    result = {"versions": _versions(), "date": time.strftime("%Y-%m-%d"), "model": model}
    options.out.write_text(json.dumps(result))
    return 0


def _versions() -> dict[str, Any]:
    import jax

    import recoup

    with contextlib.redirect_stdout(io.StringIO()):
        backend = jax.default_backend()
    return {
        "recoup": recoup.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": backend,
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
