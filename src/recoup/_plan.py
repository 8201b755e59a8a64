"""Plan: what is kept, recomputed and offloaded, as a person reads it and a file stores it. No JAX.

Idea: a plan is a list of repeats (which operations run again, before which one), a trade for each pair of
loops, and the values whose repeats are fetches from host memory; everything else here (decisions, sizes,
costs) explains it. A fingerprint of the step guards it: a plan applies to the program it was made for.
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recoup import _levers, _plan_file
from recoup._report import notebook
from recoup._report.advice import Advice
from recoup._report.of_plan import plan_picture, regions_note
from recoup._report.picture import Picture
from recoup._report.reported import Reported
from recoup._report.text import format_bytes, format_percent, heading, note, table
from recoup._scopes import region_names, region_of
from recoup.errors import PlanError

if TYPE_CHECKING:
    from recoup._evidence import Evidence


@dataclass(frozen=True)
class Decision:
    """What happens to one value between its first computation and its late use.

    Attributes:
      action: "keep", "recompute" or "offload".
      value: shape and dtype, such as "f32[8,128]".
      bytes: its size; over all iterations for a value of a loop.
      op: the operation that makes it, and `source`, the user's line.
      use: the first late operation that reads it, and `use_source`, its line.
      recipe: the operations that run again for it, last first (the first few).
      inputs: the kept values that the recipe starts from.
      flops: what its own operation costs again.
      iterations: 0 outside loops.
    """

    action: str
    value: str
    bytes: int
    op: str
    source: str
    scope: str = ""
    name: str = ""
    use: str = ""
    use_source: str = ""
    recipe: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    flops: float = 0.0
    iterations: int = 0

    @property
    def region(self) -> str:
        """The region (`recoup.checkpoint`) that it is made in; "" for none."""
        return region_of(self.scope)


@dataclass(frozen=True)
class LoopTrade:
    """For a pair of loops (operation indices): the body's values that are stacked, and what runs again.

    `segment` is 0, or the length of the segments into which both loops are cut.
    """

    forward: int
    backward: int
    kept: tuple[int, ...]
    recomputed: tuple[int, ...]
    segment: int = 0


@dataclass(frozen=True)
class Repeat:
    """Operations that run again right before operation `before`."""

    before: int
    ops: tuple[int, ...]


@dataclass(frozen=True)
class BodyPlan:
    """What runs again inside each iteration of the loop at operation `at`: as in a `Plan`, of its body."""

    at: int
    loops: tuple[LoopTrade, ...]
    repeats: tuple[Repeat, ...]
    bodies: "tuple[BodyPlan, ...]"


@dataclass(frozen=True)
class Plan(Reported):
    """A legal way to run a step, with its predicted memory and its extra work. Prints as a table.

    Attributes:
      budget_bytes: the budget it was made for; 0 for none.
      peak_bytes: predicted total per device (arguments + outputs - aliased + temporaries + constants), upper
        end.
      unplanned_bytes: the same for the step as it is.
      lower_bound_bytes: no plan for this step can be below.
      bound: the operation and line that set the lower bound.
      flops: floating-point operations of the step as it is; extra_flops: of what runs again; overhead: their
        share of the step's own.
      gathers: how many gathers of an array's parts from other devices run again (a loop's count once), and
        gathered_bytes: what each device receives through them in a step.
      moves: values that may lie in host memory: a copy of each is an operation, whose repeat fetches it.
      loops, repeats, bodies: what runs again: a `LoopTrade` for each pair of loops, operations by their
        index, and a `BodyPlan` for each loop that is planned inside.
      regions: how the step's own regions were treated; made_with: the versions of recoup and JAX.
      lever: the compiler's lever that the step is compiled with; "" for none.
      decisions: what happens to each value that waits for a late use.
      fingerprint: of the step that it was made for.
      evidence: the traced step and the plans not chosen, for `report` and `advise`; None for a plan read
        from a file.
    """

    budget_bytes: int
    peak_bytes: int
    unplanned_bytes: int
    lower_bound_bytes: int
    bound: str
    flops: float
    extra_flops: float
    fingerprint: str
    decisions: tuple[Decision, ...] = ()
    loops: tuple[LoopTrade, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    bodies: tuple[BodyPlan, ...] = ()
    moves: tuple[int, ...] = ()
    regions: str = "respect"
    gathers: int = 0
    gathered_bytes: int = 0
    lever: str = ""
    made_with: Mapping[str, str] = field(default_factory=dict)
    evidence: "Evidence | None" = field(default=None, repr=False, compare=False)

    @property
    def overhead(self) -> float:
        """Extra floating-point operations, as a share of the unplanned step's."""
        return self.extra_flops / self.flops if self.flops else 0.0

    @property
    def host(self) -> str:
        """The host memory that values are moved to, with its rates and where they are from; "" for none."""
        return self.made_with.get("host memory", "")

    @property
    def time(self) -> str:
        """Its predicted time beside the step's as it is, with the instrument; "" where that was not asked."""
        return self.made_with.get("time", "")

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that lie in host memory in between; each is moved there once, and back once or more."""
        return sum(d.bytes for d in self.decisions if d.action == "offload")

    @property
    def changes_nothing(self) -> bool:
        """Whether the step runs as it is, compiled as it is."""
        return not self.repeats and not self.loops and not self.bodies and not self.lever

    @property
    def price(self) -> str:
        """The extra work and the compiler's lever, in a few words."""
        work = f"{format_percent(self.overhead, signed=True)} FLOPs"
        return f"{work}, {self.lever}" if self.lever else work

    @property
    def region_names(self) -> tuple[str, ...]:
        """The names of the step's own regions; of a plan read from a file, those that decisions are in."""
        program = () if self.evidence is None else self.evidence.scopes
        return region_names((*program, *(d.scope for d in self.decisions)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored by `save`."""
        data = asdict(replace(self, evidence=None))
        del data["evidence"]
        data["made_with"] = dict(self.made_with)
        return {"format": _plan_file.FORMAT, **data, "overhead": self.overhead}

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the plan to a JSON file.

        Raises:
          FileExistsError: the file exists and `force` is not given.
          OSError: the file cannot be written; what was there stays.
        """
        _plan_file.write(path, self.to_json() + "\n", force=force)

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Reads a plan that `save` wrote.

        Raises:
          PlanError: the file is not a plan, or was written in another format.
        """
        return Plan.from_dict(_plan_file.read(path), str(path))

    @staticmethod
    def from_dict(data: Any, where: str = "the plan") -> "Plan":
        """A plan from plain data; the inverse of `to_dict`.

        Raises:
          PlanError: a field is missing, or is not what it should be.
        """
        return _plan_file.parse(data, where)

    def picture(self) -> Picture:
        """What `report` shows. A plan read from a file has its totals and decisions only."""
        picture = plan_picture(self)
        return picture if self.evidence is None else self.evidence.add_to(picture, self)

    def advise(self) -> Advice:
        """The regions to write by hand that come closest to this plan, and what they would give, predicted.

        Raises:
          PlanError: the plan was read from a file; plan the step anew.
        """
        if self.evidence is None:
            raise PlanError("a plan read from a file has no program to advise on; plan the step anew")
        return self.evidence.advise(self)

    def _repr_html_(self) -> str:
        strips = () if self.evidence is None else self.evidence.strips(self)
        most = max((max(s.totals(), default=0) for s in strips), default=0)
        return "".join(notebook.spark(s, most_bytes=most) for s in strips) + notebook.render(self)

    def __str__(self) -> str:
        return render(self)


_TITLES = {
    "recompute": "Recomputed, by source line",
    "offload": "Offloaded to the host, by source line",
    "keep": "Kept, by source line",
}


def render(plan: Plan, rows: int = 12) -> str:
    """The plan as text of at most 80 columns: totals, then the decisions by source line."""
    lines = [heading("Plan")]
    facts = [["predicted peak, total", format_bytes(plan.peak_bytes)]]
    if plan.budget_bytes:
        facts.append(["budget", format_bytes(plan.budget_bytes)])
    facts += [
        ["unplanned, predicted", format_bytes(plan.unplanned_bytes)],
        ["no plan can be below", format_bytes(plan.lower_bound_bytes)],
        ["extra FLOPs (counted)", format_percent(plan.overhead, signed=True)],
    ]
    if plan.gathers:
        times = f"{plan.gathers} {'gather' if plan.gathers == 1 else 'gathers'}"
        facts.append([f"gathered again by each device ({times})", format_bytes(plan.gathered_bytes)])
    if plan.offloaded_bytes:
        facts.append(["offloaded to the host", format_bytes(plan.offloaded_bytes)])
    lines.append(table(["", ""], facts, right=(1,)))
    if names := plan.region_names:
        lines.append(regions_note(names, plan.regions))
    if plan.time:
        lines.append(note(f"Time: {plan.time}"))
    if plan.host:
        lines.append(note(f"Host memory: {plan.host}"))
    if plan.lever:
        lines += textwrap.wrap(_levers.described(plan.lever), 80)
    if plan.changes_nothing:
        lines.append("Nothing is recomputed: the step runs as it is.")
        return "\n".join(lines)
    regions = any(decision.region for decision in plan.decisions)
    grouped: dict[tuple[str, str, str, str], list[Decision]] = {}
    for decision in plan.decisions:
        grouped.setdefault((decision.action, decision.source, decision.region, _made(decision)), []).append(
            decision
        )
    for action, title in _TITLES.items():
        chosen = [(k, v) for k, v in grouped.items() if k[0] == action]
        if not chosen:
            continue
        chosen.sort(key=lambda item: -sum(d.bytes for d in item[1]))
        lines += ["", heading(title)]
        body = [
            [
                _short(source, function=not regions),
                region,
                op,
                str(len(found)),
                format_bytes(sum(d.bytes for d in found)),
                f"{sum(d.flops for d in found) / plan.flops:.2%}"
                if action == "recompute" and plan.flops
                else "",
            ]
            for (_, source, region, op), found in chosen[:rows]
        ]
        lines.append(
            table(
                ["line", "region", "operation", "values", "bytes", "FLOPs" if action == "recompute" else ""],
                body,
                right=(3, 4, 5),
                optional=(1, 5),
            )
        )
        if len(chosen) > rows:
            rest = chosen[rows:]
            size = format_bytes(sum(d.bytes for _, found in rest for d in found))
            lines.append(f"... and {len(rest)} more lines, {size}")
    return "\n".join(lines)


def _made(decision: Decision) -> str:
    return decision.op + (f" {decision.name!r}" if decision.name else "")


def _short(source: str, *, function: bool) -> str:
    place, _, name = source.partition(" ")
    file = place.replace("\\", "/").rsplit("/", 1)[-1]
    return (file + (f" {name}" if name and function else "")) or "(no source)"
