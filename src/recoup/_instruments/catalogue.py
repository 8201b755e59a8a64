"""The list of instruments, ordered by what they cost: what each asks, covers and leaves out. No JAX."""

from dataclasses import dataclass

from recoup._report.text import table

# Cheapest first; each includes the work of those before it.
COSTS = ("trace", "compile", "dump", "run")


@dataclass(frozen=True)
class Instrument:
    """One row: its name, what it costs (one of `COSTS`), the question that it answers, and its limits."""

    name: str
    cost: str
    question: str
    covers: str
    does_not_cover: str


INSTRUMENTS = (
    Instrument(
        "residuals",
        "trace",
        "what does reverse mode keep?",
        "values that cross from the forward to the backward pass, from the jaxpr, to the byte",
        "what the compiler fuses away, copies or recomputes",
    ),
    Instrument(
        "timeline",
        "trace",
        "how much memory will it take, and who holds it?",
        "the compiled program's memory, predicted by the memory model as an interval",
        "what the model does not know (named as opaque); other backends than the CPU are unverified",
    ),
    Instrument(
        "compiled",
        "compile",
        "what did the compiler reserve, and for whom?",
        "arguments, results, aliases, temporaries and constants of one device; the temporaries at their peak",
        "the runtime, the compiler, scratch inside library calls, other programs",
    ),
    Instrument(
        "recomputed",
        "compile",
        "what does the compiled program compute again?",
        "instructions of the optimized program that carry a mark of recomputation",
        "loops' lengths (a body counts once); what the compiler duplicates by itself",
    ),
    Instrument(
        "dump",
        "dump",
        "what did the compiler write about it?",
        "XLA's dump from a child process: its files, buffer assignment and memory report",
        "steps on several devices or with Python callbacks",
    ),
    Instrument(
        "trace",
        "run",
        "where does the time go?",
        "a labelled, synchronised region under the profiler; intervals per thread, by operation and line",
        "the profiler's own time; worker threads that carry no operation's name",
    ),
    Instrument(
        "allocator",
        "run",
        "what was the device's peak?",
        "all arrays of this process on the device, where the backend reports it (CPUs do not)",
        "the step alone, if something before it had a higher peak; other processes",
    ),
    Instrument(
        "process",
        "run",
        "what was the process's peak?",
        "resident memory of a child process that only runs the step, less what the runtime takes",
        "an accelerator's memory; pages never touched",
    ),
)
NAMES = tuple(instrument.name for instrument in INSTRUMENTS)


def up_to(cost: str) -> tuple[str, ...]:
    """Names of the instruments that cost no more than `cost`."""
    return tuple(i.name for i in INSTRUMENTS if COSTS.index(i.cost) <= COSTS.index(cost))


def listing() -> str:
    """All instruments as a table of at most 80 columns."""
    return table(["instrument", "costs a", "answers"], [[i.name, i.cost, i.question] for i in INSTRUMENTS])
