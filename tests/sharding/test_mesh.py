"""Sharded steps: a budget is for each device, predictions are too, exchanges are repeated as the plan says.

On 8 virtual devices, and on 2 processes of 4 devices each that talk over the loopback address.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

WHOLE = ("data", "fsdp", "donated", "optimizer_state", "tensor", "data_and_tensor")
# `benchmarks.sharding` has more of these
MAPPED = ("map_unchecked", "map_fsdp_outside", "map_tensor", "map_scan", "map_accumulate", "map_twice")
GATHERED = ("constrained@60%", "map_gathered@45%")  # tight: weights are in the way


def launch(cases: Sequence[str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sharding.programs", *cases, *more],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(child: subprocess.Popen[str]) -> str:
    try:
        out, err = child.communicate(timeout=400)
    finally:
        child.kill()
    assert child.returncode == 0, err[-3000:]
    return out


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """All cases, from one child: starting JAX takes longer than a case."""
    answers: dict[str, dict[str, Any]] = json.loads(result(launch([*WHOLE, *MAPPED, *GATHERED])))
    return answers


def judge(case: dict[str, Any]) -> None:
    assert case["devices"] == 8
    assert case["compiled"] <= case["budget"] < case["plain"] and not case["unchanged"], case
    assert case["bound"] <= case["compiled"]
    assert case["predicted"] == pytest.approx(case["compiled"], rel=0.05), case
    assert all(case["shardings"]), "results are sharded as the plain step's"
    assert case["from_one_device"] < 1e-4, case  # of reduced sums
    assert case["from_plain"] < 1e-6, case


def only_gathers_repeat(case: dict[str, Any]) -> None:
    """The compiled program has the plain one's exchanges, and the gathers that the plan says."""
    plain, fitted = case["collectives"]
    expected = {**plain, "all-gather": plain.get("all-gather", 0) + case["gathers"]}
    assert fitted == {kind: count for kind, count in expected.items() if count}, case


@pytest.mark.parametrize("name", WHOLE)
def test_divided_by_the_compiler(found: dict[str, dict[str, Any]], name: str) -> None:
    judge(found[name])
    only_gathers_repeat(found[name])


@pytest.mark.parametrize("name", MAPPED)
def test_divided_by_shard_map(found: dict[str, dict[str, Any]], name: str) -> None:
    """Predicted per device, before anything compiles."""
    judge(found[name])
    only_gathers_repeat(found[name])
    assert found[name]["uncalibrated"] == pytest.approx(found[name]["compiled"], rel=0.05)


@pytest.mark.parametrize("name", GATHERED)
def test_weights_are_gathered_again(found: dict[str, dict[str, Any]], name: str) -> None:
    """Where that is the cheaper way into the budget; the plan says how often, and what it moves."""
    judge(found[name])
    only_gathers_repeat(found[name])
    assert found[name]["gathers"] > 0 and found[name]["gathered_bytes"] > 0
    assert "gathered again" in found[name]["text"]


def test_two_processes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    cases = ["fsdp", "map_gathered_outside@45%"]
    children = [launch(cases, "--rank", str(rank), "--port", port) for rank in (0, 1)]
    first, _ = [result(child) for child in children]
    for case in json.loads(first.splitlines()[-1]).values():  # the lines before are the transport's
        judge(case)
        only_gathers_repeat(case)
