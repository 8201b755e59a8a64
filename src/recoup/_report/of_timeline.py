"""A timeline or a residual list as a Picture. No JAX."""

from typing import Any

from recoup._report.picture import Figure, Picture, Strip
from recoup._report.text import format_bytes

_PARTS = ("arguments", "outputs", "aliased", "temporaries", "constants")


def timeline_picture(strip: Strip | None, memory: Any) -> Picture:
    """A prediction of one program: its strip (None if only totals are known), and its parts as a
    `MemoryBytes`."""
    instrument = "memory model (predicted, estimate)"
    parts = [(part, getattr(memory, f"{part}_bytes")) for part in _PARTS]
    figures = [Figure("Peak", memory.total_bytes, "bytes", instrument, "predicted")]
    figures += [
        Figure(part.capitalize(), size, "bytes", instrument, "predicted") for part, size in parts if size
    ]
    strips = () if strip is None else (strip,)
    notes = () if strip is None or not strip.opaque else ("Not modelled: " + ", ".join(strip.opaque),)
    return Picture(
        title="Timeline" if strip is None else strip.title,
        headline=f"{format_bytes(memory.total_bytes)} at its peak, predicted: arguments, results and "
        "temporaries. Nothing was compiled.",
        figures=tuple(figures),
        strips=strips,
        notes=notes,
    )


def residuals_picture(data: dict[str, Any]) -> Picture:
    """What reverse mode keeps; `data` is as `Residuals.to_dict` has it."""
    total, given = int(data["total_bytes"]), int(data["argument_bytes"])
    computed = sum(item["kind"] == "computed" for item in data["items"])
    instrument = str(data["instrument"])
    moved = int(data.get("offloaded_bytes", 0))
    offloaded = (Figure("Offloaded", moved, "bytes", instrument, "counted"),) if moved else ()
    return Picture(
        title="Residuals",
        headline=f"{format_bytes(total)} in {computed} computed values wait from the forward pass for the "
        "backward pass. Nothing was compiled.",
        figures=(
            Figure("Kept", total, "bytes", instrument, "counted"),
            Figure("Values", computed, "values", instrument, "counted"),
            *offloaded,
            Figure("Arguments and constants read", given, "bytes", instrument, "counted"),
        ),
        residuals=tuple(data["items"]),
    )
