"""The page of what random programs found: `python -m benchmarks.fuzz --table LOG ...`."""

import collections
from collections.abc import Sequence
from typing import Any

_AMPLIFIED = (
    '"Rounding amplified": the compiled programs differ by more than plain does when nothing is fused, and',
    "evaluated one operation at a time both give the same bits: a comparison, a floor or a narrow type that",
    "rounding tips over.",
)


def markdown(logs: Sequence[dict[str, Any]]) -> str:
    """The page of some runs."""
    lines = [
        "# Random programs through recoup", "",
        "Made by `python -m benchmarks.fuzz` (its first lines say what is done with each program).", "",
        "| JAX | size | seeds | programs | budgets | rungs executed | seconds | slowest | failures |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    primitives: collections.Counter[str] = collections.Counter()
    for log in logs:
        seeds = f"{min(log['seeds'])}–{max(log['seeds'])}" if log["seeds"] else ""
        size = log["size"] + ", float64" * log.get("double", False)
        cells = (
            *(log["jax"], size, seeds, log["programs"], 3 * log["programs"], log["rungs"]),
            *(f"{log['seconds']:.0f}", f"{log['slowest_seconds']:.0f}", len(log["failures"])),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
        outcomes[log["jax"]].update(log["outcomes"])
        primitives.update(log["primitives"])
    versions = sorted(outcomes)
    names = sorted({name for counts in outcomes.values() for name in counts})
    lines += ["", "## Outcomes of budgets", "", f"| outcome | {' | '.join(versions)} |"]
    lines.append("|---" * (len(versions) + 1) + "|")
    for name in names:
        lines.append(f"| {name} | {' | '.join(str(outcomes[v][name]) for v in versions)} |")
    lines += ["", *_AMPLIFIED, "", f"## Primitives covered: {len(primitives)}", ""]
    lines.append(", ".join(f"{name} {count}" for name, count in sorted(primitives.items())))
    failures = [failure | {"jax": log["jax"]} for log in logs for failure in log["failures"]]
    died = "the process died"
    failures += [
        {"jax": g["jax"], "seed": g["running"], "text": died} for g in logs if g.get("running") is not None
    ]
    lines += ["", f"## Failures: {len(failures)}", ""]
    for failure in failures:
        text = failure["text"].strip().splitlines()
        # of a traceback the error, not where this machine keeps its files
        first = f"{failure['kind']}: {text[-1]}"[:140] if any(" line " in t for t in text) else text[0][:100]
        now = f"; repaired since, and run again: {failure['now']}" if "now" in failure else ""
        lines += [f"- JAX {failure['jax']}, seed {failure['seed']}: {first}{now}"]
    return "\n".join(lines) + "\n"
