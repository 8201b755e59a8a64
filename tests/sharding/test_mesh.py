"""Sharded steps: a budget is for each device, predictions are too, collectives are not repeated.

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

CASES = ("data", "fsdp", "donated", "optimizer_state", "tensor", "data_and_tensor")


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
    answers: dict[str, dict[str, Any]] = json.loads(result(launch([*CASES, "shard_map"])))
    return answers


def judge(case: dict[str, Any]) -> None:
    assert case["devices"] == 8
    assert case["compiled"] <= case["budget"] < case["plain"] and not case["unchanged"], case
    assert case["predicted"] == pytest.approx(case["compiled"], rel=0.05), case
    assert all(case["shardings"]), "results are sharded as the plain step's"
    assert case["difference"] < 1e-4, case  # of reduced sums


@pytest.mark.parametrize("name", CASES)
def test_eight_devices(found: dict[str, dict[str, Any]], name: str) -> None:
    judge(found[name])
    plain, fitted = found[name]["collectives"]
    assert sum(fitted.values()) <= sum(plain.values()), found[name]


def test_shard_map_comes_back_as_it_is(found: dict[str, dict[str, Any]]) -> None:
    case = found["shard_map"]
    assert case["compiled"] <= case["budget"] and case["difference"] < 1e-4
    assert case["collectives"][0] == case["collectives"][1]


def test_two_processes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    children = [launch(["fsdp"], "--rank", str(rank), "--port", port) for rank in (0, 1)]
    first, _ = [result(child) for child in children]
    judge(json.loads(first.splitlines()[-1])["fsdp"])  # the lines before are the transport's
