"""Advice for those who wrap by hand: what to put in regions, what to keep by name, what that gives. No
JAX."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from recoup._report import notebook
from recoup._report.text import format_bytes, format_percent, heading, listing, note, table

INSTRUMENT = "memory model (predicted on the traced step rewritten with these regions) and counted FLOPs"


@dataclass(frozen=True)
class Keep:
    """Values to keep by name inside a region: `count` of them, from one line."""

    name: str
    source: str
    op: str
    value: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Wrap:
    """What to put in regions.

    Attributes:
      function: the user's function, or "" for a range of lines.
      source: where it is defined, or the lines, "file:first" or "file:first-last".
      regions: how many of its calls (in order) to wrap, of `calls` in all.
      keeps: what to keep by name inside.
      loop: how many iterations, if the function is the body of a loop; else 0.
      segment: iterations that go into one region of a loop cut into segments; 0 for one region each.
    """

    function: str
    source: str
    regions: int
    calls: int
    keeps: tuple[Keep, ...] = ()
    loop: int = 0
    segment: int = 0


@dataclass(frozen=True)
class Advice:
    """Regions that come closest to a plan, and what they would give. Prints as a table.

    Attributes:
      wraps: what to wrap; empty where nothing helps.
      low_bytes, estimate_bytes, high_bytes: predicted total with these regions.
      overhead: extra floating-point operations, as a share of the step's own.
      regions: names of the regions that the step has already; they are left as they are.
      plan_bytes, plan_overhead, unplanned_bytes, budget_bytes: of the plan that it is to come close to.
    """

    wraps: tuple[Wrap, ...]
    low_bytes: int
    estimate_bytes: int
    high_bytes: int
    overhead: float
    plan_bytes: int
    plan_overhead: float
    unplanned_bytes: int
    budget_bytes: int
    regions: tuple[str, ...] = ()
    instrument: str = INSTRUMENT

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def to_json(self) -> str:
        """The advice as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def _repr_html_(self) -> str:
        return notebook.render(self)

    def __str__(self) -> str:
        lines = [heading("Regions by hand that come closest")]
        if not self.wraps:
            lines.append("  None: no function or range of lines found lowers the predicted peak.")
        if self.regions:
            lines.append(listing("  Left as they are, the regions that the step has", self.regions))
        for wrap in self.wraps:
            lines += _instructions(wrap)
        rows = [
            ["as it is", format_bytes(self.unplanned_bytes), format_percent(0.0, signed=True)],
            ["with these regions", format_bytes(self.high_bytes), format_percent(self.overhead, signed=True)],
            ["the plan", format_bytes(self.plan_bytes), format_percent(self.plan_overhead, signed=True)],
        ]
        if not self.wraps:
            del rows[1]
        if self.budget_bytes:
            rows.append(["budget", format_bytes(self.budget_bytes), ""])
        lines += ["", table(["", "peak, predicted", "extra FLOPs"], rows, right=(1, 2))]
        lines.append(note("Instrument: memory model and FLOP count on the traced step rewritten with these"))
        lines.append(note("regions (upper end; nothing compiled)"))
        return "\n".join(lines)


def _instructions(wrap: Wrap) -> list[str]:
    place = _file(wrap.source)
    what = (
        f"{wrap.function}() at {place}" if wrap.function else f"at {place}" if wrap.loop else f"lines {place}"
    )
    if wrap.loop:
        lines = [f"  In the loop of {wrap.loop} iterations, wrap its body {what}:"]
    elif wrap.regions < wrap.calls:
        lines = [f"  Wrap the first {wrap.regions} of {wrap.calls} calls of {what}:"]
    elif wrap.calls > 1:
        lines = [f"  Wrap each of the {wrap.calls} calls of {what}:"]
    else:
        lines = [f"  Wrap {what}:"]
    lines.append(f"    {_call(wrap.function)}")
    if wrap.segment:
        count = -(-wrap.loop // wrap.segment)
        lines.append(f"    and run the loop with recoup.scan(..., checkpoints={count})")
    if wrap.keeps:
        lines.append("  and keep inside it, with recoup.keep(value, name):")
        rows = [
            [k.name, _file(k.source).partition(" ")[0], k.value, k.count, format_bytes(k.bytes)]
            for k in wrap.keeps
        ]
        lines.append(table(["name", "line", "value", "count", "bytes"], rows, right=(3, 4), indent=4))
    return lines


def _call(function: str) -> str:
    owner, _, name = function.rpartition(".")
    if not owner:
        name = name or "part"
        return f"{name} = recoup.checkpoint({name})"
    instance = owner.rpartition(".")[2].lower()
    method = instance if name == "__call__" else f"{instance}.{name}"
    return f"recoup.checkpoint({method})(...) for {method}(...)  # see docs/regions.md"


def _file(source: str) -> str:
    return source.replace("\\", "/").rsplit("/", 1)[-1]
