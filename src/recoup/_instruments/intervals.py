"""Time on several threads added up correctly. No JAX.

Idea: events of a profile overlap: a loop's event contains its body's, and threads work at once. Summing
durations counts such time twice or more. On one thread each instant belongs to the innermost event alone
(the one begun last), so that the operations' times add up to the union of the intervals; over threads,
busy times add to thread-seconds and never exceed threads times wall.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One timed event of a thread; nanoseconds."""

    thread: str
    name: str
    start_ns: float
    end_ns: float


def clip(events: Iterable[Event], start_ns: float, end_ns: float) -> list[Event]:
    """The parts of events inside a region; events wholly outside it are left out."""
    return [
        Event(e.thread, e.name, max(e.start_ns, start_ns), min(e.end_ns, end_ns))
        for e in events
        if e.end_ns > start_ns and e.start_ns < end_ns
    ]


def union_ns(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of a union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > until:
            total += end - max(start, until)
            until = end
    return total


def busy_by_thread(events: Sequence[Event]) -> dict[str, float]:
    """For each thread the nanoseconds in which at least one event runs."""
    threads: dict[str, list[tuple[float, float]]] = {}
    for e in events:
        threads.setdefault(e.thread, []).append((e.start_ns, e.end_ns))
    return {thread: union_ns(spans) for thread, spans in threads.items()}


def busy_by_name(events: Sequence[Event]) -> dict[str, float]:
    """For each name its own nanoseconds: on each thread an instant goes to the event begun last.

    The values add up to the sum of `busy_by_thread`.
    """
    threads: dict[str, list[Event]] = {}
    for e in events:
        threads.setdefault(e.thread, []).append(e)
    totals: dict[str, float] = {}
    for found in threads.values():
        _own_times(found, totals)
    return totals


def _own_times(events: Sequence[Event], totals: dict[str, float]) -> None:
    """Adds the times of one thread's events: a stack of the running ones, the innermost on top."""
    ordered = sorted(events, key=lambda e: (e.start_ns, -e.end_ns))
    stack: list[Event] = []
    now = float("-inf")

    def advance(until: float) -> None:
        nonlocal now
        while stack and now < until:
            top = stack[-1]
            if top.end_ns <= now:
                stack.pop()
                continue
            step = min(top.end_ns, until)
            totals[top.name] = totals.get(top.name, 0.0) + step - now
            now = step
        now = max(now, until)

    for event in ordered:
        advance(event.start_ns)
        stack.append(event)
    advance(max((e.end_ns for e in ordered), default=now))
