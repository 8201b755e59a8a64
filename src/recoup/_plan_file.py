"""Plans as files: JSON that is checked field by field when read, and written whole or not at all. No JAX.

Idea: a plan file may come from anywhere. Reading it executes nothing and looks at sizes first: of the file,
of its nesting, of the number of its parts; then every field must have its type and range. What is left can
only be a legal plan of another step, and applying it refuses that.
Limits: a plan says which operations to repeat; that a repeat is legal is for the machine to say.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recoup import _levers
from recoup._report.text import format_bytes
from recoup.errors import PlanError

if TYPE_CHECKING:
    from recoup._plan import BodyPlan, LoopTrade, Plan, Repeat

FORMAT = 1
MAX_FILE_BYTES = 64 * 1024**2
MAX_PARTS = 2_000_000  # objects and lists: Python needs some 100 bytes for each
MAX_BYTES = 2**63 - 1
_COUNT = 2**31
_LARGE = 1e300

T = TypeVar("T")


def read(path: str | Path) -> Any:
    """The plain data of a JSON file.

    Raises:
      PlanError: it is too large, or not JSON.
    """
    file = Path(path)
    if file.stat().st_size > MAX_FILE_BYTES:
        raise PlanError(f"{file} is larger than {format_bytes(MAX_FILE_BYTES)}: not a plan of a step")
    try:
        text = file.read_text(encoding="utf-8")
        if text.count("{") + text.count("[") > MAX_PARTS:
            raise PlanError(f"{file} has more than {MAX_PARTS} parts: not a plan of a step")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{file} is not a plan file: {error}") from error


def write(path: str | Path, text: str, *, force: bool) -> None:
    """Writes a whole file or nothing: what was there stays until the new content is on disk.

    Raises:
      FileExistsError: the file exists and `force` is not given.
      OSError: the system refuses, or the disk is full; nothing is left behind.
    """
    file = Path(path)
    if file.exists() and not force:
        raise FileExistsError(f"{file} exists; force=True overwrites it")
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=".recoup-")
    try:
        with open(handle, "w", encoding="utf-8") as temporary:
            temporary.write(text)
            temporary.flush()
            os.fsync(temporary.fileno())
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def parse(data: Any, where: str) -> "Plan":
    """A plan from plain data.

    Raises:
      PlanError: a field is missing or is not what it should be; the message names it.
    """
    from recoup._plan import Decision, Plan

    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanError(
            f"{where} is not a plan of format {FORMAT}; make it again with this version of recoup"
        )
    whole = _Fields(data, where)
    return Plan(
        budget_bytes=whole.size("budget_bytes"),
        peak_bytes=whole.size("peak_bytes"),
        unplanned_bytes=whole.size("unplanned_bytes"),
        lower_bound_bytes=whole.size("lower_bound_bytes"),
        flops=whole.amount("flops"),
        extra_flops=whole.amount("extra_flops", below_zero=True),
        bound=whole.text("bound"),
        fingerprint=whole.text("fingerprint"),
        decisions=whole.each(
            "decisions",
            lambda d: Decision(
                action=d.one_of("action", ("keep", "recompute", "offload")),
                bytes=d.size("bytes"),
                flops=d.amount("flops", default=0.0),
                iterations=d.count("iterations", default=0),
                recipe=d.texts("recipe"),
                inputs=d.texts("inputs"),
                **{name: d.text(name) for name in ("value", "op", "source")},
                **{name: d.text(name, default="") for name in ("scope", "name", "use", "use_source")},
            ),
        ),
        loops=_loops(whole),
        repeats=_repeats(whole),
        bodies=_bodies(whole),
        moves=whole.counts("moves"),
        regions=whole.one_of("regions", ("respect", "replan")),
        gathers=whole.count("gathers", default=0),
        gathered_bytes=whole.count("gathered_bytes", default=0, most=MAX_BYTES),
        lever=whole.one_of("lever", ("", *_levers.OPTIONS), default=""),
        made_with=whole.labels("made_with"),
    )


def _loops(fields: "_Fields") -> "tuple[LoopTrade, ...]":
    from recoup._plan import LoopTrade

    return fields.each(
        "loops",
        lambda d: LoopTrade(
            d.count("forward"), d.count("backward"), d.counts("kept"), d.counts("recomputed"),
            d.count("segment"),
        ),
    )  # fmt: skip


def _repeats(fields: "_Fields") -> "tuple[Repeat, ...]":
    from recoup._plan import Repeat

    return fields.each("repeats", lambda d: Repeat(d.count("before"), d.counts("ops")))


def _bodies(fields: "_Fields") -> "tuple[BodyPlan, ...]":
    from recoup._plan import BodyPlan

    return fields.each("bodies", lambda d: BodyPlan(d.count("at"), _loops(d), _repeats(d), _bodies(d)))


class _Fields:
    """The fields of one JSON object, each read as what it must be."""

    def __init__(self, data: Mapping[str, Any], where: str):
        self._data, self._where = data, where

    def _wrong(self, name: str, wanted: str) -> PlanError:
        shown = repr(self._data[name])[:40] if name in self._data else "missing"
        return PlanError(f"{self._where} is damaged: {name!r} is {shown}, not {wanted}")

    def count(self, name: str, default: int | None = None, most: int = _COUNT) -> int:
        value = self._data.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self._wrong(name, f"an integer from 0 to {most}")
        return value

    def size(self, name: str) -> int:
        return self.count(name, most=MAX_BYTES)

    def amount(self, name: str, default: float | None = None, below_zero: bool = False) -> float:
        value = self._data.get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= _LARGE or (value < 0 and not below_zero):  # NaN compares false
            raise self._wrong(name, "a finite number" if below_zero else "a finite number from 0")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._data.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise self._wrong(name, " or ".join(allowed))
        return value

    def _list(self, name: str, kind: type, wanted: str) -> list[Any]:
        value = self._data.get(name, [])
        good = isinstance(value, list | tuple) and all(
            isinstance(item, kind) and not isinstance(item, bool) for item in value
        )
        if not good:
            raise self._wrong(name, f"a list of {wanted}")
        return list(value)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._list(name, str, "texts"))

    def counts(self, name: str) -> tuple[int, ...]:
        found = self._list(name, int, "integers from 0")
        if any(not 0 <= item <= _COUNT for item in found):
            raise self._wrong(name, f"a list of integers from 0 to {_COUNT}")
        return tuple(found)

    def each(self, name: str, make: "Callable[[_Fields], T]") -> tuple[T, ...]:
        if name not in self._data:
            raise self._wrong(name, "a list of objects")
        items = self._list(name, dict, "objects")
        return tuple(make(_Fields(item, f"{self._where}, {name}[{i}]")) for i, item in enumerate(items))

    def labels(self, name: str) -> dict[str, str]:
        value = self._data.get(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(name, "an object of texts")
        return dict(value)
