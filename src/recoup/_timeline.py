"""Timeline: predicted memory operation by operation, and who is alive at the peak.

Limits: a prediction of the memory model for the default backend's compiler (see `_memory`); nothing compiles.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recoup import _compat, _memory
from recoup._inline import Flat
from recoup._instruments.reading import Reading, place
from recoup._memory import MemoryBytes, Prediction
from recoup._report import notebook
from recoup._report.of_timeline import timeline_picture
from recoup._report.picture import Picture, Strip
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, heading, note, table
from recoup._strip import region_at, strip
from recoup._trace import as_names, as_numbers, trace

INSTRUMENT = "memory model (predicted)"


@dataclass(frozen=True)
class Interval:
    """A predicted memory: low and high bound it over the orders that the compiler may choose."""

    low: MemoryBytes
    estimate: MemoryBytes
    high: MemoryBytes


@dataclass(frozen=True)
class Timeline(Reported):
    """Predicted memory of a step. Prints as a table.

    Attributes:
      predicted: the fields of `Fitted.memory` as low / estimate / high.
      points: for each scheduled operation the temporaries alive while it runs, in bytes.
      peak: the buffers alive at the peak, largest first.
      opaque: operations that the model does not know, by name.
      instrument: what produced the numbers.
      drawn: makes the whole picture, every buffer from its first to its last operation; None if it cannot be.
    """

    predicted: Interval
    points: tuple[_memory.Point, ...]
    peak: tuple[_memory.Live, ...]
    opaque: tuple[str, ...]
    instrument: str = INSTRUMENT
    drawn: Callable[[], Strip] | None = field(default=None, repr=False, compare=False)

    @property
    def peak_bytes(self) -> int:
        """The estimated total (arguments + outputs - aliased + temporaries + constants)."""
        return self.predicted.estimate.total_bytes

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The predicted temporaries and total as `Reading`s."""
        covers = "the compiled program on one device, predicted; nothing was compiled"
        leaves = "not modelled: " + ", ".join(self.opaque) if self.opaque else "the runtime"
        ends = (("low", self.predicted.low), ("", self.predicted.estimate), ("high", self.predicted.high))
        return tuple(
            Reading(
                "timeline (memory model)",
                f"{part} {end}".strip(),
                getattr(memory, f"{part}_bytes"),
                "bytes",
                covers,
                leaves,
            )
            for part in ("temporaries", "total")
            for end, memory in ends
        )

    def diff(self, other: "Timeline") -> "TimelineDiff":
        """Predicted memory of two programs side by side, and who is alive at each peak."""
        return TimelineDiff(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = asdict(replace(self, drawn=None))
        del data["drawn"]
        if self.drawn is not None:
            data["buffers"] = [asdict(buffer) for buffer in self.drawn().buffers]
        for which in ("low", "estimate", "high"):
            data["predicted"][which]["total_bytes"] = getattr(self.predicted, which).total_bytes
        return data | {"peak_bytes": self.peak_bytes}

    def to_json(self) -> str:
        """The timeline as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def picture(self) -> Picture:
        """What `report` shows."""
        return timeline_picture(self.drawn() if self.drawn is not None else None, self.predicted.estimate)

    def _repr_html_(self) -> str:
        return (notebook.spark(self.drawn()) if self.drawn is not None else "") + notebook.render(self)

    def __str__(self) -> str:
        low, mid, high = self.predicted.low, self.predicted.estimate, self.predicted.high
        rows = []
        for name in ("arguments", "outputs", "aliased", "temporaries", "constants", "total"):
            sizes = [getattr(part, f"{name}_bytes") for part in (low, mid, high)]
            if any(sizes):
                rows.append([name, *(format_bytes(size) for size in sizes)])
        lines = [
            heading(f"Memory, {self.instrument}"),
            table(["", "low", "estimate", "high"], rows, right=(1, 2, 3)),
        ]
        lines += ["", heading("Alive at the peak of the temporaries")]
        alive: dict[tuple[str, str, str], list[int]] = {}
        for live in self.peak:
            alive.setdefault((live.op, live.source, live.region), []).append(live.nbytes)
        shown = sorted(alive.items(), key=lambda item: -sum(item[1]))
        lines.append(
            table(
                ["line", "region", "operation", "buffers", "bytes"],
                [[place(s), r, op, str(len(b)), format_bytes(sum(b))] for (op, s, r), b in shown[:12]],
                right=(3, 4),
                optional=(1,),
            )
        )
        if len(shown) > 12:
            lines.append(
                f"... and {len(shown) - 12} more, {format_bytes(sum(sum(b) for _, b in shown[12:]))}"
            )
        if self.opaque:
            lines.append(note("Not modelled: " + ", ".join(self.opaque)))
        return "\n".join(lines)


@dataclass(frozen=True)
class TimelineDiff:
    """Two timelines compared: predicted parts, and the bytes alive at the peak by line and operation."""

    first: Timeline
    second: Timeline

    @property
    def rows(self) -> tuple[tuple[str, str, str, int, int], ...]:
        """(line, region, operation, bytes at the first's peak, at the second's), largest difference first."""
        mine, theirs = _alive(self.first), _alive(self.second)
        keys = [key for key in {**mine, **theirs} if mine.get(key, 0) != theirs.get(key, 0)]
        keys.sort(key=lambda key: -abs(mine.get(key, 0) - theirs.get(key, 0)))
        return tuple((*key, mine.get(key, 0), theirs.get(key, 0)) for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("source", "region", "op", "first_bytes", "second_bytes")
        return {
            "first": asdict(self.first.predicted),
            "second": asdict(self.second.predicted),
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }

    def __str__(self) -> str:
        parts = []
        for name in ("arguments", "outputs", "aliased", "temporaries", "constants", "total"):
            sizes = [getattr(t.predicted.estimate, f"{name}_bytes") for t in (self.first, self.second)]
            if any(sizes):
                parts.append([name, *map(format_bytes, sizes), format_bytes(sizes[1] - sizes[0])])
        lines = [
            heading(f"Memory, {INSTRUMENT}"),
            table(["", "first", "second", "change"], parts, right=(1, 2, 3)),
        ]
        rows = [[place(s), r, op, format_bytes(a), format_bytes(b)] for s, r, op, a, b in self.rows]
        if rows:
            lines += ["", heading("Alive at the peak, where they differ")]
            headers = ["line", "region", "operation", "first", "second"]
            lines.append(table(headers, rows[:20], right=(3, 4), optional=(1,)))
        if len(rows) > 20:
            lines.append(f"  ... and {len(rows) - 20} more lines")
        return "\n".join(lines)


def _alive(found: Timeline) -> dict[tuple[str, str, str], int]:
    totals: dict[tuple[str, str, str], int] = {}
    for live in found.peak:
        key = (live.source, live.region, live.op)
        totals[key] = totals.get(key, 0) + live.nbytes
    return totals


def from_prediction(prediction: Prediction, flat: Flat, drawn: Callable[[], Strip] | None = None) -> Timeline:
    """The timeline that a prediction of `flat` holds."""
    found = {live.eqn: region_at(flat.eqns[live.eqn]) for live in prediction.peak if live.eqn >= 0}
    return Timeline(
        Interval(prediction.low, prediction.estimate, prediction.high),
        prediction.timeline,
        tuple(replace(live, region=found.get(live.eqn, "")) for live in prediction.peak),
        prediction.opaque,
        drawn=drawn,
    )


def timeline(
    step: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
) -> Timeline:
    """Predicts the memory of `step` operation by operation. Traces only: nothing compiles, nothing runs.

    Args:
      step: any function of arrays; `*args` are its arguments, arrays or `jax.ShapeDtypeStruct`.
      kwargs, donate_argnums, static_argnums, static_argnames: as for `recoup.fit`.

    Returns:
      A `Timeline`; sizes are bytes.
    """
    traced = trace(
        step,
        args,
        kwargs,
        static_argnums=as_numbers(static_argnums),
        static_argnames=as_names(static_argnames),
        donate_argnums=as_numbers(donate_argnums, len(args)),
    )
    prediction = _memory.predict(traced.flat.per_device(), donated=traced.donated)
    title = _compat.function_name(traced.flat.like) or "The step"
    return from_prediction(
        prediction, traced.flat, functools.cache(functools.partial(strip, title, traced.flat, prediction))
    )
