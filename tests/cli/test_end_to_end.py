"""The command line on a real training step, and the demo from end to end in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recoup._cli import main

STEP = """
import jax
import jax.numpy as jnp

def train_step(params, x):
    def loss_fn(params):
        h = x
        for w in params:
            h = jnp.tanh(jnp.tanh(h @ w) * 2.0)
        return jnp.mean(h * h)
    loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads)], loss

def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

def make():
    return train_step, ([array(64, 64)] * 6, array(1024, 64))

def mismatched():
    return train_step, ([array(64, 65)] * 6, array(1024, 64))
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real_step.py").write_text(STEP)
    return "real_step.py:make"


def test_residuals_and_timeline(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("residuals", "timeline"):
        assert main([command, target]) == 0
        shown = capsys.readouterr().out
        assert "real_step.py" in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert main([command, target, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)


def test_plan_then_fit_the_saved_plan(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", target, "--budget", "60%", "--save", "plan.json", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert 0 < plan["peak_bytes"] <= 0.6 * plan["unplanned_bytes"]
    assert json.loads(Path("plan.json").read_text())["peak_bytes"] == plan["peak_bytes"]
    assert main(["fit", target, "--budget", "60%", "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["memory"]["total_bytes"] <= fitted["plan"]["budget_bytes"]
    assert fitted["memory"]["temporaries_bytes"] > 0


def test_a_budget_that_cannot_be_met(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", target, "--budget", "1KiB"]) == 3
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "[E-BUDGET-001]" in shown and "cannot be met" in shown


def test_a_step_that_does_not_trace(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["residuals", "real_step.py:mismatched"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "[E-STEP-001] TypeError" in shown


def _options(**values: int | str) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def test_the_demo_in_small(tmp_path: Path) -> None:
    pytest.importorskip("optax")
    sizes = [
        "--layers",
        "2",
        "--width",
        "32",
        "--heads",
        "2",
        "--tokens",
        "64",
        "--batch",
        "16",
        "--steps",
        "2",
        "--budget",
        "60%",
    ]
    out = tmp_path / "demo.json"
    command = [sys.executable, "-m", "recoup._cli", "demo", *sizes, "--json", "--output", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    result = json.loads(out.read_text())
    memory = {kind: result[kind]["ready"]["memory"]["total_bytes"] for kind in ("plain", "fitted")}
    assert memory["fitted"] <= 0.6 * memory["plain"]
    for row in result["steps"]:
        assert row["fitted_loss"] == pytest.approx(row["plain_loss"], rel=1e-6)
    assert result["fitted"]["residuals"]["total_bytes"] > 2**20
    assert result["plain"]["peak"]["peak_bytes"] > 0


def test_the_demo_says_when_the_budget_is_too_small() -> None:
    pytest.importorskip("optax")
    sizes = [
        "--layers",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
        "--tokens",
        "16",
        "--batch",
        "4",
        "--steps",
        "1",
        "--budget",
        "1KiB",
    ]
    command = [sys.executable, "-m", "recoup._cli", "demo", *sizes]
    ended = subprocess.run(command, capture_output=True, timeout=300, check=False, text=True)
    assert ended.returncode == 3
    assert ended.stderr.startswith("recoup: [E-BUDGET-001]") and ended.stderr.count("\n") == 1


def test_frontier_largest_and_solve(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier", target, "--points", "5", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert 2 <= len(points) <= 5
    assert points[0]["peak_bytes"] > points[-1]["peak_bytes"]
    with Path("real_step.py").open("a") as file:
        file.write("\ndef sized(n):\n    return train_step, ([array(64, 64)] * 3, array(n, 64))\n")
    arguments = ["largest", "real_step.py:sized", "--budget", "512KiB", "--multiple-of", "64", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total_bytes"] <= 2**19
    assert found["smallest_refused"] == found["size"] + 64
    graph = {"costs": [1, 1, 1, 1], "sizes": [3, 4, 4, 1], "edges": [[0, 1], [1, 2], [0, 3], [2, 3]]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    assert main(["solve", "graph.json", "--budget", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["order"] == [0, 1, 2, 0, 3]
    assert main(["solve", "graph.json", "--budget", "7"]) == 3
