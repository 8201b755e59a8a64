"""Several instruments on one step, cheapest first, in one table: they answer different questions.

Idea: one compilation serves all that need one; an instrument that cannot measure this step here says why, and
the others go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recoup._compiling import Fitted
from recoup._instruments import catalogue
from recoup._instruments.allocator import allocator_of
from recoup._instruments.compiled import arena_of
from recoup._instruments.dump import dump_of
from recoup._instruments.process import process_of
from recoup._instruments.reading import Reading, Result, readings_table
from recoup._instruments.recomputed import recomputed_in
from recoup._instruments.subject import Subject, prepare
from recoup._instruments.trace import trace_of
from recoup._progress import Progress
from recoup._report.text import heading, note
from recoup._residuals import residuals
from recoup._timeline import timeline
from recoup.errors import InstrumentError


@dataclass(frozen=True)
class Measurements(Result):
    """What several instruments said of one step. Prints as one table.

    Attributes:
      results: (instrument, what it returned), cheapest first.
      skipped: (instrument, why it gave nothing).
    """

    results: tuple[tuple[str, Any], ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings, in the order of the instruments."""
        return tuple(reading for _, result in self.results for reading in result.readings)

    def __getitem__(self, name: str) -> Any:
        """What one instrument returned."""
        return dict(self.results)[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: every reading, and each instrument's own result."""
        return {
            "readings": [reading.to_dict() for reading in self.readings],
            "results": {name: result.to_dict() for name, result in self.results},
            "skipped": dict(self.skipped),
        }

    def __str__(self) -> str:
        lines = [heading("One step, several instruments"), readings_table(self.readings)]
        lines += [note(f"{name}: {why}") for name, why in self.skipped]
        return "\n".join(lines)


def measure(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    upto: str = "compile",
    only: Sequence[str] = (),
    steps: int = 10,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Measurements:
    """Runs the instruments on a step, cheapest first.

    Args:
      step, *args: a function of arrays (or what `recoup.fit` returned) and its arguments.
      upto: "trace", "compile", "dump" or "run": the most that may be spent. "run" runs the step.
      only: names of instruments; replaces `upto`.
      steps: how many steps the trace dispatches.
      kwargs, donate_argnums, static_argnums, static_argnames, compiler_options: as for `recoup.fit`.

    Raises:
      ValueError: `upto` or a name in `only` is not known.
    """
    if upto not in catalogue.COSTS:
        raise ValueError(f"upto={upto!r} is none of {', '.join(catalogue.COSTS)}")
    unknown = [name for name in only if name not in catalogue.NAMES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of the instruments {', '.join(catalogue.NAMES)}")
    names = [n for n in catalogue.NAMES if n in only] if only else list(catalogue.up_to(upto))
    subject = prepare(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    results, skipped = [], []
    with Progress() as progress:
        for name in names:
            progress.stage(name)
            try:
                results.append((name, _run(name, subject, steps)))
            except InstrumentError as error:
                skipped.append((name, str(error)))
    return Measurements(tuple(results), tuple(skipped))


def _run(name: str, subject: Subject, steps: int) -> Any:
    if name == "residuals":
        return residuals(subject.fun, *subject.args, kwargs=subject.kwargs)
    if name == "timeline":
        return timeline(subject.fun, *subject.args, kwargs=subject.kwargs, donate_argnums=subject.donate)
    if name == "compiled":
        return arena_of(subject.compiled, subject.constants_bytes)
    if name == "recomputed":
        return recomputed_in(subject.compiled)
    if name == "trace":
        return trace_of(subject, steps)
    of_subject: dict[str, Callable[[Subject], Any]] = {
        "dump": dump_of,
        "allocator": allocator_of,
        "process": process_of,
    }
    return of_subject[name](subject)
