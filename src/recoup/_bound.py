"""What no plan can go below. No JAX.

Idea: every argument that is read and every result has a buffer, whatever the plan; and while a loop runs, so
have the arrays that it carries and those that it stacks.
Limits: a simple bound, and a safe one. Operands and results of other operations are not counted: the compiler
may compute a product inside the reduction that reads it. Planners give better bounds for graphs (see
`solve`).
"""

from recoup._program import Program

_LOOPS = ("scan", "while")


def lower_bound(program: Program, tradable: frozenset[int] = frozenset()) -> tuple[int, str]:
    """Bytes (arguments, results, what is alive) and the operation with its line that sets them.

    Args:
      program: the unplanned step.
      tradable: values that a plan may leave out of the program: what loops stack for each other.
    """
    values = program.values
    results = set(program.outputs)
    read = [v for v in (*program.inputs, *program.constants) if program.readers[v] or v in results]
    always = sum(values[v].bytes for v in read)
    donated = sum(values[v].bytes for v in program.donated if v in set(read))
    best, where = always + max(0, program.output_bytes - donated), "arguments and results"
    for op in program.ops:
        if op.name not in _LOOPS:
            continue
        made = sum(values[v].bytes for v in op.writes if v not in results and v not in tradable)
        # Temporaries may sit in the memory of results that are not written yet, and of donated arguments.
        total = always - donated + made
        if total > best:
            best, where = total, f"{op.name} at {op.source}" if op.source else op.name
    return best, where
