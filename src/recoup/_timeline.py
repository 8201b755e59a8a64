"""Timeline: predicted memory operation by operation, and who is alive at the peak.

Limits: a prediction of the memory model for the default backend's compiler (see `_memory`); nothing compiles.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recoup import _compat, _memory
from recoup._memory import MemoryBytes, Prediction
from recoup._report import notebook
from recoup._report.of_timeline import timeline_picture
from recoup._report.picture import Picture, Strip
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, heading, note, table
from recoup._strip import strip
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
        alive: dict[tuple[str, str], list[int]] = {}
        for live in self.peak:
            alive.setdefault((live.op, live.source), []).append(live.nbytes)
        shown = sorted(alive.items(), key=lambda item: -sum(item[1]))
        lines.append(
            table(
                ["line", "operation", "buffers", "bytes"],
                [[_place(s), op, str(len(b)), format_bytes(sum(b))] for (op, s), b in shown[:12]],
                right=(2, 3),
            )
        )
        if len(shown) > 12:
            lines.append(
                f"... and {len(shown) - 12} more, {format_bytes(sum(sum(b) for _, b in shown[12:]))}"
            )
        if self.opaque:
            lines.append(note("Not modelled: " + ", ".join(self.opaque)))
        return "\n".join(lines)


def _place(source: str) -> str:
    return source.replace("\\", "/").rsplit("/", 1)[-1] or "(no source)"


def from_prediction(prediction: Prediction, drawn: Callable[[], Strip] | None = None) -> Timeline:
    """The timeline that a prediction holds."""
    return Timeline(
        Interval(prediction.low, prediction.estimate, prediction.high),
        prediction.timeline,
        prediction.peak,
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
    prediction = _memory.predict(traced.flat.closed(), donated=traced.donated)
    title = _compat.function_name(traced.flat.like) or "The step"
    return from_prediction(
        prediction, functools.cache(functools.partial(strip, title, traced.flat, prediction))
    )
