"""The `allocator` instrument: the device's own peak, where the backend reports one.

Source: `jax.Device.memory_stats()`, which CPUs do not give.
Limits: the allocator's peak is that of the whole process since it began and cannot be reset: it is the step's
only where the step raised it. Each device counts for itself; the largest is given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from recoup._compiling import Fitted
from recoup._instruments.reading import Reading, Result, readings_table
from recoup._instruments.subject import Subject, prepare
from recoup._report.text import heading, note

INSTRUMENT = "allocator (device)"


@dataclass(frozen=True)
class AllocatorMemory(Result):
    """What the device's allocator says, in bytes; all None where the backend reports nothing.

    Attributes:
      before_bytes: in use before the step, its arguments included.
      earlier_peak_bytes: the peak of the process before the step.
      peak_bytes: the peak after it.
      backend: the platform.
    """

    before_bytes: int | None
    earlier_peak_bytes: int | None
    peak_bytes: int | None
    backend: str
    instrument: str = INSTRUMENT

    @property
    def reached_by_step(self) -> bool:
        """Whether the step itself made the peak; else something before it did."""
        if self.peak_bytes is None or self.earlier_peak_bytes is None:
            return False
        return self.peak_bytes > self.earlier_peak_bytes

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The peak as a `Reading`; its value is None where the backend reports none."""
        if self.peak_bytes is None:
            leaves = f"everything: the {self.backend} backend reports no allocator statistics"
            return (Reading(self.instrument, "peak", None, "bytes", "nothing", leaves),)
        covers = "all arrays and programs of this process on the fullest device"
        covers += ", reached by this step" if self.reached_by_step else ", reached before this step"
        leaves = "other processes; the driver and the runtime outside the allocator"
        return (Reading(self.instrument, "peak", self.peak_bytes, "bytes", covers, leaves),)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return super().to_dict() | {"reached_by_step": self.reached_by_step}

    def __str__(self) -> str:
        lines = [heading("The device's allocator"), readings_table(self.readings)]
        if self.peak_bytes is None:
            lines.append(note(f"The {self.backend} backend reports no allocator statistics"))
        elif not self.reached_by_step:
            lines.append(note("The peak was reached before this step: run it first in a fresh process"))
        return "\n".join(lines)


def allocator(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> AllocatorMemory:
    """Runs a step once (nothing donated) and reads the allocator's peak. Arguments as for `compiled`.

    Where the backend reports nothing the step is not run, and the reading says so.
    """
    subject = prepare(
        step,
        args,
        kwargs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return allocator_of(subject)


def allocator_of(subject: Subject) -> AllocatorMemory:
    """The measurement of a prepared subject."""
    backend = jax.default_backend()
    if not _statistics():
        return AllocatorMemory(None, None, None, backend)
    compiled = subject.compile(()) if subject.donate else subject.compiled
    args, kwargs = jax.block_until_ready(subject.arguments())  # type: ignore[no-untyped-call]
    before = _statistics()
    jax.block_until_ready(compiled(*args, **kwargs))  # type: ignore[no-untyped-call]
    after = _statistics()
    return AllocatorMemory(
        max(int(s.get("bytes_in_use", 0)) for s in before),
        max(int(s.get("peak_bytes_in_use", 0)) for s in before),
        max(int(s.get("peak_bytes_in_use", 0)) for s in after),
        backend,
    )


def _statistics() -> list[dict[str, Any]]:
    found = [device.memory_stats() for device in jax.local_devices()]
    return [stats for stats in found if stats]
