"""Sharded steps, fitted, and what came of it as JSON: run in a child process, which alone sets its devices.

python -m tests.sharding.programs CASE[@BUDGET]...                  # on 8 virtual devices
python -m tests.sharding.programs CASE[@BUDGET]... --rank R --port P   # as one of two, with 4 devices each
"""

import argparse
import json
import os
import re
import sys
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    processes = 1 if options.rank is None else 2
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // processes}"
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{options.port}", processes, options.rank)
    found = {case: _run(*case.partition("@")[::2]) for case in options.cases}
    if not options.rank:
        json.dump(found, sys.stdout)


def _run(case: str, budget: str) -> dict[str, Any]:
    import jax
    import numpy as np

    import recoup
    from tests.sharding import steps

    step, args, how = steps.make(case)
    fitted = recoup.fit(step, *args, budget=budget or "75%", **how)
    plain = jax.jit(step, **how).lower(*args).compile(compiler_options=_options())
    chosen = fitted.plan.evidence.step
    found: dict[str, Any] = {
        "devices": jax.device_count(),
        "compiled": fitted.memory.total_bytes,
        "predicted": fitted.plan.peak_bytes,
        "uncalibrated": chosen.prediction.estimate.total_bytes,
        "bound": fitted.plan.lower_bound_bytes,
        "budget": fitted.plan.budget_bytes,
        "plain": fitted.unplanned_memory.total_bytes,
        "unchanged": fitted.plan.changes_nothing,
        "overhead": fitted.plan.overhead,
        "gathers": fitted.plan.gathers,
        "gathered_bytes": fitted.plan.gathered_bytes,
        "text": str(fitted.plan),
        "collectives": [collectives(plain.as_text()), collectives(fitted.compiled.as_text())],
    }
    copies = jax.tree.map(lambda x: x + 0, args) if how.get("donate_argnums") else args
    a, b = plain(*copies), fitted(*args)
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    found["shardings"] = [x.sharding.is_equivalent_to(y.sharding, x.ndim) for x, y in pairs]
    alone = steps.one_device(case)
    to_plain, to_one = [], []
    for (x, y), z in zip(pairs, jax.tree.leaves(alone), strict=True):
        for shard, other in zip(x.addressable_shards, y.addressable_shards, strict=True):
            want = np.asarray(z)[other.index]
            scale = max(float(np.abs(np.asarray(z)).max()), 1e-30)
            to_plain.append(float(np.abs(np.asarray(shard.data) - np.asarray(other.data)).max()) / scale)
            to_one.append(float(np.abs(np.asarray(other.data) - want).max()) / scale)
    found["from_plain"], found["from_one_device"] = max(to_plain), max(to_one)
    return found


def _options() -> dict[str, str]:
    from recoup import _barrier, _compat

    return dict(_barrier.FENCE_OPTIONS) if _compat.BARRIERS_NEED_OPTION else {}


def collectives(text: str) -> dict[str, int]:
    """How many of each collective a compiled program has."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    return {k: n for k in kinds if (n := len(re.findall(rf" {k}(?:-start)?\(", text)))}


if __name__ == "__main__":
    main()
