"""Draws the demo's output as an SVG, `docs/demo.svg`: runs `recoup demo` and sets its lines in one font.

    python docs/picture.py [FILE]    with a FILE, draws that text instead of running the demo

The file needs nothing from a network, and follows the reader's light or dark scheme.
"""

import subprocess
import sys
from html import escape
from pathlib import Path

COLUMN, LINE, MARGIN = 8.43, 19, 16

STYLE = """
  .screen { fill: #f6f8fa; stroke: #d0d7de } text { fill: #24292f } .head { font-weight: bold; fill: #0550ae }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
  @media (prefers-color-scheme: dark) {
    .screen { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 } .head { fill: #79c0ff }
  }
"""


def draw(text: str) -> str:
    """The SVG of a screen of text. Lines that begin in the first column are headings."""
    lines = text.rstrip("\n").split("\n")
    columns = max(80, *map(len, lines))
    width, height = columns * COLUMN + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{escape(lines[0])}</title><style>{STYLE}</style>",
        f'<rect class="screen" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="6"/>',
    ]
    for i, line in enumerate(lines):
        if line.strip():
            # textLength keeps columns aligned whatever font the reader has
            size = f'textLength="{len(line) * COLUMN:.1f}" lengthAdjust="spacingAndGlyphs"'
            kind = "" if line[0] == " " else ' class="head"'
            y = MARGIN + (i + 0.75) * LINE
            parts.append(
                f'<text{kind} x="{MARGIN}" y="{y:.0f}" xml:space="preserve" {size}>{escape(line)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    if len(sys.argv) > 1:
        text = Path(sys.argv[1]).read_text(encoding="utf-8")
    else:
        command = [sys.executable, "-m", "recoup._cli", "demo"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    path = Path(__file__).parent / "demo.svg"
    path.write_text(draw(text), encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
