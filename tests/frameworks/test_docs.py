"""The documentation: its code runs, its site builds without a warning, every public name has an entry."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/guide/*.md"), *ROOT.glob("docs/frameworks/*.md")])
# These hold fragments, whose names a reader fills in: they are checked to be Python.
FRAGMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line that it begins at."""
    from sybil import Sybil
    from sybil.parsers.markdown import CodeBlockParser

    sybil = Sybil(parsers=[CodeBlockParser("python", lambda example: None)], path=str(page.parent))
    return [(e.line, str(e.parsed)) for e in sybil.parse(page).examples()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("default")  # libraries' own
def test_the_code_of_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if page.parent.name == "frameworks":
        for library in ("flax", "equinox", "haiku", "numpyro", "diffrax"):
            if f"import {library}" in page.read_text() or f"from {library}" in page.read_text():
                pytest.importorskip(library)
    names: dict[str, object] = {"__name__": "page"}
    with jax.numpy_dtype_promotion("standard"):
        for line, code in blocks(page):
            # Padded, so that a traceback shows the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", FRAGMENTS, ids=lambda page: page.stem)
def test_fragments_are_python(page: Path) -> None:
    for line, code in blocks(page):
        compile("\n" * line + code, str(page), "exec")


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("myst_parser") is None:
        pytest.skip("sphinx is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs")]
    found = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert (tmp_path / "guide" / "api.html").exists()
