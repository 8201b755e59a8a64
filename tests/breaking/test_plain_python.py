"""Without a compiler at installation recoup is plain Python: slower, with the same plans and schedules."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.pure import COMPILED

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, json, sys
if sys.argv[1] == "plain":
    import tests.pure
    sys.modules["cython"] = None  # as where Cython is not installed
import numpy as np
import jax, jax.numpy as jnp
import recoup
from recoup._graph import Graph, Offload
from recoup._solve import check
from tests.pure import COMPILED

names = [importlib.import_module(f"recoup.{name}").__file__ for name in COMPILED]
found = []
for seed in range(4):
    rng = np.random.default_rng(seed)
    n = 40
    edges = [(v - 1, v) for v in range(1, n)] + [(int(rng.integers(0, v)), v) for v in range(1, n)]
    graph = Graph(rng.integers(1, 9, n), rng.integers(1, 9, n), edges)
    low, high = int(graph.working_sets_bytes().max()), check(graph, range(n)).peak_bytes
    offload = Offload(np.full(n, 3.0), np.full(n, 3.0)) if seed == 3 else None
    order = "given" if seed % 2 else "free"
    try:
        made = recoup.solve(graph, (low + high) // 2, moves=3000, seed=seed, order=order, offload=offload)
        found.append([np.asarray(made.order).tolist(), made.cost, made.peak_bytes, made.lower_bound])
    except recoup.BudgetError as error:
        found.append(str(error))

def loss(weights, x):
    for w in weights:
        x = jnp.tanh(jnp.tanh(x @ w) * 2.0)
    return jnp.mean(x * x)

args = [jnp.ones((32, 32))] * 6, jnp.ones((512, 32))
found += [recoup.plan(jax.grad(loss), *args, budget=b).to_dict() for b in ("90%", "75%", "60%")]
print(json.dumps([names, found]))
"""


def test_plain_and_compiled_give_the_same() -> None:
    def run(form: str) -> tuple[list[str], object]:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, form]
        out = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=os.environ)
        assert out.returncode == 0, out.stderr[-2000:]
        names, found = json.loads(out.stdout)
        return names, found

    names, plain = run("plain")
    assert [Path(name).suffix for name in names] == [".py"] * len(COMPILED)
    _, compiled = run("as it is")
    assert plain == compiled
