"""Whole training steps of real libraries, unmodified: certified within each budget, and equal to plain.

One of each library always; all of them, `python -m benchmarks.frameworks`'s table, in the wide suite.
"""

import jax
import pytest

from benchmarks.frameworks import CASES, Case, run

ALWAYS = frozenset(
    [
        "nnx_steps:make",
        "linen_steps:make_scan",
        "equinox_steps:make_stateful",
        "haiku_steps:make",
        "optax_steps:make_mixed_precision",
        "inference_steps:make_log_density",
        "diffrax_steps:make_recursive",
        "shapes_of_training:make_physics",
        "shapes_of_training:make_attention",
    ]
)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c.target in ALWAYS else pytest.mark.slow, id=c.target) for c in CASES],
)
@pytest.mark.filterwarnings("default")  # libraries' own
def test_step(case: Case) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    with jax.numpy_dtype_promotion("standard"):  # the libraries' own code promotes
        rows = run(case)
    for row in rows:
        assert row.certified, row
        assert row.compiled_bytes < row.plain_bytes or row.share == 100, row
        # Adam amplifies rounding of its first gradients, by 10^7 where they are zero but for rounding.
        assert row.agrees, row
        assert 0.85 < row.predicted_bytes / row.compiled_bytes < 1.25, row


def test_every_case_that_always_runs_exists() -> None:
    assert {case.target for case in CASES} >= ALWAYS
