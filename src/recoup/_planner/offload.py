"""Moving values to host memory and back, as one more way to have them late. No JAX.

Idea: a value that may move becomes two: what its operation writes, which lies in host memory and takes
nothing on the device, and a copy on the device, made by an operation of its own (OFFLOAD) that reads nothing
else; all readers read the copy. The first run of that operation is the value as it was computed, a repeat
fetches it again. So every planner chooses between holding a copy and fetching it as it chooses between
holding and recomputing, and the machine executes the schedule unchanged.
Which values: a minimum cut finds the fewest bytes from which everything late can be had without a heavy
operation: what is cheap to recompute is not worth the link. A simulation of the link (stores in the order of
computation, over before the epoch ends; fetches likewise, seen from the end) finds those that move while the
step computes: they are nearly free. Beyond them each pays for its bytes, both ways.
Source: the idle-time criterion of vDNN (Rhu et al., MICRO 2016); minimum cuts as in `mincut`.
Limits: the link is a rate in each direction; times are the program's costs over the device's rate.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from recoup._host import HostMemory
from recoup._planner.layout import Layout
from recoup._planner.machine import execute
from recoup._planner.mincut import Network
from recoup._program import OFFLOAD, Program

_FREE = 0.01  # of its price is charged for what moves while the step computes: less is still better


def candidates(program: Program, plan: Layout, host: HostMemory) -> list[int]:
    """The values that are worth moving if anything is, in the order in which they are computed."""
    last = max(plan.epoch, default=0)
    light = [op.pure and not op.heavy and plan.epoch[i] < last for i, op in enumerate(program.ops)]
    kept = Network(program, plan.crossing, recomputable=light, free=plan.free).kept(0.0)
    values, results = program.values, set(program.outputs)
    return sorted(
        v
        for v in kept
        if values[v].bytes >= host.smallest_bytes
        and v not in results
        and not values[v].text.startswith("key")
    )


def in_time(program: Program, plan: Layout, found: Sequence[int], host: HostMemory) -> list[int]:
    """Those of `found` that the link can take away and bring back while the step computes."""
    clock = np.concatenate([[0.0], np.cumsum([op.cost for op in program.ops])]) / host.flops_per_second
    needed = _first_needs(program, plan)
    epochs = np.asarray(plan.epoch)
    stored: list[tuple[float, int]] = []
    link = 0.0
    for v in found:  # in the order of computation
        producer = program.values[v].producer
        done = max(link, clock[producer + 1]) + program.values[v].bytes / host.bytes_per_second
        ends = int(np.searchsorted(epochs, epochs[producer], side="right"))
        if done <= clock[ends] and needed[v] < len(program.ops):
            link = done
            stored.append((clock[needed[v]], v))
    accepted: list[int] = []
    link = float("inf")
    for need, v in sorted(stored, reverse=True):
        begin = min(link, need) - program.values[v].bytes / host.bytes_per_second
        late = int(np.searchsorted(epochs, epochs[program.values[v].producer], side="right"))
        if begin >= clock[late]:
            link = begin
            accepted.append(v)
    return sorted(accepted)


def _first_needs(program: Program, plan: Layout) -> list[int]:
    """For each value the first late operation that reads it, or what is cheaply made of it."""
    count = len(program.ops)
    need = [count] * len(program.values)
    for i in range(count - 1, -1, -1):
        for v in program.ops[i].reads:
            producer = program.values[v].producer
            if producer < 0:
                continue
            if plan.epoch[i] > plan.epoch[producer]:
                need[v] = min(need[v], i)
            elif not program.ops[i].heavy:
                need[v] = min(need[v], *(need[w] for w in program.ops[i].writes))
    return need


def priced(program: Program, moves: Collection[int], host: HostMemory, *, free: bool) -> Program:
    """The program with operations `moves` (each the identity) as moves to the host and back.

    Args:
      program: what the moves are in.
      moves: indices of operations that copy a value which nothing else reads.
      host: what moving costs.
      free: whether all of them together move while the step computes.
    """
    ops, values = list(program.ops), list(program.values)
    price = 2 * host.flops_per_byte * (_FREE if free else 1.0)
    for i in moves:
        (v,), (copy,) = ops[i].reads, ops[i].writes
        size = values[copy].bytes
        maker = values[v].producer
        # The machine counts the value where it is copied; it is there while it is computed, too.
        ops[maker] = replace(ops[maker], workspace_bytes=ops[maker].workspace_bytes + size)
        values[copy] = replace(values[copy], name=values[v].name)
        values[v] = replace(values[v], bytes=0)
        ops[i] = replace(
            ops[i], name=OFFLOAD, cost=price * size, flops=0.0, pure=True, fusible=False, heavy=False,
            dear=False, source=ops[maker].source, scope=ops[maker].scope,
        )  # fmt: skip
    return replace(program, ops=tuple(ops), values=tuple(values))


def ahead(program: Program, plan: Layout, schedule: Sequence[int], host: HostMemory) -> tuple[int, ...]:
    """The schedule with each fetch begun one window or more before the one that needs it.

    As many as take the time of its bytes, within the epoch: a fetch that begins where it is needed is waited
    for.
    """
    windows = max(plan.window, default=0) + 1
    time = np.zeros(windows)
    opens = [-1] * windows  # the first operation of each window
    for i, op in enumerate(program.ops):
        time[plan.window[i]] += op.cost / host.flops_per_second
        if opens[plan.window[i]] < 0:
            opens[plan.window[i]] = i
    before: dict[int, list[int]] = {}
    group: list[int] = []
    done = bytearray(len(program.ops))
    for o in schedule:
        if done[o]:
            group.append(o)
            continue
        done[o] = 1
        for again in group:
            at = o
            if program.ops[again].name == OFFLOAD:
                takes = program.values[program.ops[again].writes[0]].bytes / host.bytes_per_second
                w = plan.window[o]
                while takes > 0 and w > 1 and plan.epoch[opens[w - 1]] == plan.epoch[o]:
                    w -= 1
                    takes -= time[w]
                at = o if w == plan.window[o] else opens[w]
            before.setdefault(at, []).append(again)
        group = []
    return tuple(i for o in range(len(program.ops)) for i in (*sorted(before.get(o, ())), o))


def run(
    program: Program, plan: Layout, schedule: Sequence[int], host: HostMemory, free_bytes: int
) -> tuple[int, float]:
    """The peak of a schedule by the machine, and its cost: recomputations, and what of the moves the link
    cannot carry while the step computes (`free_bytes`)."""
    peak_bytes = execute(program, schedule, plan.windows).peak_bytes
    work = sum(
        (times - 1) * program.ops[o].cost
        for o, times in Counter(schedule).items()
        if program.ops[o].name != OFFLOAD
    )
    moved = _fetched_bytes(program, schedule)
    dear = max(0, moved - free_bytes)
    return peak_bytes, work + 2 * host.flops_per_byte * (_FREE * (moved - dear) + dear)


def waiting(program: Program, schedule: Sequence[int], host: HostMemory) -> float:
    """What it costs to wait for every fetch of a schedule."""
    return host.flops_per_byte * _fetched_bytes(program, schedule)


def _fetched_bytes(program: Program, schedule: Sequence[int]) -> int:
    return sum(
        (times - 1) * program.values[program.ops[o].writes[0]].bytes
        for o, times in Counter(schedule).items()
        if program.ops[o].name == OFFLOAD
    )
