"""Another version of JAX: a warning outside the tested range, one error where a private name has moved."""

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from recoup import _compat, _versions
from recoup.errors import VersionError, VersionWarning

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.12.0.1", (0, 12, 0)), ("0.10.2", (0, 10, 2)), ("0.13.0rc1", (0, 13, 0)), ("0.11.dev3", (0, 11))],
)
def test_versions_are_read(version: str, expected: tuple[int, ...]) -> None:
    assert _versions.numbers(version) == expected


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.12.0.1", "0.12.3"])
def test_tested_versions_are_silent(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _versions.check_version(version)


@pytest.mark.parametrize("version", ["0.9.1", "0.10.1", "0.13.0", "1.0"])
def test_other_versions_warn_with_the_range(version: str) -> None:
    with pytest.warns(VersionWarning, match=rf"JAX 0\.10\.2 to 0\.12; this is JAX {version}.*pip install"):
        _versions.check_version(version)


def test_a_name_that_is_gone_is_one_error_with_the_range() -> None:
    module = SimpleNamespace(__name__="jax._src.ad", here=1)
    _versions.check_names("0.99", [(module, "here")])
    with pytest.raises(
        VersionError, match=r"E-JAX-001.*0\.10\.2 to 0\.12.*0\.99.*jax\._src\.ad has no 'gone'"
    ):
        _versions.check_names("0.99", [(module, "gone")])
    assert issubclass(VersionError, ImportError)


MOVED = """
import sys, jax
from jax._src.state import discharge
from jax._src.state import types
{change}
try:
    import recoup._compat
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "change",
    [
        "del discharge.discharge_state",  # read later, in a function
        "del types.AccumEffect",  # imported
    ],
)
def test_recoup_itself_says_so_at_import(change: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", MOVED.format(change=change)], capture_output=True, text=True, timeout=120
    )
    assert found.stdout.startswith("VersionError [E-JAX-001] recoup works with JAX 0.10.2 to 0.12"), found


def test_every_private_name_is_looked_for() -> None:
    """What `_compat` reads from private modules is in its list, so that nothing fails after import."""
    text = (ROOT / "src/recoup/_compat.py").read_text(encoding="utf-8")
    listed = {
        name
        for part in re.findall(r'^    \(\w+, "([\w ]+)"\),$', text, re.MULTILINE)
        for name in part.split()
    }
    modules = ("core_internal", "ad_internal", "batching", "mlir_internal", "partial_eval", "state_discharge")
    pattern = rf"\b(?:{'|'.join((*modules, 'source_info_util', 'lu'))})\.([A-Za-z_]\w*)"
    read = set(re.findall(pattern, text))
    elsewhere = {n for n in read - listed if f"hasattr({n}" in text or f'"{n}"' in text}
    assert read - listed - elsewhere == set()


def test_the_range_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "jax>=0.10.2" in project["dependencies"]
    assert _compat.JAX_VERSION >= _versions.OLDEST
