"""The pytest plugin, by running pytest: what passes, what fails and with which words, what is stored."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

STEP = """
import jax, jax.numpy as jnp
def step(w, x):
    return jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(jnp.sin(x @ w)) ** 2))(w)
def args(rows=512):
    return jnp.ones((64, 64)), jnp.ones((rows, 64))
"""


def run(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_step=STEP + body)
    return pytester.runpytest_inprocess("-p", "no:recoup", "-p", "recoup._pytest_plugin", *options)


def test_a_limit_holds_or_names_who_holds_the_peak(pytester: pytest.Pytester) -> None:
    body = """
def test_fits(assert_peak_below):
    assert 250_000 < assert_peak_below("1MiB", step, *args()) < 1024**2
def test_compiled(assert_peak_below):
    assert assert_peak_below(1024**2, step, *args(), compiled=True) > 250_000
def test_too_big(assert_peak_below):
    assert_peak_below("200KiB", step, *args())
def test_share(assert_peak_below):
    assert_peak_below("60%", step, *args())
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*step needs * by the memory model (predicted, estimate), over 200 KiB*"])
    result.stdout.fnmatch_lines(["*bytes*test_step.py*"])
    result.stdout.fnmatch_lines(["*E-BUDGET-002*a limit is bytes*"])


def test_a_stored_peak_notices_growth_and_shrinking(pytester: pytest.Pytester) -> None:
    body = "def test_peak(peak_unchanged):\n    peak_unchanged('mine', step, *args({rows}))\n"
    result = run(pytester, body.format(rows=512))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no peak of 'mine' is stored*--recoup-update*"])
    run(pytester, body.format(rows=512), "--recoup-update").assert_outcomes(passed=1)
    stored = json.loads(Path(pytester.path, "recoup_peaks.json").read_text())["mine"]
    assert stored["bytes"] > 250_000 and stored["platform"] == "cpu"
    run(pytester, body.format(rows=512)).assert_outcomes(passed=1)
    result = run(pytester, body.format(rows=600))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'mine' grew by *stored*now by the memory model*"])
    result = run(pytester, body.format(rows=400))
    result.stdout.fnmatch_lines(["*'mine' shrank by *keep the gain with pytest --recoup-update*"])


def test_the_plugin_is_an_entry_point_and_imports_no_jax(pytester: pytest.Pytester) -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"recoup": "recoup._pytest_plugin"}
    body = "import sys, recoup._pytest_plugin\nassert 'jax' not in sys.modules\n"
    assert pytester.run(sys.executable, "-c", body).ret == 0
