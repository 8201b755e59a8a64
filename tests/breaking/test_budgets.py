"""Budgets swept on whole models, dropout among them: peaks never rise, costs never fall, results agree."""

import pytest

from benchmarks.budgets import Point, faults, sweep
from benchmarks.zoo import ZOO


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_twenty_budgets(name: str) -> None:
    points = sweep(name, "small", 20)
    assert not faults(points) and len(points) > 2


def test_a_small_sweep() -> None:
    points = sweep("mlp", "small", 4)
    assert not faults(points) and points[0].total_bytes


def test_faults_are_named() -> None:
    good = [Point(100, 90, 0.0, 0.0, 0.0, 1, True), Point(80, 75, 3.0, 0.1, 0.0, 1, True)]
    assert not faults(good)
    bad = [
        Point(100, 90, 4.0, 0.2, 0.0, 1, True),
        Point(80, 95, 3.0, 0.1, 9e9, 1, False),
        Point(60, 0, 0.0, 0.0, 0.0, 0, True),
    ]
    assert [text.split()[0] for text in faults(bad)] == ["95", "results", "the", "the"]
