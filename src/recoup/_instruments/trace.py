"""The `trace` instrument: a profiler capture of a labelled, synchronised region, its time added up correctly.

Idea: dispatch is asynchronous, so the region ends only when the last result is there; the time to hand out
the work is measured beside it. Events that name an instruction of the compiled program are clipped to the
region and counted as intervals per thread (`intervals`), then summed by operation and by the user's line.
Source: `jax.profiler`; its capture is read with `jax.profiler.ProfileData`, no other library.
Limits: the profiler costs time itself. Threads of a CPU's linear algebra pool carry no operation's name:
their work shows as the time of the operation that waits for them. Nothing is donated while measuring. Other
backends are read in the same way, unverified.
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from recoup import _compat
from recoup._compiling import Fitted
from recoup._instruments.hlo import Module, parse_module
from recoup._instruments.intervals import Event, busy_by_name, busy_by_thread, clip, union_ns
from recoup._instruments.origin import origin
from recoup._instruments.reading import Reading, Result, place, readings_table
from recoup._instruments.subject import Subject, prepare
from recoup._report.text import format_seconds, heading, note, table
from recoup.errors import InstrumentError

INSTRUMENT = "trace (profiler)"
LABEL = "recoup measured region"
LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Busy:
    """Time that one operation of one line kept a thread busy, over all steps; `count` events."""

    op: str
    source: str
    seconds: float
    count: int


@dataclass(frozen=True)
class Trace(Result):
    """A measured region. Prints as a table. Times are seconds, over all steps together.

    Attributes:
      steps: how many were dispatched one after the other.
      wall_seconds: from before the first dispatch until every result was there.
      dispatch_seconds: until the last dispatch returned; not the time of the steps.
      region_seconds: the region as the profiler saw it.
      busy: by operation and line, longest first; they add up to `thread_seconds`.
      thread_seconds: the union of operations' intervals on each thread, added over threads.
      union_seconds: time in which at least one thread ran an operation.
      summed_seconds: what adding raw durations gives, for comparison only.
      threads: threads that ran operations.
    """

    steps: int
    wall_seconds: float
    dispatch_seconds: float
    region_seconds: float
    busy: tuple[Busy, ...]
    thread_seconds: float
    union_seconds: float
    summed_seconds: float
    threads: int
    instrument: str = INSTRUMENT

    def by_source(self) -> dict[str, float]:
        """Busy seconds by the user's line, longest first."""
        totals: dict[str, float] = {}
        for item in self.busy:
            totals[item.source] = totals.get(item.source, 0.0) + item.seconds
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The times as `Reading`s."""
        name, many = self.instrument, f"{self.steps} steps, from the first dispatch to the last result"
        slow = "steps without a profiler; compilation"
        return (
            Reading(name, "wall", self.wall_seconds, "seconds", many, slow),
            Reading(name, "wall a step", self.wall_seconds / self.steps, "seconds", many, slow),
            Reading(
                name, "dispatch", self.dispatch_seconds, "seconds", "handing out the work", "the work itself"
            ),
            Reading(
                name,
                "busy",
                self.union_seconds,
                "seconds",
                "time in which at least one thread ran an operation of the program",
                "the runtime between operations; worker threads that carry no operation's name",
            ),
            Reading(
                name,
                "busy, over threads",
                self.thread_seconds,
                "seconds",
                f"intervals on each of {self.threads} threads, added",
                "as above",
            ),
        )

    def __str__(self) -> str:
        lines = [heading(f"{self.steps} steps, {self.instrument}"), readings_table(self.readings)]
        if self.busy:
            total = self.thread_seconds or 1.0
            rows = [
                [
                    place(item.source),
                    item.op,
                    item.count,
                    format_seconds(item.seconds),
                    f"{item.seconds / total:.0%}",
                ]
                for item in self.busy[:15]
            ]
            lines += ["", heading("Busy time, as intervals")]
            lines.append(table(["line", "operation", "events", "time", "share"], rows, right=(2, 3, 4)))
            if len(self.busy) > 15:
                lines.append(f"  ... and {len(self.busy) - 15} more")
        else:
            lines.append(note("The profiler recorded no operation of the program on this backend"))
        return "\n".join(lines)


def trace(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    steps: int = 10,
    folder: str | Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Trace:
    """Runs a step under the profiler and adds its time up. Each step gets the same arguments.

    Args:
      step, *args: as for `compiled`; where only shapes are given, zeros are used.
      steps: how many to dispatch, after one that warms up.
      folder: where the capture is left for other viewers; by default it is deleted.
      kwargs, static_argnums, static_argnames, compiler_options: as for `compiled`.

    Raises:
      InstrumentError: the profiler gave nothing that can be read.
      ValueError: `steps` is less than 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: at least one step is measured")
    subject = prepare(
        step,
        args,
        kwargs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return trace_of(subject, steps, folder)


def trace_of(subject: Subject, steps: int = 10, folder: str | Path | None = None) -> Trace:
    """The measurement of a prepared subject."""
    # A donated argument could be used once only.
    compiled = subject.compile(()) if subject.donate else subject.compiled
    args, kwargs = subject.arguments()
    jax.block_until_ready(compiled(*args, **kwargs))  # type: ignore[no-untyped-call]
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="recoup-") as temporary:
        where = Path(folder) if folder is not None else Path(temporary)
        before = set(where.rglob("*.xplane.pb"))
        jax.profiler.start_trace(str(where), profiler_options=options)
        try:
            began = time.perf_counter()
            with jax.profiler.TraceAnnotation(LABEL):
                results = [compiled(*args, **kwargs) for _ in range(steps)]
                dispatched = time.perf_counter()
                jax.block_until_ready(results)  # type: ignore[no-untyped-call]
            ended = time.perf_counter()
        finally:
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
        found = sorted(set(where.rglob("*.xplane.pb")) - before)
        if not found:
            raise InstrumentError("the profiler wrote no capture")
        module = parse_module(_compat.optimized_module(compiled))
        region, events = read_capture(found[0], module.name)
    return _added(module, region, events, steps, ended - began, dispatched - began)


