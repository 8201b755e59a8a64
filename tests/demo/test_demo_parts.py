"""The demo's parts: its text, its model, its peak reading, its protocol and its screen."""

import io
import sys
from typing import Any

import jax
import numpy as np
import pytest

from recoup._demo.session import Worker, WorkerError
from recoup._demo.settings import Settings
from recoup._demo.show import Screen, shortened
from recoup._demo.text import load_text
from recoup._instruments.peak import PeakWatch
from recoup._progress import Progress
from recoup.errors import BudgetError

TINY = Settings(layers=2, width=32, heads=2, tokens=16, batch=4, steps=2)


def test_the_text_is_real_and_batches_repeat() -> None:
    text = load_text()
    assert len(text.codes) > 100_000
    words = "".join(text.alphabet[code] for code in text.codes)
    assert "assert" in words and "lambda" in words
    one, two = (text.batch(3, 4, 16, seed=0) for _ in range(2))
    assert all(np.array_equal(one[k], two[k]) for k in one)
    assert np.array_equal(one["tokens"][:, 1:], one["targets"][:, :-1])
    assert not np.array_equal(one["tokens"], text.batch(4, 4, 16, seed=0)["tokens"])
    assert not np.array_equal(one["tokens"], text.batch(3, 4, 16, seed=1)["tokens"])


def test_the_model_learns() -> None:
    pytest.importorskip("optax")
    from recoup._demo.model import make_step

    text = load_text()
    step, params, opt_state = make_step(TINY, len(text.alphabet))
    run = jax.jit(step)
    losses = []
    # Optax mixes integers and floats by itself
    with jax.numpy_dtype_promotion("standard"):
        for i in range(30):
            params, opt_state, loss = run(params, opt_state, text.batch(i, 4, 16, 0))
            losses.append(float(loss))
    assert losses[0] > 4
    assert np.mean(losses[-5:]) < 0.85 * losses[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the mark can only be reset on Linux")
def test_the_peak_is_what_was_held_at_once() -> None:
    np.ones(12 * 2**20).sum()  # 96 MiB before the watch must not count
    watch = PeakWatch()
    for _ in range(3):
        np.ones(6 * 2**20).sum()  # 48 MiB, three times, never at once
    peak = watch.read()
    assert 44 * 2**20 < peak.peak_bytes - peak.before_bytes < 70 * 2**20


class Scripted(Worker):
    """A worker whose process says what a test wants."""

    def __init__(self, program: str) -> None:
        import subprocess
        import tempfile

        self.kind = "scripted"
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )


def test_a_worker_answers() -> None:
    with Scripted("import json; print(json.dumps({'event': 'step', 'got': input()}))") as worker:
        assert worker.ask("7", "step") == {"event": "step", "got": "7"}


def test_a_workers_error_is_ours_again() -> None:
    program = 'print(\'{"event": "error", "code": "E-BUDGET-001", "message": "too small"}\')'
    with Scripted(program) as worker, pytest.raises(BudgetError, match="too small"):
        list(worker.until("ready"))


def test_a_worker_that_dies_says_why() -> None:
    with Scripted("raise MemoryError('no room')") as worker, pytest.raises(WorkerError, match="no room"):
        list(worker.until("ready"))
    with Scripted("pass") as worker, pytest.raises(WorkerError, match="said nothing"):
        worker.ask("0", "step")


def _finished() -> dict[str, Any]:
    memory = {"total_bytes": 200 * 2**20, "temporaries_bytes": 180 * 2**20, "instrument": "compiled"}
    peak = {"before_bytes": 2**28, "peak_bytes": 2**29, "instrument": "resident peak while running (VmHWM)"}
    half = {"ready": {"memory": memory, "seconds": 3.0}, "peak": peak, "median_step_seconds": 0.4}
    return {
        "plain": half,
        "fitted": half | {"plan": {"planned_bytes": 2**27, "unplanned_bytes": 2**28}},
        "steps": [
            {"plain_loss": 4.6, "fitted_loss": 4.6},
            {"plain_loss": 4.6, "fitted_loss": 4.600001},
        ],
        "equal_losses": 1,
    }


def test_the_screen_fits_80_columns_and_says_what_differs() -> None:
    out = io.StringIO()
    screen = Screen(Settings(steps=2), out, Progress(enabled=False))
    memory = _finished()["plain"]["ready"]["memory"]
    start = {
        "event": "start",
        "jax": "0.12.0.1",
        "characters": 510742,
        "different": 104,
        "parameters": 1_200_000,
    }
    screen.say({**start, "kind": "fitted"})
    screen.say({**start, "kind": "plain"})
    screen.say({"event": "residuals", "text": "\n".join(f"  residual {i}" for i in range(50))})
    screen.say({"event": "plan", "text": "  the plan"})
    screen.say({"event": "ready", "kind": "fitted", "memory": memory, "seconds": 12.0})
    screen.say({"event": "ready", "kind": "plain", "memory": memory, "seconds": 3.0})
    row = {"event": "step", "plain_loss": 4.6, "plain_seconds": 0.41, "fitted_seconds": 0.44}
    screen.say({**row, "step": 0, "fitted_loss": 4.6, "equal": True})
    screen.say({**row, "step": 1, "fitted_loss": 4.600001, "equal": False})
    screen.finish(_finished())
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "same bits" in shown and "+1.0e-06" in shown
    assert shown.count("510,742 characters") == 1
    assert "41 more lines" in shown
    assert "256 MiB" in shown
    assert "1 of 2 losses equal to the bit, the others within 2 units" in shown


def test_shortened() -> None:
    assert shortened("a\nb", 2) == "a\nb"
    assert shortened("a\nb\nc\nd", 2).splitlines() == ["a", "  … 3 more lines (--json has everything)"]
