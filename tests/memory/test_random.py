"""Predictions of random programs: never an exception, always an ordered interval; the wide run compiles."""

import statistics

import jax
import pytest
from hypothesis import given, settings

from benchmarks import programs
from recoup._memory import predict

from .programs import compiled


@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs.cases("tiny"))
def test_every_program_gets_an_interval(case: programs.Case) -> None:
    donated = [i in case.donate for i in range(len(case.args))]
    got = predict(case.jaxpr, donated=donated)
    low, mid, high = (m.temporaries_bytes for m in (got.low, got.estimate, got.high))
    assert 0 <= low <= mid <= high
    assert all(isinstance(name, str) for name in got.opaque)
    assert {live.eqn for live in got.peak} <= {-1, *range(len(case.jaxpr.jaxpr.eqns))}


@pytest.mark.slow
def test_most_are_predicted_closely() -> None:
    errors = []
    for seed in range(1000, 1040):
        case = programs.draw(seed, "medium")
        donated = [i in case.donate for i in range(len(case.args))]
        got = predict(case.jaxpr, donated=donated).estimate
        truth = compiled(case.step, *case.args, donate=case.donate)
        assert got.arguments_bytes == truth.argument_size_in_bytes
        assert got.outputs_bytes == truth.output_size_in_bytes
        assert got.aliased_bytes == truth.alias_size_in_bytes
        off = max(0, abs(got.temporaries_bytes - truth.temp_size_in_bytes) - 4096)
        errors.append(off / max(truth.temp_size_in_bytes, 4096))
        jax.clear_caches()
    assert statistics.median(errors) <= 0.03
