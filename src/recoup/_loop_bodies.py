"""Loops whose body is a training step of its own: gradients accumulated over microbatches, meta-learning.

Idea: where forward and backward are inside one iteration, nothing is stacked, and what the loop holds beside
its operands is the body's own peak. The body is planned like any step, by a ladder of its own; each of its
rungs is one trade for the loop as a whole, taken in every iteration.
Limits: `scan` only; loops of loop pairs are traded by `_loop_pairs`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recoup import _compat
from recoup._inline import Flat, flatten
from recoup._planner.layout import SMALL_BYTES
from recoup._planner.mincut import Cut
from recoup._trace import Traced, to_program

_MOST = 14  # trades for one loop


@dataclass(frozen=True, eq=False)
class Body:
    """A loop (equation index), the ladder of its body, and the rungs offered as trades, from the top down."""

    at: int
    length: int
    ladder: Any  # a `Ladder`
    rungs: tuple[int, ...]
    cuts: tuple[Cut, ...]  # what each rung holds, and costs over all iterations


def find_bodies(flat: Flat, taken: Collection[int], build: Callable[[Traced], Any]) -> list[Body]:
    """The loops that gain from planning their body.

    Args:
      flat: the program.
      taken: equations that are part of a loop pair.
      build: makes the ladder of a traced step.
    """
    found = []
    for at, eqn in enumerate(flat.eqns):
        if eqn.primitive.name != "scan" or at in taken:
            continue
        scan = _compat.scan_parts(eqn)
        body = flatten(scan.body)
        if body.consts or any(not hasattr(v.aval, "shape") for v in body.invars):
            continue
        program = to_program(body)
        if sum(v.bytes for v in program.values if v.producer >= 0) < 16 * SMALL_BYTES:
            continue
        ladder = build(Traced(body, program, None, None, (), (), (False,) * len(body.invars)))
        last = len(ladder.steps) - 1
        rungs = sorted({round(1 + i * (last - 1) / max(1, _MOST - 1)) for i in range(_MOST)}) if last else []
        if rungs:
            steps = [ladder.steps[k] for k in rungs]
            cuts = [Cut(frozenset(), s.peak_bytes, frozenset(), s.cost * scan.length) for s in steps]
            found.append(Body(at, scan.length, ladder, tuple(rungs), tuple(cuts)))
    return found


def apply_bodies(flat: Flat, bodies: Sequence[Body], choice: Sequence[int]) -> Flat:
    """The program with rung `choice[i]` inside loop i (-1 leaves its body as it is)."""
    for body, which in zip(bodies, choice, strict=True):
        if which >= 0:
            flat = with_body(flat, body.at, body.ladder.steps[body.rungs[which]].flat)
    return flat


def with_body(flat: Flat, at: int, body: Flat) -> Flat:
    """The program with another body, of the same operands and results, in the loop at `at`."""
    eqns = list(flat.eqns)
    eqns[at] = eqns[at].replace(params={**eqns[at].params, "jaxpr": body.closed()})
    return replace(flat, eqns=tuple(eqns))
