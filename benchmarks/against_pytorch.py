"""Beside PyTorch 2.13's `activation_memory_budget`: kept bytes against matrix FLOPs, the same GPT.

    python -m benchmarks.against_pytorch

Six layers, batch 8, 256 tokens, width 256, 4 heads. PyTorch's curve (measured before, with its min-cut
partitioner and knapsack): bytes saved for the backward, and FLOPs of matrix products over none recomputed.
Ours: for each rung of the ladder the bytes of the values that its schedule holds from the forward pass and
reads in the backward pass (counted on the jaxpr: before the compiler's fusion, so rather too many), and the
FLOPs of its products over the plain step's. The peak is what the memory model predicts for the
whole step, AdamW's state and all, which PyTorch's budget does not bound.
"""

from collections.abc import Sequence

import jax

from benchmarks.zoo import ZOO
from recoup import _ladder
from recoup._planner.layout import layout
from recoup._program import Program
from recoup._trace import to_program, trace

PYTORCH = [  # MiB saved for the backward, matrix FLOPs over none recomputed
    (248, 1.0), (176, 1.0), (144, 1.015), (122, 1.034), (98, 1.080), (74, 1.125), (48, 1.174), (24, 1.220),
    (12, 1.242),
]  # fmt: skip
MIB = 2**20


def products(program: Program) -> float:
    """FLOPs of matrix products."""
    return sum(op.flops for op in program.ops if op.name == "dot_general")


def kept_bytes(program: Program, schedule: Sequence[int], late: Sequence[int]) -> int:
    """Bytes held when the forward pass ends and read later, before anything computes them again."""
    # the first operation of the backward pass, or the first that runs again
    seen: set[int] = set()
    end = next((s for s, i in enumerate(schedule) if late[i] > 0 or i in seen or seen.add(i)), len(schedule))
    own: set[int] = set()
    kept: set[int] = set()
    for i in schedule[end:]:
        kept.update(v for v in program.ops[i].reads if program.values[v].producer >= 0 and v not in own)
        own.update(program.ops[i].writes)
    return sum(program.values[v].bytes for v in kept)


def main() -> None:
    step, args = ZOO["gpt"].make("large")
    traced = trace(step, args, donate_argnums=(0, 1))
    ladder = _ladder.build(traced)
    plain = products(traced.program)
    epoch = layout(traced.program).epoch
    points = []
    for rung in ladder.steps:
        program = to_program(rung.flat)
        kept = kept_bytes(traced.program, rung.rung.schedule, epoch)
        points.append((kept, products(program) / plain, rung.predicted_bytes))
    points.sort()
    print(f"JAX {jax.__version__}; {len(points)} rungs; plain keeps {points[-1][0] / MIB:.0f} MiB")
    print("PyTorch: kept MiB, FLOPs | recoup at no more kept: MiB, FLOPs, predicted peak MiB")
    worse = 0
    for budget, theirs in PYTORCH:
        within = [p for p in points if p[0] <= budget * MIB]
        if not within:
            print(f"{budget:5} {theirs:7.3f} | none: the lowest keeps {points[0][0] / MIB:.0f} MiB")
            worse += 1
            continue
        kept, ours, peak = min(within, key=lambda p: (p[1], p[0]))
        worse += ours > theirs + 5e-4
        print(f"{budget:5} {theirs:7.3f} | {kept / MIB:6.1f} {ours:7.3f} {peak / MIB:7.1f}")
    print(f"{len(PYTORCH) - worse} of {len(PYTORCH)} points at no more work")


if __name__ == "__main__":
    main()
