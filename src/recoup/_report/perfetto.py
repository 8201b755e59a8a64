"""A Picture as a trace for Perfetto (ui.perfetto.dev): memory as counters, operations and buffers as
slices. No JAX.

Source: the Trace Event Format in its JSON form, which Perfetto reads: complete events (X), counters (C),
nestable async events (b, e) and metadata (M);
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
Limits: a position in the schedule is drawn as one microsecond. It is an order, not a time.
"""

import json
from typing import Any

from recoup._report.picture import ROLES, Picture, Strip

OPERATIONS = 1  # thread ids
TICK_US = 1


def render(picture: Picture) -> str:
    """The trace as JSON text."""
    events: list[dict[str, Any]] = []
    for number, strip in enumerate(picture.strips, start=1):
        _strip(strip, number, events)
    other = {
        "title": picture.title,
        "headline": picture.headline,
        "time": "1 us is one operation of the order",
    }
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {**other, **picture.made_with}},
        separators=(",", ":"),
    )


def _strip(strip: Strip, pid: int, events: list[dict[str, Any]]) -> None:
    def event(ph: str, name: str, at: int, **more: Any) -> None:
        events.append({"ph": ph, "name": name, "pid": pid, "ts": at * TICK_US, **more})

    event("M", "process_name", 0, args={"name": f"{strip.title}, {strip.instrument}"})
    event("M", "process_sort_index", 0, args={"sort_index": pid})
    event("M", "thread_name", 0, tid=OPERATIONS, args={"name": "operations"})
    for at, op in enumerate(strip.ops):
        args = {"line": op.source, "phase": op.phase}
        event("X", op.name, at, tid=OPERATIONS, dur=TICK_US, cat=op.phase, args=args)
    end = len(strip.ops)
    changes = [dict.fromkeys(ROLES, 0) for _ in range(end + 1)]
    for b in strip.buffers:
        changes[b.first][b.role] += b.bytes
        changes[b.last + 1][b.role] -= b.bytes
    now = dict.fromkeys(ROLES, 0)
    for at, change in enumerate(changes):
        if at and not any(change.values()):
            continue
        for role, delta in change.items():
            now[role] += delta
            if delta or not at:
                event("C", f"{role} (bytes)", at, args={"bytes": now[role]})
        event("C", "memory (bytes)", at, args={"bytes": strip.fixed_bytes + sum(now.values())})
    for number, b in enumerate(strip.buffers):
        ids: dict[str, Any] = {"cat": b.role, "id": f"{pid}.{number}", "tid": OPERATIONS}
        name = f"{b.value} {b.op}"
        about: dict[str, Any] = {"bytes": b.bytes, "line": b.source, "layer": b.part, "role": b.role}
        if b.region:
            about["region"] = b.region
        event("b", name, b.first, **ids, args=about)
        event("e", name, b.last + 1, **ids)
