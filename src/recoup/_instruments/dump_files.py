"""Reads a folder that XLA's `--xla_dump_to` filled: files, buffer assignments, memory reports. No JAX.

Source: the text forms that XLA writes: `*-buffer-assignment.txt`, `*-memory-usage-report.txt`.
Limits: text made for people, so only the lines that matter are read and the rest is skipped; a file that is
something else, is cut off inside a line, or is larger than `LIMIT_BYTES` is an error. Files that XLA writes
beside these are listed with their sizes only.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from recoup._instruments.reading import Reading, Result
from recoup._report.text import format_bytes, heading, note, table
from recoup.errors import InstrumentError

INSTRUMENT = "dump (XLA dump files)"
LIMIT_BYTES = 256 << 20
_ASSIGNMENT, _REPORT = "-buffer-assignment.txt", "-memory-usage-report.txt"
# No number of a file has more than 19 digits; Python refuses to read one of thousands.
_ALLOCATION = re.compile(r"allocation (\d{1,19}): size (\d{1,19})(?!\d)(.*):\s*$")
_VALUE = re.compile(r"\s*value: <\d+ (\S+) @\d+> \(size=(\d{1,19}),offset=(\d{1,19})\): (.+)$")
_PARAMETER = re.compile(r"\bparameter (\d{1,19})\b")
_TOTAL = re.compile(r"Total bytes: (\d{1,19})(?!\d)")
_MODULE = re.compile(r"^(module_(\d+)\.([^.]+))\.")


@dataclass(frozen=True)
class DumpValue:
    """A value placed in an allocation: its instruction, size and offset, dtype and shape."""

    instruction: str
    size_bytes: int
    offset_bytes: int
    shape: str


@dataclass(frozen=True)
class DumpAllocation:
    """An allocation of a module. `kind` is "parameter", "output", "constant", "thread-local" or "temporary";
    `parameter` its number, -1 if it is none."""

    index: int
    size_bytes: int
    kind: str
    parameter: int
    values: tuple[DumpValue, ...]


@dataclass(frozen=True)
class DumpModule:
    """One compiled module of a dump.

    Attributes:
      name: such as "jit_step"; number: XLA's count of modules in the process.
      allocations: its buffer assignment, in XLA's order; empty if the dump has none.
      total_bytes: of the memory report; None if the dump has none.
      files: names and sizes of its files.
    """

    name: str
    number: int
    allocations: tuple[DumpAllocation, ...]
    total_bytes: int | None
    files: tuple[tuple[str, int], ...]

    def of_kind(self, kind: str) -> int:
        """Bytes of the allocations of one kind."""
        return sum(a.size_bytes for a in self.allocations if a.kind == kind)


@dataclass(frozen=True)
class Dump(Result):
    """A dump folder, read. Prints as a table.

    Attributes:
      modules: the largest first, by the bytes of their allocations.
      instrument: what produced the numbers.
    """

    modules: tuple[DumpModule, ...]
    instrument: str = INSTRUMENT

    @property
    def module(self) -> DumpModule:
        """The largest module."""
        return self.modules[0]

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Bytes of the largest module, by kind of allocation."""
        covers = f"{self.module.name}: allocations of the buffer assignment as XLA wrote it"
        leaves = "other modules; the runtime"
        found = [
            Reading(self.instrument, kind, self.module.of_kind(kind), "bytes", covers, leaves)
            for kind in ("parameter", "output", "constant", "temporary", "thread-local")
            if any(a.kind == kind for a in self.module.allocations)
        ]
        if self.module.total_bytes is not None:
            found.append(
                Reading(self.instrument, "report's total", self.module.total_bytes, "bytes", covers, leaves)
            )
        return tuple(found)

    def __str__(self) -> str:
        lines = []
        for module in self.modules[:3]:
            lines.append(heading(f"{module.name} (module {module.number})"))
            rows = []
            for a in sorted(module.allocations, key=lambda a: -a.size_bytes)[:12]:
                what = f"{a.kind} {a.parameter}" if a.parameter >= 0 else a.kind
                largest = max(a.values, key=lambda v: v.size_bytes, default=None)
                shape = largest.shape if largest else ""
                rows.append([a.index, what, len(a.values), shape, format_bytes(a.size_bytes)])
            lines.append(table(["", "allocation", "values", "largest", "bytes"], rows, right=(0, 2, 4)))
            if len(module.allocations) > 12:
                lines.append(f"  ... and {len(module.allocations) - 12} smaller allocations")
            if module.total_bytes is not None:
                lines.append(f"  Memory report: {format_bytes(module.total_bytes)} in all")
            lines.append(f"  {len(module.files)} files, {format_bytes(sum(s for _, s in module.files))}")
            lines.append("")
        if len(self.modules) > 3:
            lines.append(f"... and {len(self.modules) - 3} smaller modules")
        lines.append(note(f"Instrument: {self.instrument}"))
        return "\n".join(lines)


