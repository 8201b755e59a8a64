"""Whole training steps of real libraries, unmodified: certified within each budget, and equal to plain."""

import jax
import pytest

from benchmarks.frameworks import CASES, Case, run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.target)
@pytest.mark.filterwarnings("default")  # libraries' own
def test_step(case: Case) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    with jax.numpy_dtype_promotion("standard"):  # the libraries' own code promotes
        rows = run(case)
    for row in rows:
        assert row.certified, row
        assert row.compiled_bytes < row.plain_bytes or row.share == 100, row
        assert row.ulps < 1024, row  # Adam amplifies rounding of its first gradients; a wrong one gives 10^6
        assert 0.9 < row.predicted_bytes / row.compiled_bytes < 1.25, row
