"""The arena's layout: where each buffer goes, and so how large the arena is with its gaps.

Buffers are placed one after the other, each in the smallest gap that is free throughout its life,
or on top. Two orders are tried, largest first and longest-lived first, and the smaller arena is
kept. (The compiler's heap simulator: global decreasing-size best fit, spatial and temporal. Its
clock ticks at each allocation, each free and each hand-over of a buffer.)
"""

from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """What happens to buffers while one operation runs. Buffers are numbered within their computation."""

    inside: list["Plan"]  # computations that run in it (a loop's body)
    allocate: list[tuple[int, int]]  # (buffer, the buffer it takes over, or -1)
    handed: list[int]  # buffers that go on under another value (updated in place, carried by a loop)
    free: list[int]


class Plan(NamedTuple):
    """The buffers of one computation: sizes by number, and what happens at each step."""

    sizes: list[int]
    ranks: list[int]
    steps: list[Step]


def heap_bytes(plan: Plan, floor_bytes: int = 0) -> tuple[int, int]:
    """The arena for a program's buffers, in bytes, and what it is if only the first layout is as it is here.

    `floor_bytes`: a known lower bound (the largest sum of live buffers); a layout that reaches it is kept.
    """
    spans: list[list[int]] = []
    _walk(plan, 0, spans)
    if not spans:
        return 0, 0
    table = np.array(spans, dtype=np.int64)
    size, start, own, end, rank = (table[:, k] for k in range(5))
    spatial = np.lexsort((rank, start - own, -size))
    first = _place(size, start, end, spatial)
    if first <= floor_bytes:
        return first, first
    temporal = np.lexsort((rank, -size, start - end))
    return min(first, _place(size, start, end, temporal)), first


def _walk(plan: Plan, clock: int, spans: list[list[int]]) -> int:
    """Appends [bytes, start, end of its first value, end, rank] for each buffer; returns the clock."""
    span: dict[int, list[int]] = {}
    for step in plan.steps:
        for buffer, over in step.allocate:
            if over < 0:
                made = [plan.sizes[buffer], clock, -1, -1, plan.ranks[buffer]]
                spans.append(made)
                span[buffer] = made
            else:
                old = span[buffer] = span[over]
                if old[2] < 0:
                    old[2] = clock
                clock += 1
            clock += 1
        for buffer in step.handed:
            if span[buffer][2] < 0:
                span[buffer][2] = clock
            clock += 1
        for part in step.inside:
            clock = _walk(part, clock, spans)
        for buffer in step.free:
            old = span[buffer]
            if old[2] < 0:
                old[2] = clock
            old[3] = clock
            clock += 1
    return clock


def _place(size: Any, start: Any, end: Any, order: Any) -> int:
    n = len(order)
    size, start, end = size[order], start[order], end[order]
    low = np.zeros(n, np.int64)
    high = np.zeros(n, np.int64)
    top = 0
    for i in range(n):
        need = int(size[i])
        hit = np.flatnonzero((start[:i] <= end[i]) & (end[:i] >= start[i]))
        if not len(hit):
            at = 0
        else:
            rank = np.argsort(low[hit], kind="stable")
            hit = hit[rank]
            lows = low[hit]
            reach = np.maximum.accumulate(high[hit])
            # gaps: before the first, and between what is reached so far and the next
            gap_low = np.concatenate(([0], reach[:-1]))
            gaps = lows - gap_low
            fits = np.flatnonzero(gaps >= need)
            at = int(gap_low[fits[np.argmin(gaps[fits])]]) if len(fits) else int(reach[-1])
        low[i], high[i] = at, at + need
        top = max(top, at + need)
    return top
