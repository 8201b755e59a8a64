"""A plan, alone or with the compiler's certificate, as a Picture. No JAX."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from recoup import _levers, _signature
from recoup._report.picture import Figure, Picture
from recoup._report.text import format_bytes, format_percent, listing

if TYPE_CHECKING:
    from recoup._plan import Plan

BOUND = "counted from the program"
_NOT_SHOWN = frozenset(["instrument", "host memory", "time", *_signature.KINDS])
_DEFAULT = "memory model (predicted)"


def plan_picture(plan: "Plan") -> Picture:
    """What the plan itself says: totals and decisions."""
    model = plan.made_with.get("instrument", _DEFAULT)
    figures = [Figure("Planned peak", plan.peak_bytes, "bytes", model, "predicted")]
    if plan.budget_bytes:
        figures.append(Figure("Budget", plan.budget_bytes, "bytes", "given", "given"))
    figures += [
        Figure("As it is", plan.unplanned_bytes, "bytes", "memory model (predicted, upper end)", "predicted"),
        Figure("No plan is below", plan.lower_bound_bytes, "bytes", BOUND, "proved"),
        Figure("Extra FLOPs", plan.overhead, "share", "counted from the jaxpr", "counted"),
    ]
    if plan.gathers:
        how = "counted from the jaxpr, for each device"
        figures.append(Figure("Gathered again", plan.gathered_bytes, "bytes", how, "counted"))
    if plan.offloaded_bytes:
        figures.append(
            Figure("Offloaded", plan.offloaded_bytes, "bytes", "counted from the program", "counted")
        )
    if plan.changes_nothing:
        headline = f"Fits as it is: {format_bytes(plan.peak_bytes)} predicted. Nothing is recomputed."
    else:
        headline = (
            f"{format_bytes(plan.peak_bytes)} predicted, {_share(plan.peak_bytes, plan.unplanned_bytes)} of "
            f"the {format_bytes(plan.unplanned_bytes)} that the step takes as it is, "
            f"for {format_percent(plan.overhead, signed=True)} floating-point operations."
        )
    notes: tuple[str, ...] = ()
    if plan.region_names:
        notes += (regions_note(plan.region_names, plan.regions),)
    if plan.host:
        notes += (f"Host memory: {plan.host}.",)
    if plan.time:
        notes += (f"Time: {plan.time}.",)
    if plan.lever:
        notes += (_levers.described(plan.lever),)
    return Picture(
        title="Plan",
        headline=headline,
        figures=tuple(figures),
        budget_bytes=plan.budget_bytes,
        bound_bytes=plan.lower_bound_bytes,
        bound=plan.bound,
        flops=plan.flops,
        decisions=tuple(asdict(d) | {"region": d.region} for d in plan.decisions),
        notes=notes,
        made_with={key: value for key, value in plan.made_with.items() if key not in _NOT_SHOWN},
    )


def regions_note(names: Sequence[str], treated: str) -> str:
    """What a plan did with the step's own regions."""
    how = "as they are" if treated == "respect" else "planned anew"
    return listing(f"Regions of the step, {how}", names)


def certified_picture(picture: Picture, plan: "Plan", memory: Any, unplanned: Any, compiles: int) -> Picture:
    """The picture of a plan with what the compiler said of it.

    Args:
      memory, unplanned: of the fitted step and of the step as it is, as `Fitted.memory`; `unplanned` may
        be None.
      compiles: how many compilations it took.
    """
    total = memory.total_bytes
    figures = [Figure("Certified peak", total, "bytes", memory.instrument, "compiled")]
    for figure in picture.figures:
        if figure.what == "As it is" and unplanned is not None:
            figure = Figure("As it is", unplanned.total_bytes, "bytes", unplanned.instrument, "compiled")
        elif figure.what == "Planned peak":
            figure = replace(figure, what="Predicted peak")
        figures.append(figure)
    before = unplanned.total_bytes if unplanned is not None else plan.unplanned_bytes
    takes = "takes" if unplanned is not None else "is predicted to take"
    times = "one compilation" if compiles == 1 else f"{compiles} compilations"
    if plan.changes_nothing:
        headline = f"Fits as it is: {format_bytes(total)}, certified by the compiler. Nothing is recomputed."
    else:
        headline = (
            f"{format_bytes(total)}, certified by the compiler: {_share(total, before)} of the "
            f"{format_bytes(before)} that the step {takes} as it is, "
            f"for {format_percent(plan.overhead, signed=True)} floating-point operations and {times}."
        )
    return replace(picture, headline=headline, figures=tuple(figures))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def arena_data(arena: Any) -> Mapping[str, Any]:
    """A compiled arena as a report shows it: the parts, its occupants at the peak, and the
    bytes alive at each instruction of the compiler's own schedule."""
    data: dict[str, Any] = arena.to_dict()
    for row, occupant in zip(data["occupants"], arena.occupants, strict=True):
        row["region"] = occupant.region
    data["moments_bytes"] = [moment.bytes for moment in arena.moments]
    del data["moments"]
    return data