def read_capture(path: Path, module: str, label: str = LABEL) -> tuple[tuple[float, float], list[Event]]:
    """The labelled region (start, end; nanoseconds) of a capture and a module's events, clipped to it.

    Args:
      path: an `.xplane.pb` file.
      module: the compiled program's name; events of others are left out.
      label: of the region.

    Raises:
      InstrumentError: it is damaged or too large, or has no such region.
    """
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        raise InstrumentError(f"{path.name} is {size} bytes, more than the limit of {LIMIT_BYTES}")
    try:
        data = jax.profiler.ProfileData.from_file(str(path))
    except RuntimeError as error:
        raise InstrumentError(f"{path.name} is not a profiler capture, or is damaged: {error}") from error
    with warnings.catch_warnings():
        # Python 3.13 warns when the reader's types are made; as an error that ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        region, events = _events(data, module, label)
    if region is None:
        raise InstrumentError(f"{path.name} has no region labelled {label!r}")
    return region, clip(events, *region)


def _events(data: Any, module: str, label: str) -> tuple[tuple[float, float] | None, list[Event]]:
    region = None
    events = []
    for plane in data.planes:
        for index, line in enumerate(plane.lines):
            thread = f"{plane.name} {line.name} {index}"
            for event in line.events:
                if event.name == label:
                    region = (event.start_ns, event.end_ns)
                    continue
                if event.duration_ns <= 0:
                    continue
                details = _details(event.stats)
                if "hlo_op" in details and details.get("hlo_module", module) == module:
                    events.append(Event(thread, str(details["hlo_op"]), event.start_ns, event.end_ns))
    return region, events


def _details(stats: Iterable[Any]) -> dict[str, Any]:
    return {str(name): value for name, value in stats if name in ("hlo_op", "hlo_module")}


def _added(
    module: Module,
    region: tuple[float, float],
    events: Sequence[Event],
    steps: int,
    wall: float,
    dispatch: float,
) -> Trace:
    by_name = {i.name: i for i in module.instructions.values()}
    counts: dict[str, int] = {}
    for event in events:
        counts[event.name] = counts.get(event.name, 0) + 1
    rows: dict[tuple[str, str], list[float]] = {}
    for name, busy in busy_by_name(events).items():
        here = by_name.get(name)
        key = (name, "")
        if here is not None:
            made = origin(module, (here.id, ()), _compat.library_paths())
            key = (made.instruction.op, made.source)
        row = rows.setdefault(key, [0.0, 0])
        row[0] += busy * 1e-9
        row[1] += counts[name]
    busy_rows = [Busy(op, source, seconds, int(count)) for (op, source), (seconds, count) in rows.items()]
    threads = busy_by_thread(events)
    return Trace(
        steps=steps,
        wall_seconds=wall,
        dispatch_seconds=dispatch,
        region_seconds=(region[1] - region[0]) * 1e-9,
        busy=tuple(sorted(busy_rows, key=lambda b: -b.seconds)),
        thread_seconds=sum(threads.values()) * 1e-9,
        union_seconds=union_ns((e.start_ns, e.end_ns) for e in events) * 1e-9,
        summed_seconds=sum(e.end_ns - e.start_ns for e in events) * 1e-9,
        threads=len(threads),
    )
