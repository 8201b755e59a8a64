"""The `process` instrument: the peak of a child process's resident memory that only runs the step.

Idea: resident memory is what a CPU user runs out of, and it belongs to a process; so the step runs alone in
one. It runs twice: what is resident after the first run, with nothing of the step's held, is what the runtime
takes (libraries, thread pools, compiled code), and is subtracted from the peak of the second.
Limits: pages count once they are touched, in whole pages. Where the system cannot reset its high-water mark
(outside Linux) the peak includes compiling, and the readings say so. On an accelerator this is the host's
memory only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recoup._compiling import Fitted
from recoup._instruments.child import job_folder, run_job
from recoup._instruments.reading import Reading, Result, readings_table
from recoup._instruments.subject import Subject, prepare
from recoup._report.text import heading, note

INSTRUMENT = "process (resident memory of a child)"


@dataclass(frozen=True)
class ProcessMemory(Result):
    """Resident memory of a process that only ran the step, in bytes. Prints as a table.

    Attributes:
      peak_bytes: the highest while the step ran.
      runtime_bytes: what stays when the step's arrays are gone.
      source: which of the system's numbers it is.
      alone: whether the peak is that of the step alone; else it includes compiling.
    """

    peak_bytes: int
    runtime_bytes: int
    source: str
    alone: bool
    instrument: str = INSTRUMENT

    @property
    def step_bytes(self) -> int:
        """The peak less what the runtime takes: arguments, results and temporaries that were touched."""
        return self.peak_bytes - self.runtime_bytes

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The numbers as `Reading`s."""
        covers = "a child process that holds the arguments and runs the step once"
        covers += "" if self.alone else ", and its compilation"
        leaves = "device memory of an accelerator; pages never touched"
        name = self.instrument
        return (
            Reading(name, "peak", self.peak_bytes, "bytes", f"{covers}, the runtime included", leaves),
            Reading(
                name, "runtime", self.runtime_bytes, "bytes", "libraries, threads, compiled code", leaves
            ),
            Reading(
                name, "the step's", self.step_bytes, "bytes", f"{covers}, the runtime subtracted", leaves
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return super().to_dict() | {"step_bytes": self.step_bytes}

    def __str__(self) -> str:
        lines = [heading("Memory of a process that only runs the step"), readings_table(self.readings)]
        lines.append(note(f"Read from the system: {self.source}"))
        return "\n".join(lines)


def process(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> ProcessMemory:
    """Runs a step alone in a child process and reads the process's peak. Arguments as for `compiled`.

    Raises:
      InstrumentError: the step calls back into Python, runs on several devices, or the child failed.
    """
    subject = prepare(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return process_of(subject)


def process_of(subject: Subject) -> ProcessMemory:
    """The measurement of a prepared subject."""
    module, arguments = subject.portable()
    with job_folder() as folder:
        found = run_job(folder, "run", module, arguments, subject.options)
    return ProcessMemory(
        found["peak_bytes"], found["runtime_bytes"], found["source"], alone=bool(found["resettable"])
    )
