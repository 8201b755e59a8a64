"""Interrupted, concurrent and repeated work: nothing is left behind, and the next call works."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup._graph import Graph
from recoup._solve import check

from .test_cases import WEIGHTS, X, chain, grads


def interrupt_during(module: Any, name: str, monkeypatch: pytest.MonkeyPatch, after: int = 1) -> None:
    """Ctrl-C at the n-th call of a function."""
    honest, calls = getattr(module, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == after:
            raise KeyboardInterrupt
        return honest(*args, **kwargs)

    monkeypatch.setattr(module, name, wrapped)


STAGES = [
    ("recoup._fit", "trace_step", 1),
    ("recoup._ladder", "layout", 1),
    ("recoup._memory", "predict", 2),
    ("recoup._ladder", "rewrite", 1),
    ("recoup._compiling", "to_function", 1),
    ("jax.stages.Lowered", "compile", 1),
]


@pytest.mark.parametrize(("place", "name", "after"), STAGES, ids=[f"{p}.{n}" for p, n, _ in STAGES])
def test_interrupted_anywhere_the_next_fit_works(
    place: str, name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    module = jax.stages.Lowered if place.startswith("jax.stages") else importlib.import_module(place)
    threads = threading.active_count()
    scratch = set(os.listdir(tempfile.gettempdir()))
    with monkeypatch.context() as patch:
        interrupt_during(module, name, patch, after)
        with pytest.raises(KeyboardInterrupt):
            recoup.fit(grads, WEIGHTS, X, budget="80%")
    assert threading.active_count() <= threads
    left = {n for n in os.listdir(tempfile.gettempdir()) if n not in scratch and "recoup" in n}
    assert not left
    found = recoup.fit(grads, WEIGHTS, X, budget="80%")
    assert recoup.check(grads, found, WEIGHTS, X)


def test_a_real_signal_during_a_long_solve_ends_it_at_once() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    edges = [(int(rng.integers(max(0, v - 200), v)), v) for v in range(1, n) for _ in range(3)]
    graph = Graph(np.ones(n), rng.integers(1, 100, n), edges)
    budget = int(0.6 * check(graph, range(n)).peak_bytes)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()
    try:
        with pytest.raises((KeyboardInterrupt, recoup.BudgetError)):
            recoup.solve(graph, budget, time_limit=60.0)
            raise recoup.BudgetError("the solver was faster than the signal")
    finally:
        timer.cancel()
    assert time.perf_counter() - start < 20
    again = recoup.solve(Graph([1, 1, 1], [1, 1, 1], [(0, 1), (1, 2)]), 2)
    assert again.cost == 3


def test_a_time_limit_ends_a_solve() -> None:
    rng = np.random.default_rng(1)
    n = 2000
    edges = [(int(rng.integers(0, v)), v) for v in range(1, n) for _ in range(3)]
    graph = Graph(np.ones(n), rng.integers(1, 100, n), edges)
    start = time.perf_counter()
    found = recoup.solve(graph, check(graph, range(n)).peak_bytes, time_limit=0.5)
    assert time.perf_counter() - start < 10 and found.cost >= n


INTERRUPTED = """
import sys, threading, os, signal, time
from tests.breaking.test_cases import WEIGHTS, X, grads
import recoup
sys.argv = ["recoup"]
threading.Timer(float(sys.stdin.readline()), lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        recoup.fit(grads, WEIGHTS, X, budget="80%")
except KeyboardInterrupt:
    pass
found = recoup.fit(grads, WEIGHTS, X, budget="80%")
assert recoup.check(grads, found, WEIGHTS, X)
print("fine", threading.active_count())
"""


def test_ctrl_c_at_any_moment() -> None:
    """Real signals at moments spread over a fit; the same process then fits again."""
    for moment in (0.3, 1.1):
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", INTERRUPTED],
            input=f"{moment}\n", capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert found.returncode == 0 and found.stdout == "fine 1\n", found.stderr[-2000:]


def test_fits_in_threads_do_not_disturb_each_other() -> None:
    def one(i: int) -> Any:
        step = jax.value_and_grad(lambda w, x: chain(w, x) * (1.0 + i))
        found = recoup.fit(step, WEIGHTS, X, budget=("80%", "90%", "100%")[i % 3])
        assert found.memory.total_bytes <= found.plan.budget_bytes
        return found(WEIGHTS, X)[0]

    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(one, range(6)))
    for i, value in enumerate(values):
        assert float(value) == pytest.approx(float(jax.jit(chain)(WEIGHTS, X)) * (1.0 + i), rel=1e-6)


def test_one_decorated_step_called_from_threads() -> None:
    step = recoup.jit(grads, budget="80%", quiet=True)
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda _: float(step(WEIGHTS, X)[0]), range(8)))
    assert len(set(values)) == 1 and len(step.fitted) == 1  # type: ignore[attr-defined]


def test_calls_do_not_grow_the_process() -> None:
    import resource

    found = recoup.fit(grads, WEIGHTS, X, budget="80%")
    for _ in range(50):
        jax.block_until_ready(found(WEIGHTS, X))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):
        jax.block_until_ready(found(WEIGHTS, X))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024  # KiB


def test_a_step_that_is_not_what_it_was_at_the_first_call() -> None:
    found = recoup.fit(grads, WEIGHTS, X, budget="80%")
    with pytest.raises(recoup.errors.SignatureError):
        found(WEIGHTS, jnp.zeros((3, 32)))
    assert recoup.check(grads, found, WEIGHTS, X)
