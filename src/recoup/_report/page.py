"""A Picture as one HTML file that needs nothing else: style, script and data are inside it. No JAX.

Idea: the page is written once (`page_files`), the data is packed small beside it: words once, numbers in
columns. A script draws it in the browser, so that a step of 10,000 operations stays under a megabyte.
Safety: names come from a program and may hold anything. The data is JSON in which no `<` is left, the
script makes only text nodes of it, and the page's policy allows no script but this one and no network.
"""

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from recoup._report.picture import Picture, Strip

_UNIT = re.compile(r"(\d) (%|B\b|[KMGT]iB)")  # a number stays with its unit
SCRIPTS = ("core.js", "memory.js", "sections.js")


@cache
def _file(name: str) -> str:
    return (files("recoup._report") / "page_files" / name).read_text(encoding="utf-8")


def render(picture: Picture) -> str:
    """The page."""
    script = "\n" + "".join(_file(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(picture.title),
        "headline": _UNIT.sub("\\1&nbsp;\\2", escape(picture.headline)),
        "hash": f"sha256-{digest}",
        "style": "\n" + _file("style.css"),
        "script": script,
        "data": _embedded(packed(picture)),
    }
    page = _file("index.html")
    pieces = page.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _embedded(data: Any) -> str:
    """JSON that can stand inside an element: nothing in it can end the element or begin another."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(picture: Picture) -> dict[str, Any]:
    """What the script reads: each word once, a strip's operations and buffers as rows of indices."""
    words: dict[str, int] = {}
    strips = [_strip(strip, words) for strip in picture.strips]
    return {
        "figures": [vars(figure) for figure in picture.figures],
        "budget": picture.budget_bytes,
        "bound": picture.bound_bytes,
        "boundText": picture.bound,
        "flops": picture.flops,
        "work": picture.work,
        "curveInstrument": picture.curve_instrument,
        "mark": picture.mark,
        "strips": strips,
        "words": list(words),
        "curve": [
            [r.low_bytes, r.estimate_bytes, r.high_bytes, r.overhead, int(r.chosen)] for r in picture.curve
        ],
        "decisions": picture.decisions,
        "residuals": picture.residuals,
        "arenas": picture.arenas,
        "notes": picture.notes,
        "made": picture.made_with,
    }


def _strip(strip: Strip, words: dict[str, int]) -> dict[str, Any]:
    def word(text: str) -> int:
        return words.setdefault(text, len(words))

    ops: list[int] = []
    for op in strip.ops:
        ops += (word(op.name), word(op.source), word(op.phase))
    buffers: list[int] = []
    for b in strip.buffers:
        buffers += (b.bytes, b.first, b.last - b.first)
        buffers += (
            word(b.op),
            word(b.value),
            word(b.source),
            word(b.part),
            word(b.role),
            int(b.inside),
            word(b.region),
        )
    return {
        "title": strip.title,
        "instrument": strip.instrument,
        "fixed": strip.fixed_bytes,
        "low": strip.low_bytes,
        "high": strip.high_bytes,
        "ops": ops,
        "buffers": buffers,
    }
