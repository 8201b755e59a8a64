"""Results in a notebook: what they print, its columns kept aligned, under a small picture of memory. No
JAX."""

import itertools
from html import escape

from recoup._report.picture import ROLES, Strip

# Hues that colour-blind people tell apart, readable on light and on dark pages.
COLOURS = {
    "fixed": "#9aa0a6", "kept": "#2a7fb8", "recomputed": "#e69f00", "forward": "#6fbfec",
    "backward": "#12a37c", "other": "#cc79a7",
}  # fmt: skip
_WIDTH, _HEIGHT = 640, 120


def render(value: object) -> str:
    """The text that `value` prints."""
    return f'<pre style="line-height:1.25;white-space:pre;overflow-x:auto">{escape(str(value))}</pre>'


def spark(strip: Strip, *, most_bytes: int = 0) -> str:
    """Memory over the order as a small picture: fixed bytes, then each role on top of the last."""
    count = len(strip.ops)
    if not count:
        return ""
    layers = {role: [0] * (count + 1) for role in ROLES}
    for b in strip.buffers:
        layers[b.role][b.first] += b.bytes
        layers[b.role][b.last + 1] -= b.bytes
    totals = strip.totals()
    most = max(most_bytes, *totals, 1)
    # each column of pixels shows the fullest of its positions
    columns = min(count, _WIDTH)
    edges = [x * count // columns for x in range(columns + 1)]
    pick = [max(range(a, b), key=totals.__getitem__) for a, b in itertools.pairwise(edges)]
    low = [0] * columns
    paths = [_band(low, high := [strip.fixed_bytes] * columns, most, "fixed")]
    for role in ROLES:
        changes = layers[role]
        for i in range(1, count):
            changes[i] += changes[i - 1]
        if any(changes[i] for i in pick):
            low, high = high, [under + changes[i] for under, i in zip(high, pick, strict=True)]
            paths.append(_band(low, high, most, role))
    title = escape(f"{strip.title}, memory over the order of operations")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'style="max-width:100%" xmlns="http://www.w3.org/2000/svg"><title>{title}</title>'
        f"{''.join(paths)}</svg>"
    )


def _band(low: list[int], high: list[int], most: int, role: str) -> str:
    wide = _WIDTH / len(high)

    def y(size: int) -> str:
        return f"{_HEIGHT * (1 - size / most):.1f}"

    ahead = " ".join(f"{x * wide:.1f},{y(v)} {(x + 1) * wide:.1f},{y(v)}" for x, v in enumerate(high))
    back = " ".join(
        f"{(x + 1) * wide:.1f},{y(low[x])} {x * wide:.1f},{y(low[x])}" for x in reversed(range(len(low)))
    )
    return f'<polygon fill="{COLOURS[role]}" points="{ahead} {back}"/>'
