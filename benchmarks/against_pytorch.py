"""Beside PyTorch 2.13's `activation_memory_budget`: kept bytes against matrix FLOPs, the same GPT.

    python -m benchmarks.against_pytorch

Six layers, batch 8, 256 tokens, width 256, 4 heads. PyTorch's curve (measured before, with its min-cut
partitioner and knapsack): bytes saved for the backward, and FLOPs of matrix products over none recomputed.

Ours twice, both counted on the jaxpr, both as schedules that the planner's machine has executed:

- planned for kept bytes, as PyTorch does: the planner's minimum cuts (`recoup._planner.mincut.sweep`), the
  gaps between two of them filled by keeping values again, those first that save most work a byte;
- planned for the peak, as `recoup.fit` does: the cheapest rung of the ladder that keeps no more bytes. A plan
  for the peak keeps what the last layers need, since nothing is gained by dropping it: it has no rungs at the
  low end.

The peak is what the memory model predicts for the whole step, AdamW's state and all, which PyTorch's budget
does not bound. FLOPs are those of products over the plain step's.
"""

from collections.abc import Sequence

import jax

from benchmarks.zoo import ZOO
from recoup import _ladder
from recoup._memory import predict
from recoup._planner.assign import RESTART, assign
from recoup._planner.layout import Layout, layout, zones
from recoup._planner.machine import execute
from recoup._planner.mincut import recomputed, sweep
from recoup._program import Program
from recoup._rewrite import rewrite
from recoup._trace import trace

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


def by_kept_bytes(program: Program, plan: Layout, limit_bytes: int) -> set[int]:
    """The values to keep, at most `limit_bytes`, so that little is recomputed."""
    last = max(plan.epoch)
    recomputable = [op.pure and plan.epoch[i] < last for i, op in enumerate(program.ops)]

    def again(kept: set[int]) -> frozenset[int]:
        return recomputed(program, plan.crossing, kept, recomputable=recomputable, free=plan.free)

    def cost(kept: set[int]) -> float:
        return sum(program.ops[o].cost for o in again(kept))

    cuts = sweep(program, plan.crossing, recomputable=recomputable, free=plan.free, limit=64)
    best: set[int] = set()
    for cut in cuts:
        kept = set(cut.kept)
        held = cut.bytes
        while held <= limit_bytes:
            now = cost(kept)
            fitting = [
                v
                for o in again(kept)
                for v in program.ops[o].writes
                if 0 < program.values[v].bytes <= limit_bytes - held
            ]
            gains = {v: (now - cost(kept | {v})) / program.values[v].bytes for v in fitting}
            if not gains or max(gains.values()) <= 0:
                break
            v = max(gains, key=lambda v: gains[v])
            kept.add(v)
            held += program.values[v].bytes
        if held <= limit_bytes and (not best or cost(kept) < cost(best)):
            best = kept
    return best


def main() -> None:
    step, args = ZOO["gpt"].make("large")
    traced = trace(step, args, donate_argnums=(0, 1))
    program = traced.program
    ladder = _ladder.build(traced)
    plain = products(program)
    plan = layout(program)
    parts = zones(program, plan, 1)
    rungs = []
    for rung in ladder.steps:
        kept = kept_bytes(program, rung.rung.schedule, plan.epoch)
        flops = sum(program.ops[i].flops for i in rung.rung.schedule if program.ops[i].name == "dot_general")
        rungs.append((kept, flops / plain, rung))
    most = max(r[0] for r in rungs)
    print(f"JAX {jax.__version__}; {len(rungs)} rungs; plain keeps {most / MIB:.0f} MiB")
    print(
        "PyTorch: kept MiB, FLOPs | planned for kept bytes: MiB, FLOPs, peak | for the peak: MiB, FLOPs, peak"
    )
    worse = 0
    for budget, theirs in PYTORCH:
        limit = int((budget + 0.5) * MIB)  # theirs are printed as whole MiB
        keep = by_kept_bytes(program, plan, limit - 2**16)  # small values besides
        level = {v: RESTART for v in plan.droppable if v not in keep}  # computed again once, held until read
        schedule = assign(program, plan, parts, level).schedule  # checked by executing it:
        execute(program, schedule, plan.windows)
        flops = sum(program.ops[i].flops for i in schedule if program.ops[i].name == "dot_general") / plain
        kept = kept_bytes(program, schedule, plan.epoch)
        flat = rewrite(traced.flat, program, plan, schedule)
        peak = predict(flat.closed(), donated=traced.donated).high.total_bytes
        worse += flops > theirs + 5e-4 or kept > limit
        row = f"{budget:5} {theirs:7.3f} | {kept / MIB:6.1f} {flops:7.3f} {peak / MIB:7.1f}"
        within = [r for r in rungs if r[0] <= limit]
        if within:
            kept, flops, rung = min(within, key=lambda r: (r[1], r[0]))
            row += f" | {kept / MIB:6.1f} {flops:7.3f} {rung.predicted_bytes / MIB:7.1f}"
        else:
            row += f" | none: the lowest keeps {min(r[0] for r in rungs) / MIB:.0f} MiB"
        print(row, flush=True)
    print(f"{len(PYTORCH) - worse} of {len(PYTORCH)} points at no more work, planned for kept bytes")


if __name__ == "__main__":
    main()
