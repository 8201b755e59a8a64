"""Text for a terminal of 80 columns: sizes, tables, headings. Data in, text out; no JAX.

Tables never carry control codes, so they can be piped and stored. Headings are bold only where `styled` says
so: on a terminal, and not where NO_COLOR is set (https://no-color.org).
"""

import os
import re
import unicodedata
from collections.abc import Sequence
from typing import TextIO

WIDTH = 80

_ENDS_MATTER = re.compile(r"/|:\d+$")
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def format_bytes(size_bytes: float) -> str:
    """Bytes as a person reads them, three significant digits or more: "512 B", "1.50 KiB", "474 MiB"."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        # 999.5 rounds to 1000 and still reads well, 1023.5 would read as 1024
        if abs(value) < 1023.5 or unit == "TiB":
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Seconds as a person reads them: "0.8 ms", "45 ms", "1.23 s", "12.3 s", "210 s"."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def format_percent(share: float, signed: bool = False) -> str:
    """A share as a percentage: 0.034 is "3.4 %", with `signed` "+3.4 %"."""
    return f"{share * 100:{'+' if signed else ''}.1f} %"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[int] = (),
    optional: Sequence[int] = (),
    width: int = WIDTH,
    indent: int = 2,
) -> str:
    """Rows in aligned columns, at most `width` columns wide.

    Args:
        headers: One title a column; all empty titles leave the line out. rows: Cells; anything that `str`
        takes. right: Indices of columns aligned right (numbers). optional: Indices of columns that are left
        out where all their cells are empty. width: Columns of the terminal. Where the rows need more, the
        widest left-aligned column is cut with an
            ellipsis: at its front where it looks like a path or a line of a file (what tells them apart is at
            the end), else at its end.
        indent: Spaces before each line.
    """
    cells = [[_clean(str(cell)) for cell in row] for row in rows]
    for row in cells:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells under {len(headers)} headers: {row}")
    shown = [i for i in range(len(headers)) if i not in optional or any(row[i] for row in cells)]
    headers, cells = [headers[i] for i in shown], [[row[i] for i in shown] for row in cells]
    right = [position for position, i in enumerate(shown) if i in right]
    columns = len(headers)
    sizes = [max([_width(h), *(_width(row[i]) for row in cells)]) for i, h in enumerate(headers)]
    excess = indent + sum(sizes) + 2 * (columns - 1) - width
    while excess > 0:
        flexible = [i for i in range(columns) if i not in right and sizes[i] > 8]
        if not flexible:
            break
        widest = max(flexible, key=lambda i: sizes[i])
        # no further than the next widest, so that two long columns shrink together
        others = [sizes[i] for i in flexible if i != widest and sizes[i] < sizes[widest]]
        cut = min(excess, sizes[widest] - max([8, *others])) or 1
        sizes[widest] -= cut
        excess -= cut

    def line(row: Sequence[str]) -> str:
        parts = []
        for i, cell in enumerate(row):
            text = _shorten(cell, sizes[i])
            pad = " " * (sizes[i] - _width(text))
            parts.append(pad + text if i in right else text + pad)
        return (" " * indent + "  ".join(parts)).rstrip()

    lines = [] if not any(headers) else [line(headers)]
    return "\n".join([*lines, *(line(row) for row in cells)])


def listing(title: str, names: Sequence[str], most: int = 20) -> str:
    """A title and names after it, folded into lines of the terminal's width; beyond `most` only counted."""
    words = [_shorten(_clean(name), WIDTH // 2) for name in names[:most]]
    words[:-1] = [f"{word}," for word in words[:-1]]
    if len(names) > most:
        words[-1:] = [f"{words[-1]},", f"and {len(names) - most} more"]
    lines = [f"{title}:"]
    for word in words:
        if _width(lines[-1]) + 1 + _width(word) > WIDTH:
            lines.append(" ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def heading(text: str, styled: bool = False) -> str:
    """A line that begins a section."""
    return f"{_BOLD}{text}{_RESET}" if styled else text


def note(text: str, styled: bool = False) -> str:
    """A line that is less important than its neighbours."""
    return f"{_DIM}{text}{_RESET}" if styled else text


def styled(stream: TextIO) -> bool:
    """Whether control codes belong on `stream`: a terminal, not dumb, and NO_COLOR not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def one_line(text: str) -> str:
    """`text` with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())


def _clean(cell: str) -> str:
    """A cell without control characters, which a name taken from a program could carry."""
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in cell)


def _width(text: str) -> int:
    """Columns that a terminal gives `text`: wide East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _shorten(text: str, size: int) -> str:
    if _width(text) <= size:
        return text
    from_front = _ENDS_MATTER.search(text) is not None
    kept = list(text)
    while kept and _width("".join(kept)) > size - 1:
        kept.pop(0 if from_front else -1)
    return "…" + "".join(kept) if from_front else "".join(kept) + "…"
