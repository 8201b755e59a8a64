"""Text for a terminal: sizes read well, tables fit, nothing carries control codes."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup._progress import Progress
from recoup._report import text
from recoup._report.text import _width


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (474 * 2**20, "474 MiB"),
        (2**20 - 1, "1.00 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (4 * 2**30, "4.00 GiB"),
        (5000 * 2**40, "5000 TiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_format_bytes(size_bytes: int, expected: str) -> None:
    assert text.format_bytes(size_bytes) == expected


@given(st.integers(0, 2**50))
def test_formatted_bytes_are_within_half_a_percent(size_bytes: int) -> None:
    number, unit = text.format_bytes(size_bytes).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert abs(float(number) * scale - size_bytes) <= max(0.005 * size_bytes, 0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0008, "0.8 ms"), (0.045, "45 ms"), (1.234, "1.23 s"), (12.34, "12.3 s"), (210.4, "210 s")],
)
def test_format_seconds(seconds: float, expected: str) -> None:
    assert text.format_seconds(seconds) == expected


def test_columns_align() -> None:
    shown = text.table(["what", "bytes"], [["a", "1 KiB"], ["longer", "100 MiB"]], right=[1])
    assert shown == "  what      bytes\n  a         1 KiB\n  longer  100 MiB"


def test_long_cells_are_cut_where_it_hurts_least() -> None:
    path = "a/very/long/path/" * 8 + "model.py:12"
    shown = text.table(["operation", "source", "bytes"], [["tanh " * 30, path, "1 KiB"]], right=[2])
    line = shown.splitlines()[1]
    assert len(line) <= 80
    assert "model.py:12" in line
    assert "1 KiB" in line
    assert line.count("…") == 2


@given(st.lists(st.tuples(st.text(max_size=90), st.text(max_size=200), st.integers(0, 10**9)), max_size=5))
def test_tables_fit_80_columns_whatever_the_names(rows: list[tuple[str, str, int]]) -> None:
    shown = text.table(["name", "source", "n"], rows, right=[2])
    lines = shown.split("\n")
    assert len(lines) == len(rows) + 1
    assert all(_width(line) <= 80 for line in lines)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\x1b]", shown)


def test_a_short_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2 headers"):
        text.table(["a", "b"], [["x"]])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_styles_only_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text.styled(Terminal())
    assert not text.styled(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not text.styled(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not text.styled(Terminal())
    assert text.heading("x", styled=True) != "x" == text.heading("x")


def test_progress_writes_on_a_terminal_only_and_erases_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    piped, terminal = io.StringIO(), Terminal()
    for stream in (piped, terminal):
        with Progress(stream=stream) as progress:
            progress.stage("compiling plain")
            progress.stage("x" * 500)
    assert piped.getvalue() == ""
    shown = terminal.getvalue()
    assert "compiling plain" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")
    assert max(len(part) for part in shown.split("\r\x1b[K")) < 80
