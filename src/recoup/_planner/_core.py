"""The two inner loops of the planner: a schedule from an assignment, and the memory along a schedule.

They run some hundred times for every plan, so they work on flat arrays of machine integers. This file is
the only implementation: Python when no compiler was there at installation, otherwise compiled by Cython with
the C types of `_core.pxd`, with the same results. `assign` and `machine` say what they compute.
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
