"""The arena's layout: where each buffer goes, and so how large the arena is with its gaps.

Buffers are placed one after the other, each in the smallest gap that is free throughout its life,
or on top. Two orders are tried, largest first and longest-lived first, and the smaller arena is
kept. (The compiler's heap simulator: global decreasing-size best fit, spatial and temporal. Its
clock ticks at each allocation, each free and each hand-over of a buffer.)

Each buffer is held against all that are placed: compiled where there was a compiler at installation.
"""

from array import array
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
    first = _place(size[spatial], start[spatial], end[spatial])
    if first <= floor_bytes:
        return first, first
    temporal = np.lexsort((rank, -size, start - end))
    return min(first, _place(size[temporal], start[temporal], end[temporal])), first


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


def _place(size: Any, start: Any, end: Any) -> int:
    """Places buffers one after the other; returns the top. All three by buffer, in the order of placing."""
    n = len(size)
    # what is placed, by address; equal addresses in the order of placing
    low, high = array("q", bytes(8 * n)), array("q", bytes(8 * n))
    begin, finish = array("q", bytes(8 * n)), array("q", bytes(8 * n))
    top = 0
    for i in range(n):
        need, first, last = size[i], start[i], end[i]
        reach = 0  # what is taken so far, going up
        at = 0
        best = -1
        for j in range(i):
            if begin[j] <= last and finish[j] >= first:
                gap = low[j] - reach
                if gap >= need and (best < 0 or gap < best):
                    best, at = gap, reach
                if high[j] > reach:
                    reach = high[j]
        if best < 0:
            at = reach
        k = i
        while k > 0 and low[k - 1] > at:
            low[k], high[k], begin[k], finish[k] = low[k - 1], high[k - 1], begin[k - 1], finish[k - 1]
            k -= 1
        low[k], high[k], begin[k], finish[k] = at, at + need, first, last
        if at + need > top:
            top = at + need
    return top
