"""Interrupted, concurrent and repeated work: nothing is left behind, and the next call works."""

import ctypes
import errno
import gc
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
from recoup import _calibrate, _plan_file
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


def resident_kib() -> int:
    """What the process holds now, garbage collected and freed memory handed back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


@needs_proc
def test_calls_do_not_grow_the_process() -> None:
    found = recoup.fit(grads, WEIGHTS, X, budget="80%")
    for _ in range(50):
        jax.block_until_ready(found(WEIGHTS, X))
    before = resident_kib()
    for _ in range(500):
        jax.block_until_ready(found(WEIGHTS, X))
    assert resident_kib() - before < 8 * 1024


FITS = """
import sys
import jax, jax.numpy as jnp
import recoup
from tests.breaking.test_resources import resident_kib

fits, calls = map(int, sys.argv[1:])
weights, x = [jnp.ones((16, 16))] * 3, jnp.ones((256, 16))
quick = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}

def one(i):
    def step(weights, x):
        h = x
        for w in weights:
            h = jnp.tanh(jnp.tanh(h @ w) * (1.0 + i))
        return jnp.mean(h * h)
    budget = ("90%", "100%", "100%")[i % 3]
    found = recoup.fit(jax.grad(step), weights, x, budget=budget, compiler_options=quick)
    for _ in range(calls // fits):
        jax.block_until_ready(found(weights, x))

for i in range(fits):
    one(i)
    if (i + 1) % (fits // 4) == 0:
        jax.clear_caches()  # JAX's own, of the step as it is
        print(resident_kib(), flush=True)
"""


def grown_kib(fits: int, calls: int) -> list[int]:
    """What a process holds after each quarter of many fits, each of another step, and calls."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FITS, str(fits), str(calls)],
        capture_output=True, text=True, timeout=3000, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return [int(line) for line in run.stdout.split()]


@needs_proc
def test_fits_do_not_grow_the_process() -> None:
    _, *later, last = grown_kib(24, 240)
    assert last - min(later) < 12 * 1024, later


@needs_proc
@pytest.mark.slow
def test_a_thousand_fits_and_ten_thousand_calls() -> None:
    held = grown_kib(1000, 10_000)
    assert held[-1] - held[0] < 16 * 1024, held


def test_a_step_that_is_not_what_it_was_at_the_first_call() -> None:
    found = recoup.fit(grads, WEIGHTS, X, budget="80%")
    with pytest.raises(recoup.errors.SignatureError):
        found(WEIGHTS, jnp.zeros((3, 32)))
    assert recoup.check(grads, found, WEIGHTS, X)


# -- files that processes share ---------------------------------------------------------------------------


def test_a_calibration_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured, a warning says that it cannot be kept, and nothing is left or lost."""
    roofline = _calibrate.Roofline("slow", "0", 1e9, 5e8, 1e9, 1e10, 1e8, 1e8, 1e9)
    monkeypatch.setattr(recoup.config, "_cache_dir", tmp_path)
    monkeypatch.setattr(_calibrate, "_measure", lambda device: roofline)
    recoup.calibrate()
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(_calibrate.CacheWarning, match="No space left"):
            assert recoup.calibrate(force=True) == roofline
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]

    def unreadable(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(Path, "read_text", unreadable)  # tests may run as root, whom no mode stops
    with pytest.warns(_calibrate.CacheWarning, match="measured again"):
        assert recoup.calibrate() == roofline


def test_interrupted_while_writing_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    interrupt_during(os, "replace", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        _plan_file.write(path, "new", force=True)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "old")]


CACHED = """
import warnings
import jax, jax.numpy as jnp
import numpy as np
import recoup

def loss(weights, x):
    for w in weights:
        x = jnp.tanh(jnp.tanh(x @ w) * 2.0)
    return jnp.mean(x * x)

args = [jnp.full((32, 32), 0.05)] * 5, jnp.ones((512, 32))
step = jax.grad(loss)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX says so where an entry cannot be read
    found = recoup.fit(step, *args, budget="80%")
    assert found.memory.total_bytes <= found.plan.budget_bytes and not found.plan.changes_nothing
    assert recoup.check(step, found, *args)
print(found.memory.total_bytes, found.plan.fingerprint)
"""


def test_processes_share_a_compilation_cache_with_damaged_entries(tmp_path: Path) -> None:
    """A fit from the cache has the same certificate; a truncated or emptied entry is compiled again."""
    env = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }

    def run(processes: int) -> list[str]:
        command = [sys.executable, "-c", CACHED]
        started = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        found = []
        for process in started:
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, err[-2000:]
            found.append(out)
        return found

    first, second = run(2)  # both write it at once
    assert first == second
    entries = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 100]
    assert len(entries) > 3
    for i, entry in enumerate(entries):
        entry.write_bytes(entry.read_bytes()[: (0, 40, -40)[i % 3]])
    assert run(1) == [first]
