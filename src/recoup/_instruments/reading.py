"""Reading: one number, the instrument that produced it, what it covers and what it does not. No JAX."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recoup._report import notebook
from recoup._report.text import format_bytes, format_seconds, table


@dataclass(frozen=True)
class Reading:
    """A number beside the instrument that produced it.

    Attributes:
      instrument: what produced the number, such as "compiled (buffer assignment)" (see `recoup instruments`).
      what: the quantity, such as "temporaries".
      value: the number; None where the instrument cannot say it here.
      unit: "bytes", "seconds" or what is counted.
      covers: what the number includes.
      does_not_cover: what it leaves out.
    """

    instrument: str
    what: str
    value: int | float | None
    unit: str
    covers: str
    does_not_cover: str = ""

    @property
    def text(self) -> str:
        """The value as a person reads it."""
        if self.value is None:
            return "not reported"
        if self.unit == "bytes":
            return format_bytes(self.value)
        if self.unit == "seconds":
            return format_seconds(self.value)
        return str(self.value)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Result:
    """Mixed into what an instrument returns (a dataclass): plain data, JSON, a notebook's view."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return data

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def _repr_html_(self) -> str:
        return notebook.render(self)


def readings_table(readings: Sequence[Reading]) -> str:
    """Readings as a table of at most 80 columns: instrument, quantity, value."""
    rows = [[r.instrument, r.what, r.text] for r in readings]
    return table(["instrument", "what", "value"], rows, right=(2,))


def place(source: str) -> str:
    """A source line as a table has room for it: the file's name and the line."""
    return source.replace("\\", "/").rsplit("/", 1)[-1].split(" (")[0] or "(no source)"
