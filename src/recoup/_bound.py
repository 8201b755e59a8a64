"""What no plan can go below. No JAX.

Idea: every argument and every result exists at the end, and while a heavy operation runs its operands and
results exist: those operands that the compiler cannot compute inside the operation (anything fusible might
be).
Limits: a simple bound; planners give better ones for chains and small graphs.
"""

from recoup._program import Program


def lower_bound(program: Program, tradable: frozenset[int] = frozenset()) -> tuple[int, str]:
    """Bytes (total: arguments, results, what is alive) and the operation with its line that sets them.

    `tradable` values may be left out of the program altogether: what loops stack for each other.
    """
    values, ops = program.values, program.ops
    donated = sum(values[v].bytes for v in program.donated)
    always = program.argument_bytes + program.constant_bytes
    ends = always + max(0, program.output_bytes - donated)
    best, where = ends, "arguments and results"
    results = set(program.outputs) | tradable
    for op in ops:
        if not op.heavy:
            continue
        held = sum(
            values[v].bytes
            for v in op.reads
            if values[v].producer >= 0 and not ops[values[v].producer].fusible and v not in results
        )
        made = sum(values[v].bytes for v in op.writes if v not in results)
        # Temporaries may sit in the memory of results that are not written yet, and of donated arguments.
        total = always - donated + max(held + made, 0)
        if total > best:
            best, where = total, f"{op.name} at {op.source}" if op.source else op.name
    return best, where
