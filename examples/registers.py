"""Registers: the planner on a problem without neural networks, the classic one of a compiler's back end.

A straight-line program runs on a machine with few registers. A value that is needed later is retained in its
register, spilled to memory and loaded back, or computed again, and instructions may be reordered.
`recoup.solve` decides all of it at once:

- one operation per instruction, its cost in cycles, its result one register wide;
- the budget is the number of registers (an instruction reads its operands while it writes its result);
- `Offload` is the spill: storing a value once and loading it back each time have their costs in cycles.

    python examples/registers.py             # prints one screen, writes registers.png (with recoup[examples])
    python examples/registers.py --registers 4 --given
"""

import argparse
import importlib.util
from dataclasses import dataclass

from recoup import Graph, InfeasibleError, Offload, solve

CYCLES = {"load": 4, "add": 1, "mul": 3, "div": 20}
STORE, RELOAD = 4, 4


@dataclass(frozen=True)
class Instruction:
    """`result = kind(operands)`."""

    result: str
    kind: str
    operands: tuple[str, ...] = ()


PROGRAM = [
    *(Instruction(name, "load") for name in "abcd"),
    Instruction("r", "div", ("a", "b")),  # dear, and read late again: worth a spill
    Instruction("p", "mul", ("r", "c")),
    Instruction("q", "mul", ("r", "d")),
    Instruction("s", "add", ("p", "q")),  # cheap: computed again rather than kept
    Instruction("t", "mul", ("s", "s")),
    Instruction("u", "add", ("t", "p")),
    Instruction("v", "mul", ("u", "q")),
    Instruction("w", "add", ("v", "a")),
    Instruction("x", "mul", ("w", "b")),
    Instruction("y", "add", ("x", "c")),
    Instruction("z", "mul", ("y", "d")),
    Instruction("m", "add", ("z", "s")),
    Instruction("n", "mul", ("m", "r")),
    Instruction("out", "add", ("n", "s")),
]


def to_graph(program: list[Instruction]) -> Graph:
    """One operation per instruction; each result takes one register."""
    index = {line.result: i for i, line in enumerate(program)}
    edges = [(index[name], i) for i, line in enumerate(program) for name in line.operands]
    return Graph([CYCLES[line.kind] for line in program], [1] * len(program), edges)


def listing(program: list[Instruction], order: list[int]) -> list[str]:
    """The scheduled program as text, with stores where a value is reloaded later."""
    count, seen = len(program), set()
    spilled = {code - count for code in order if code >= count}
    lines = []
    for code in order:
        line = program[code % count]
        if code >= count:
            lines.append(f"{line.result} = reload [{line.result}]")
            continue
        again = "   ; again" if code in seen else ""
        lines.append(f"{line.result} = {line.kind} {', '.join(line.operands)}".rstrip() + again)
        if code in spilled and code not in seen:
            lines.append(f"store [{line.result}], {line.result}")
        seen.add(code)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--registers", type=int, help="one count only (default: from plenty to too few)")
    parser.add_argument("--given", action="store_true", help="keep the order of the instructions")
    parser.add_argument("--picture", default="registers.png")
    options = parser.parse_args()
    graph = to_graph(PROGRAM)
    offload = Offload([STORE] * len(graph), [RELOAD] * len(graph))
    order = "given" if options.given else "free"
    spilling: list[tuple[int, float]] = []
    without: list[tuple[int, float]] = []
    for registers in [options.registers] if options.registers else [8, 7, 6, 5, 4, 3, 2]:
        try:
            kept = solve(graph, registers, order=order, moves=400_000)
            price = f"{kept.cost:.0f} cycles"
            without.append((registers, kept.cost))
        except InfeasibleError:
            price = "not found"
        try:
            found = solve(graph, registers, order=order, offload=offload, moves=400_000)
        except InfeasibleError as error:
            print(f"{registers} registers: {error}")
            continue
        spilling.append((registers, found.cost))
        print(
            f"{registers} registers: {found.cost:.0f} cycles of at least {found.lower_bound:.0f}"
            f" (one pass {graph.total_cost:.0f}; without spills {price})"
        )
    print("\nthe last one:")
    print("\n".join(f"    {line}" for line in listing(PROGRAM, found.order.tolist())))
    if importlib.util.find_spec("matplotlib"):
        draw_picture(options.picture, {"with spills": spilling, "computed again only": without})
    return 0


def draw_picture(path: str, curves: dict[str, list[tuple[int, float]]]) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), "o-", label=label)
    axes.set(xlabel="registers", ylabel="cycles")
    axes.legend()
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    raise SystemExit(main())
