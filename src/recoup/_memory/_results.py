"""What a prediction says: byte counts, a timeline, who is alive at the peak. Plain data, no JAX."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryBytes:
    """One compiled program's memory, in bytes, in the compiler's own categories.

    Attributes:
      arguments_bytes: all arguments of the program.
      outputs_bytes: all results, and the table of pointers to them.
      aliased_bytes: outputs that live in donated arguments.
      temporaries_bytes: the arena, at its peak.
      constants_bytes: arrays that the program closes over.
    """

    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    constants_bytes: int

    @property
    def total_bytes(self) -> int:
        """Arguments + outputs - aliased + temporaries + constants."""
        return (
            self.arguments_bytes
            + self.outputs_bytes
            - self.aliased_bytes
            + self.temporaries_bytes
            + self.constants_bytes
        )


@dataclass(frozen=True)
class Point:
    """The arena while one scheduled operation runs.

    Attributes:
      position: place in the simulated schedule.
      live_bytes: temporaries alive while the operation runs (its result and a loop body's arena included).
      op: the compiler's name of the operation that the kernel ends in.
      eqn: index of the equation (of the top-level jaxpr) it comes from; -1 if none.
      source: the user's `file:line`, or "".
    """

    position: int
    live_bytes: int
    op: str
    eqn: int
    source: str


@dataclass(frozen=True)
class Live:
    """A buffer that is alive at the peak.

    Attributes:
      nbytes: its size in bytes.
      op: the operation that writes it.
      eqn: index of the equation (of the top-level jaxpr) it comes from; -1 if none.
      source: the user's `file:line`, or "".
      shape: its dimensions, those of size 1 left out.
      dtype: its element type.
      region: the region (`recoup.checkpoint`) that made it, or that is inside the loop; "" for none or where
        nobody has looked it up.
    """

    nbytes: int
    op: str
    eqn: int
    source: str
    shape: tuple[int, ...]
    dtype: str
    region: str = ""


@dataclass(frozen=True)
class Life:
    """A buffer of the arena from its first to its last position in the simulated schedule.

    Attributes:
      nbytes: its size in bytes.
      first, last: positions between which it is alive, both included.
      op: the operation that writes it.
      eqn: index of the equation (of the top-level jaxpr) it comes from; -1 if none.
      inside: whether it lives inside the loop or branch that runs at this one position.
      shape: its dimensions, those of size 1 left out.
      dtype: its element type.
    """

    nbytes: int
    first: int
    last: int
    op: str
    eqn: int
    inside: bool
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Prediction:
    """Memory of a program that has not been compiled.

    Attributes:
      low, estimate, high: the interval over the orders that the compiler may choose among operations which
        are ready at once; plan against `high`.
      timeline: the estimate's schedule.
      peak: the buffers alive at the estimate's peak, largest first. They add up to the peak, up to what the
        bodies of loops hold inside (listed under the loop).
      opaque: what the model does not know, by name; empty if it knows everything it met.
      lives: every buffer of the estimate's schedule; they add up to the timeline at each position.
    """

    low: MemoryBytes
    estimate: MemoryBytes
    high: MemoryBytes
    timeline: tuple[Point, ...]
    peak: tuple[Live, ...]
    opaque: tuple[str, ...]
    lives: tuple[Life, ...] = ()
