"""The demo's screen: each event as text of at most 80 columns, and the summary at the end."""

import math
from collections.abc import Callable
from typing import Any, TextIO

from recoup._demo.settings import Settings
from recoup._progress import Progress
from recoup._report.text import format_bytes, format_seconds, heading, note, styled, table

Event = dict[str, Any]
_STEP = "  {:>4}  {:>12}  {:>12}  {:<13}  {:>9}  {:>9}"


class Screen:
    """Prints events on `out` as they happen; `progress` says on a terminal what is under way."""

    def __init__(self, settings: Settings, out: TextIO, progress: Progress) -> None:
        self._settings, self._out, self._progress = settings, out, progress
        self._styled = styled(out)
        self._rows = 0

    def say(self, event: Event) -> None:
        """Print one event of `run_demo`."""
        handler: Callable[[Event], None] | None = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def _print(self, text: str = "") -> None:
        self._progress.close()
        print(text, file=self._out, flush=True)

    def _head(self, text: str) -> None:
        self._print()
        self._print(heading(text, self._styled))

    def _on_prepare(self, event: Event) -> None:
        work = "trace, plan, compile and certify" if event["kind"] == "fitted" else "compile"
        self._progress.stage(f"{event['kind']} step: {work}")

    def _on_start(self, event: Event) -> None:
        if event["kind"] != "fitted":
            return
        s = self._settings
        text = f"{event['characters']:,} characters, {event['different']} different"
        model = f"{s.layers} layers, width {s.width}, {s.heads} heads, {event['parameters']:,} parameters"
        step = f"{s.batch} x {s.tokens} characters, gradient and Optax AdamW, JAX {event['jax']}"
        self._print(heading("recoup demo: a character GPT, plain and fitted, side by side", self._styled))
        self._print(f"  text   pydoc_data.topics, {text}\n  model  {model}\n  step   {step}")
        self._on_prepare(event)

    def _on_residuals(self, event: Event) -> None:
        self._head("What reverse mode keeps (traced, nothing ran)")
        self._print(shortened(event["text"], 10))
        self._progress.stage("fitted step: plan, compile and certify")

    def _on_plan(self, event: Event) -> None:
        self._head(f"The plan for a budget of {self._settings.budget}")
        self._print(shortened(event["text"].removeprefix("Plan\n"), 30))

    def _on_ready(self, event: Event) -> None:
        memory, kind = event["memory"], event["kind"]
        if kind == "fitted":
            self._head("Certified before the first step")
        total, temporaries = (format_bytes(memory[f"{part}_bytes"]) for part in ("total", "temporaries"))
        done = (
            f"{'planned, compiled' if kind == 'fitted' else 'compiled'} in {format_seconds(event['seconds'])}"
        )
        self._print(f"  {kind:7}{total:>9}, of it {temporaries} temporaries; {done}")
        if kind == "plain":
            self._print(note(f"  instrument: {memory['instrument']}", self._styled))

    def _on_step(self, event: Event) -> None:
        if self._rows == 0:
            self._head(f"{self._settings.steps} training steps of each, in turn")
            self._print(_STEP.format("step", "plain loss", "fitted loss", "", "plain", "fitted").rstrip())
        self._rows += 1
        difference = event["fitted_loss"] - event["plain_loss"]
        self._print(
            _STEP.format(
                event["step"],
                f"{event['plain_loss']:.6f}",
                f"{event['fitted_loss']:.6f}",
                "same bits" if event["equal"] else f"{difference:+.1e}",
                f"{event['plain_seconds']:.2f} s",
                f"{event['fitted_seconds']:.2f} s",
            )
        )

    def finish(self, result: Event) -> None:
        """Print the summary of a whole run."""
        plain, fitted = result["plain"], result["fitted"]
        planned = [fitted["plan"][f"{kind}_bytes"] for kind in ("unplanned", "planned")]
        rows = [["total, predicted", *map(format_bytes, planned), "memory model"]]
        for part in ("total", "temporaries"):
            sizes = [side["ready"]["memory"][f"{part}_bytes"] for side in (plain, fitted)]
            rows.append([part, *map(format_bytes, sizes), "compiler"])
        peaks = [side["peak"]["peak_bytes"] for side in (plain, fitted)]
        above = [side["peak"]["peak_bytes"] - side["peak"]["before_bytes"] for side in (plain, fitted)]
        rows.append(["process peak", *map(format_bytes, peaks), plain["peak"]["instrument"]])
        rows.append(["  above its start", *map(format_bytes, above), "same, less what it held before"])
        if result["steps"]:
            times = [side["median_step_seconds"] for side in (plain, fitted)]
            rows.append(
                ["step time", *map(format_seconds, times), f"clock, median; x{times[1] / times[0]:.2f}"]
            )
        self._head("Plain and fitted")
        self._print(table(["", "plain", "fitted", "instrument"], rows, right=(1, 2)))
        if result["steps"]:
            self._print()
            self._print(heading(losses_line(result), self._styled))


def losses_line(result: Event) -> str:
    """How many losses are equal, and how far the others are, in units in the last place of float32."""
    rows = result["steps"]
    line = f"{result['equal_losses']} of {len(rows)} losses equal to the bit"
    ulps = max(abs(row["fitted_loss"] - row["plain_loss"]) / ulp(row["plain_loss"]) for row in rows)
    return line if ulps == 0 else f"{line}, the others within {ulps:.0f} units in the last place"


def ulp(x: float) -> float:
    """The distance from x to the next float32: 2^-23 of the power of two below it."""
    return math.ldexp(1.0, math.frexp(x)[1] - 24)


def shortened(text: str, lines: int) -> str:
    """The first `lines` lines, saying how many more there are."""
    every = text.splitlines()
    if len(every) <= lines:
        return text
    return "\n".join(
        [*every[: lines - 1], f"  … {len(every) - lines + 1} more lines (--json has everything)"]
    )
