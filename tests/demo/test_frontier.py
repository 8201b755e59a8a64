"""The frontier benchmark on one small model: what it measures is consistent, and the table says so."""

import json

import pytest

from benchmarks.frontier_table import markdown
from benchmarks.measure import measure
from benchmarks.zoo import ZOO


@pytest.fixture(scope="module")
def model() -> dict:
    found = measure(ZOO["mlp"], "small", repeats=2, say=lambda text: None)
    return json.loads(json.dumps(found))


def test_rows_are_consistent(model: dict) -> None:
    plain, *others = model["variants"]
    assert plain["kind"] == "plain" and plain["equal"] and plain["step_ratio"] == 1
    assert {row["kind"] for row in others} == {"by hand", "recoup"}
    fitted = [row for row in others if row["kind"] == "recoup" and row["feasible"]]
    assert len(fitted) >= 3
    for row in fitted:
        assert row["certified"] and row["total_bytes"] <= row["budget_bytes"]
        assert row["flops"] >= plain["flops"]
        assert row["equal"] or row["ratio_to_float64"] <= 2
    cheapest = min(row["flops"] for row in others if row["kind"] == "by hand")
    assert cheapest >= plain["flops"]


def test_the_table_reads_the_file_alone(model: dict) -> None:
    versions = {"jax": "1.2.3", "python": "3.99", "backend": "cpu", "cores": 2, "recoup": "0"}
    shown = markdown(
        {"command": "some command", "models": {"mlp": model | {"versions": versions, "date": "2026-01-01"}}}
    )
    assert "JAX 1.2.3" in shown and "some command" in shown
    assert shown.count("| by hand:") == sum(row["kind"] == "by hand" for row in model["variants"])
    verdicts = [line for line in shown.splitlines() if " | yes | " in line or " | NO | " in line]
    assert len(verdicts) == 12
    assert "certified where met | yes" in shown


def test_a_broken_promise_is_seen(model: dict) -> None:
    versions = {"jax": "1.2.3", "python": "3.99", "backend": "cpu", "cores": 2, "recoup": "0"}
    broken = json.loads(json.dumps(model)) | {"versions": versions, "date": "2026-01-01"}
    row = next(r for r in broken["variants"] if r["kind"] == "recoup" and r["feasible"])
    row |= {"certified": False, "equal": False, "ratio_to_float64": 3.0, "ulps": 9.0, "worst": "[0]"}
    row["predicted_temporaries_bytes"] = [1, 1, 1]
    shown = markdown({"command": "", "models": {"mlp": broken}})
    assert "certified where met | NO" in shown
    assert "twice as far from float64 | NO" in shown
    assert "fitted steps (each model's worst) within 25 %, median 10 % | NO" in shown