def read_dump(folder: str | Path) -> Dump:
    """Reads what `--xla_dump_to=FOLDER --xla_dump_hlo_as_text` wrote.

    Raises:
      InstrumentError: there is no module in it, or a file is damaged or too large.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InstrumentError(f"{folder} is not a folder")
    grouped: dict[str, list[Path]] = {}
    numbered: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.iterdir()):
        match = _MODULE.match(path.name)
        if match is not None and path.is_file():
            grouped.setdefault(match[1], []).append(path)
            numbered[match[1]] = (int(match[2]), match[3])
    if not grouped:
        raise InstrumentError(
            f"{folder} holds no module of an XLA dump; set XLA_FLAGS='--xla_dump_to={folder} "
            "--xla_dump_hlo_as_text' before the first compilation"
        )
    modules = [_module(*numbered[key], paths) for key, paths in grouped.items()]
    modules.sort(key=lambda m: -sum(a.size_bytes for a in m.allocations))
    return Dump(tuple(modules))


def _module(number: int, name: str, paths: list[Path]) -> DumpModule:
    allocations: tuple[DumpAllocation, ...] = ()
    total = None
    for path in paths:
        if path.name.endswith(_ASSIGNMENT):
            allocations = parse_assignment_text(_text(path), path.name)
        elif path.name.endswith(_REPORT):
            total = _report_total(_text(path), path.name)
    files = tuple((path.name, path.stat().st_size) for path in paths)
    return DumpModule(name, number, allocations, total, files)


def parse_assignment_text(text: str, what: str) -> tuple[DumpAllocation, ...]:
    """The allocations of a buffer assignment's text; `what` names it in errors.

    Raises:
      InstrumentError: it is not one, or it is cut off.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("BufferAssignment"):
        raise InstrumentError(f"{what} is not a buffer assignment: it begins with {lines[:1]!r:.80}")
    if not text.endswith("\n"):
        raise InstrumentError(f"{what} is cut off inside its last line")
    found: list[DumpAllocation] = []
    values: list[DumpValue] = []
    for line in lines[1:]:
        head = _ALLOCATION.match(line)
        if head is not None:
            values = []
            parameter = _PARAMETER.search(head[3])
            found.append(
                DumpAllocation(
                    int(head[1]), int(head[2]), _kind(head[3]), int(parameter[1]) if parameter else -1, ()
                )
            )
            continue
        inside = _VALUE.match(line)
        if inside is not None and found:
            values.append(DumpValue(inside[1], int(inside[2]), int(inside[3]), inside[4].split("{")[0]))
            found[-1] = DumpAllocation(**{**vars(found[-1]), "values": tuple(values)})
        elif line.startswith("allocation ") or inside is not None:
            raise InstrumentError(f"{what} has a line that is not understood: {line[:80]!r}")
    return tuple(found)


def _kind(flags: str) -> str:
    if _PARAMETER.search(flags):
        return "parameter"
    for words, kind in (("constant", "constant"), ("live-out", "output"), ("thread-local", "thread-local")):
        if words in flags:
            return kind
    return "temporary"


def _report_total(text: str, what: str) -> int:
    match = _TOTAL.search(text)
    if match is None:
        raise InstrumentError(f"{what} has no total: it is not a memory report, or it is cut off")
    return int(match[1])


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        raise InstrumentError(f"{path.name} is {size} bytes, more than the limit of {LIMIT_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InstrumentError(f"{path.name} is not text: {error.reason} at byte {error.start}") from error
