"""Line and branch coverage of what plans and rewrites, as a table: `python -m benchmarks.covered DATA.json`.

DATA.json is what `coverage json` writes; `make coverage` makes it. Lists the lines and branches not reached.
"""

import argparse
import json
from pathlib import Path

PARTS = {
    "solve": ("_graph", "_solve/", "_frontier", "_bound"),
    "plan": ("_plan", "_plan_file", "_planner/", "_ladder", "_program", "_tables", "_budget"),
    "rewrite": (
        *("_rewrite", "_inline", "_verify", "_trace", "_shards"),
        *("_loop_pairs", "_loop_bodies", "_segments"),
    ),
    "memory": ("_memory/",),
    "checkpoint": ("_checkpoint", "_barrier", "_regions/", "policies"),
    "loops": ("_loops/",),
}


def part(file: str) -> str | None:
    """Which part a source file belongs to, or None."""
    inside = file.partition("recoup/")[2].removesuffix(".py")
    for name, of in PARTS.items():
        if inside in of or any(inside.startswith(one) for one in of if one.endswith("/")):
            return name
    return None


def table(data: dict[str, object]) -> str:
    """A row for each part, then what is not reached, file by file."""
    files = {file: entry for file, entry in data["files"].items() if part(file)}
    lines = [
        "| part | files | lines | covered | branches | covered | both |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [*PARTS, "all"]:
        mine = [e["summary"] for f, e in files.items() if name in (part(f), "all")]
        if not mine:
            continue  # measured apart
        stated, ran, forks, taken = (
            sum(s[key] for s in mine)
            for key in ("num_statements", "covered_lines", "num_branches", "covered_branches")
        )
        lines.append(
            f"| {name} | {len(mine)} | {stated} | {ran / stated:.1%} | {forks} | {taken / forks:.1%} "
            f"| {(ran + taken) / (stated + forks):.1%} |"
        )
    lines += ["", "Not reached:", ""]
    for file, entry in sorted(files.items()):
        branches = [f"{a}→{'end' if b < 0 else b}" for a, b in entry["missing_branches"]]
        rows = [f"lines {', '.join(map(str, entry['missing_lines']))}"] * bool(entry["missing_lines"])
        rows += [f"branches {', '.join(branches)}"] * bool(branches)
        if rows:
            lines.append(f"- `{file.partition('recoup/')[2]}`: {'; '.join(rows)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.covered", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("data", type=Path)
    print(table(json.loads(parser.parse_args().data.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
