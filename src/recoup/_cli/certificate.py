"""The compiler's memory of a fitted step as a table and as data."""

from typing import Any

from recoup._report.text import format_bytes, table

_PARTS = (
    ("arguments", 1),
    ("outputs", 1),
    ("aliased", -1),
    ("temporaries", 1),
    ("constants", 1),
)


def memory_table(columns: dict[str, Any]) -> str:
    """Memories side by side: one row a part, one column a memory (as `Fitted.memory`)."""
    rows: list[list[str]] = []
    for part, sign in _PARTS:
        sizes = [getattr(memory, f"{part}_bytes") for memory in columns.values()]
        if any(sizes) or part == "temporaries":
            rows.append([part, *(("-" if sign < 0 and size else "") + format_bytes(size) for size in sizes)])
    rows.append(["total", *(format_bytes(memory.total_bytes) for memory in columns.values())])
    return table(["", *columns], rows, right=range(1, len(columns) + 1))


def certificate(fitted: Any) -> str:
    """The certified memory of a `Fitted` as text, with the instrument that read it."""
    columns = {"fitted": fitted.memory}
    if fitted.unplanned_memory is not None:
        columns = {"as it is": fitted.unplanned_memory, **columns}
    times = "one compilation" if fitted.compiles == 1 else f"{fitted.compiles} compilations"
    how = f", {fitted.plan.lever}" if fitted.plan.lever else ""
    return f"Certified by the {fitted.memory.instrument}, {times}{how}\n{memory_table(columns)}"


def memory_data(memory: Any) -> dict[str, Any]:
    """The fields of a memory as plain data."""
    data: dict[str, Any] = {f"{part}_bytes": int(getattr(memory, f"{part}_bytes")) for part, _ in _PARTS}
    return data | {"total_bytes": int(memory.total_bytes), "instrument": str(memory.instrument)}
