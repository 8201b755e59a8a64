"""Picture: what a report shows, as plain data: memory over a program's order, the curve, the decisions. No
JAX.

Idea: one structure for every way of showing it. The HTML page, the Perfetto trace and `--json` are three
spellings of a `Picture`, so that they cannot disagree. Each number in it stands beside its instrument.
Limits: a strip's buffers are the memory model's simulated schedule; the compiler may order ties otherwise.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# Why a buffer is there, in the order in which a strip stacks them.
ROLES = ("kept", "recomputed", "forward", "backward", "other")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a strip's schedule.

    Attributes:
      name: the operation.
      source: the user's line, "file:line (function)".
      phase: "forward", "backward", "recomputed" or "other" (after the backward pass).
    """

    name: str
    source: str
    phase: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """A temporary from its first to its last position in the schedule, both included.

    Attributes:
      part: the layer that it belongs to: the named scope or region, else the user's function.
      role: one of `ROLES`: kept (made by the forward pass, read later), recomputed, forward (read by the
        forward pass only), backward, other.
      inside: whether it lives inside the loop or branch that runs at this position.
      region: the name of the region that made it (`recoup.checkpoint`), or that is inside the loop; "" for
        none.
    """

    bytes: int
    first: int
    last: int
    op: str
    value: str
    source: str
    part: str
    role: str
    inside: bool = False
    region: str = ""


@dataclass(frozen=True)
class Strip:
    """Memory over one program's order.

    Attributes:
      title: which program, such as "As it is".
      instrument: what produced it.
      fixed_bytes: arguments + outputs - aliased + constants: there from the beginning to the end.
      low_bytes, estimate_bytes, high_bytes: the predicted total.
      ops: the schedule; buffers: every temporary.
      opaque: operations that the model does not know.
    """

    title: str
    instrument: str
    fixed_bytes: int
    low_bytes: int
    estimate_bytes: int
    high_bytes: int
    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    opaque: tuple[str, ...] = ()

    def totals(self) -> list[int]:
        """Fixed bytes and live temporaries at each position."""
        change = [0] * (len(self.ops) + 1)
        for b in self.buffers:
            change[b.first] += b.bytes
            change[b.last + 1] -= b.bytes
        found, now = [], self.fixed_bytes
        for delta in change[:-1]:
            now += delta
            found.append(now)
        return found

    @property
    def peak_position(self) -> int:
        """The first position at which most bytes are alive."""
        totals = self.totals()
        return totals.index(max(totals)) if totals else 0


@dataclass(frozen=True)
class Rung:
    """One plan of the curve: its predicted total against its extra floating-point operations, a share."""

    low_bytes: int
    estimate_bytes: int
    high_bytes: int
    overhead: float
    chosen: bool = False


@dataclass(frozen=True)
class Figure:
    """A number as the page's head shows it.

    Attributes:
      what: its name; `value`: bytes, or a share for a unit of "share".
      instrument: what produced it; kind: "predicted", "compiled", "counted", "proved" or "given".
    """

    what: str
    value: float
    unit: str
    instrument: str
    kind: str


@dataclass(frozen=True)
class Picture:
    """What a report shows. Empty parts are left out of it.

    Attributes:
      title: the step's name; headline: one sentence that says what was found.
      budget_bytes, bound_bytes: 0 where there is none; bound: what sets the bound.
      flops: floating-point operations of the step as it is.
      work: what the curve's overhead counts; curve_instrument: what its peaks are from;
        mark: what the chosen rung is called.
      decisions: rows of a plan; residuals: rows of a residual list; arenas: compiled arenas by title.
    """

    title: str
    headline: str
    figures: tuple[Figure, ...] = ()
    budget_bytes: int = 0
    bound_bytes: int = 0
    bound: str = ""
    flops: float = 0.0
    work: str = "floating-point operations"
    curve_instrument: str = "predicted (upper end)"
    mark: str = "chosen"
    strips: tuple[Strip, ...] = ()
    curve: tuple[Rung, ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()
    residuals: tuple[Mapping[str, Any], ...] = ()
    arenas: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return asdict(self)

    def with_arena(self, title: str, arena: Any) -> "Picture":
        """This picture and the compiled arena of one of its programs."""
        return replace(self, arenas={**self.arenas, title: arena})
