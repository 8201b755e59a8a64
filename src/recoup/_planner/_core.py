"""The inner loops of the planner: one option a zone, a schedule from an assignment, the memory along it.

They run some hundred times for every plan, so they work on flat arrays of machine integers. This file is
the only implementation: Python when no compiler was there at installation, otherwise compiled by Cython with
the C types of `_core.pxd`, with the same results. `options`, `assign`, `machine` and `restore` say what
they compute.
Limits: 32-bit indices.
"""

from array import array

from recoup._tables import Tables


def arrange(
    tables: Tables,
    window: "array[int]",
    zone: "array[int]",
    needs_starts: "array[int]",
    needs: "array[int]",
    level: bytearray,
    schedule: list[int],
    owner: list[int],
) -> None:
    """Fills `schedule` with operations, and `owner` with the zone whose backward each belongs to (-1: none).

    Args:
      tables: the program.
      window, zone: of each operation.
      needs_starts, needs: window w reads the earlier values needs[needs_starts[w]:needs_starts[w + 1]].
      level: of each value: 0 kept, 1 held once it is recomputed, 2 held in its own zone only.
    """
    reads_starts, reads = tables.reads_starts, tables.reads
    writes_starts, writes, producer = tables.writes_starts, tables.writes, tables.producer
    n = len(window)
    available = bytearray(len(level))
    cloned = array("i", bytes(4 * (n + 1)))  # the window that last cloned an operation, + 1
    stack = array("i", bytes(4 * (len(needs) + len(reads) + 1)))
    current = 0
    now = -1
    for i in range(n):
        if window[i] != current:
            current = window[i]
            depth = 0
            deepest = -1
            for e in range(needs_starts[current], needs_starts[current + 1]):
                v = needs[e]
                if level[v] and not available[v]:
                    stack[depth] = v
                    depth += 1
                    if zone[producer[v]] > deepest:
                        deepest = zone[producer[v]]
            if depth:
                now = deepest
                clones = []
                while depth:
                    depth -= 1
                    v = stack[depth]
                    p = producer[v]
                    if p < 0 or cloned[p] == current + 1 or available[v] or level[v] == 0:
                        continue
                    cloned[p] = current + 1
                    clones.append(p)
                    for e in range(reads_starts[p], reads_starts[p + 1]):
                        stack[depth] = reads[e]
                        depth += 1
                clones.sort()
                for p in clones:
                    schedule.append(p)
                    owner.append(now)
                    for e in range(writes_starts[p], writes_starts[p + 1]):
                        v = writes[e]
                        # What belongs to a zone that is passed through on the way to a later one is not held.
                        if level[v] == 1 or zone[p] >= now:
                            available[v] = 1
        schedule.append(i)
        owner.append(now if window[i] > 0 else -1)


def step_windows(schedule: "array[int]", window: "array[int]", found: "array[int]") -> None:
    """Fills `found` with the window of each step: of a repeat that of the first computation it precedes."""
    steps = len(schedule)
    seen = bytearray(len(window))
    first = bytearray(steps)
    for step in range(steps):
        if not seen[schedule[step]]:
            seen[schedule[step]] = 1
            first[step] = 1
    current = 0
    for step in range(steps - 1, -1, -1):
        if first[step]:
            current = window[schedule[step]]
        found[step] = current


def follow(
    tables: Tables,
    schedule: "array[int]",
    window: "array[int]",
    size: "array[int]",
    end: "array[int]",
    live: "array[int]",
) -> int:
    """Fills, for each step, the bytes of its buffer (0: none), its last reading step, and what is alive.

    Args:
      tables: the program.
      schedule: operation indices.
      window: of each step.

    Returns:
      -1, or the first step that reads a value that is not there.
    """
    starts, ids = tables.starts, tables.ids
    fusible, absorbs, dear = tables.fusible, tables.absorbs, tables.dear
    own, workspace = tables.own, tables.workspace
    steps = len(schedule)
    made = array("i", bytes(4 * len(own)))  # the step that computed what a use reads now, + 1
    edge_starts = array("i", bytes(4 * (steps + 1)))
    total = 0
    for step in range(steps):
        op = schedule[step]
        total += starts[op + 1] - starts[op]
        edge_starts[step + 1] = total
    edges = array("i", bytes(4 * (total + 1)))
    buffered = bytearray(steps)
    shared = bytearray(steps)
    k = 0
    for step in range(steps):
        op = schedule[step]
        if not fusible[op]:
            buffered[step] = 1
        for e in range(starts[op], starts[op + 1]):
            source = made[ids[e]] - 1
            if source < 0:
                return step
            edges[k] = source
            k += 1
            # A fusible value has a buffer if a heavy operation reads it, if it is dear and read twice, or if
            # it waits for a later window.
            if not buffered[source]:
                if (
                    not absorbs[op]
                    or window[source] != window[step]
                    or (shared[source] and dear[schedule[source]])
                ):
                    buffered[source] = 1
                shared[source] = 1
        made[op] = step + 1
    for step in range(steps):
        end[step] = -1
    change = array("q", bytes(8 * (steps + 1)))
    head = array("i", bytes(4 * (steps + 1)))  # the buffers that end at a step, + 1, linked by `after`
    after = array("i", bytes(4 * (steps + 1)))
    for step in range(steps - 1, -1, -1):
        last = end[step]
        if last < step:
            last = step
        end[step] = last
        size[step] = 0
        reach = last
        if buffered[step]:
            size[step] = own[schedule[step]]
            change[step] += size[step]
            change[last + 1] -= size[step]
            if last != step:
                after[step] = head[last]
                head[last] = step + 1
            reach = step
        for k in range(edge_starts[step], edge_starts[step + 1]):
            source = edges[k]
            if reach > end[source]:
                end[source] = reach
    alive = 0
    for step in range(steps):
        op = schedule[step]
        alive += change[step]
        live[step] = alive + workspace[op]
        # An elementwise result takes the memory of an operand of its size that it is the last to read.
        if buffered[step] and fusible[op] and size[step]:
            other = head[step]
            while other:
                if size[other - 1] == size[step]:
                    live[step] -= size[step]
                    break
                other = after[other - 1]
    return -1


