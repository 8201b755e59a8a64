"""One plan for all tests of reports."""

import pytest

import recoup
from tests.report.samples import mlp_args, mlp_step


@pytest.fixture(scope="package")
def plan():
    return recoup.plan(mlp_step, *mlp_args(), budget="60%")