def cheapest(
    starts: "array[int]",
    kept: "array[int]",
    high: "array[int]",
    cost: "array[float]",
    peak: int,
    unit: float,
    bins: int,
    picked: "array[int]",
) -> int:
    """Fills `picked` with the option of each zone that are cheapest together, by a dynamic program.

    Args:
      starts: zone z has the options starts[z]:starts[z + 1].
      kept: of each option, the bins of held memory that it adds.
      high: of each option, the most bytes alive meanwhile, less what earlier zones hold.
      cost: of each option.
      peak: held and high together must be within it.
      unit: bytes a bin.
      bins: the most bins.

    Returns:
      1, or 0 where no choice is within the peak.
    """
    zones = len(starts) - 1
    width = bins + 1
    best = array("d", bytes(8 * width))
    after = array("d", bytes(8 * width))
    pick = array("h", bytes(2 * width * zones + 2))
    none = 1e300
    for b in range(1, width):
        best[b] = none
    reach = 0  # the most bins held so far
    for z in range(zones):
        for b in range(width):
            after[b] = none
        furthest = 0
        for k in range(starts[z], starts[z + 1]):
            if high[k] > peak:
                continue
            most = int((peak - high[k]) / unit)
            if most > bins - kept[k]:
                most = bins - kept[k]
            if most > reach:
                most = reach
            for b in range(most + 1):
                if best[b] + cost[k] < after[b + kept[k]]:
                    after[b + kept[k]] = best[b] + cost[k]
                    pick[z * width + b + kept[k]] = k - starts[z]
                    if b + kept[k] > furthest:
                        furthest = b + kept[k]
        reach = furthest
        best, after = after, best
    held = 0
    for b in range(width):
        if best[b] < best[held]:
            held = b
    if best[held] >= none:
        return 0
    for z in range(zones - 1, -1, -1):
        picked[z] = pick[z * width + held]
        held -= kept[starts[z] + picked[z]]
    return 1


def repeats_worth(
    tables: Tables,
    schedule: "array[int]",
    early_read: "array[int]",
    last: "array[int]",
    saved: "array[float]",
) -> None:
    """Finds what keeping an operation's first results would save: its repeats, and those only they need.

    Args:
      tables: the program.
      schedule: operation indices.
      early_read: filled, for each operation, with the last step that reads its first computation, or -1.
      last: filled with its last repeat, or -1.
      saved: filled with the cost that goes if none of its repeats need run.
    """
    starts, ids, cost = tables.starts, tables.ids, tables.cost
    steps = len(schedule)
    count = len(early_read)
    made = array("i", bytes(4 * count))  # the step that computed what a use reads now, + 1
    uses = array("i", bytes(4 * (steps + 1)))
    user = array("i", bytes(4 * (steps + 1)))
    again = bytearray(steps + 1)
    gain = array("d", bytes(8 * (steps + 1)))  # the cost that goes if a step need not run
    for op in range(count):
        early_read[op] = -1
        last[op] = -1
    for step in range(steps):
        op = schedule[step]
        for e in range(starts[op], starts[op + 1]):
            source = ids[e]
            at = made[source] - 1
            uses[at] += 1
            user[at] = step
            if not again[at]:
                early_read[source] = step
        if made[op]:
            again[step] = 1
            last[op] = step
        made[op] = step + 1
    for step in range(steps):
        if again[step]:
            gain[step] += cost[schedule[step]]
            if uses[step] == 1 and again[user[step]]:
                gain[user[step]] += gain[step]
    for step in range(steps):
        if again[step]:
            saved[schedule[step]] += gain[step]
