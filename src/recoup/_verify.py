"""Proves that a rewritten program computes what the original computes, before anything compiles.

Idea: number values by what computes them. Two equations of one primitive with the same parameters on values
of the same numbers compute the same value; the results of a barrier, and of a move to host memory or back,
are its operands (that nothing but a move reads host memory is for JAX's types to say). A rewritten program is
right if its results have the original's numbers and everything that may run only once runs once, in the
original's order. No arithmetic, so there is nothing to tolerate: a random draw with another key, a
recomputation from another value or an effect that happens twice changes a number.
Source: value numbering (Cocke and Schwartz, Programming Languages and Their Compilers, 1970).
Limits: loops, branches and calls are one operation each; a loop that was traded is another loop, so a
program is compared with its variant after that trade. Linear in the number of equations.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from recoup._compat import Literal, effects, is_memory_move, user_frame
from recoup._inline import Flat
from recoup.errors import PlanError

_SAME = frozenset(["recoup_barrier", "optimization_barrier", "sharding_constraint"])  # results are operands


def verify(plain: Flat, ours: Flat, once: frozenset[str]) -> None:
    """Compares a rewritten program with the program that it was made from.

    Args:
      plain: the program before rewriting; `ours` shares its inputs and its equations' parameters.
      ours: the rewritten program.
      once: names of primitives that may run only once, besides those that have effects.

    Raises:
      PlanError: `ours` reads what is not written, writes a value twice, gives other results, or runs
        something twice (or not at all, or in another order) that must run once.
    """
    theirs, mine = ((flat.invars, len(flat.consts), len(flat.outvars)) for flat in (plain, ours))
    if theirs != mine:
        raise PlanError("the rewritten program has other arguments or results than the one it was made from")
    numbers: dict[Hashable, int] = {}
    want, single, _ = _number(plain, numbers, once)
    got, ours_single, stranger = _number(ours, numbers, once, len(numbers))
    wrong = [i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b]
    if wrong:
        raise PlanError(
            f"result {wrong[0]} of the rewritten program is another value: {stranger or 'its operands moved'}"
        )
    if single != ours_single:
        names = [name for name, _ in single], [name for name, _ in ours_single]
        raise PlanError(
            f"operations that may run only once run as {', '.join(names[1]) or 'nothing'} in the rewritten "
            f"program, for {', '.join(names[0]) or 'nothing'} in the program as it is"
        )


def _number(
    flat: Flat, numbers: dict[Hashable, int], once: frozenset[str], known: int | None = None
) -> tuple[list[int], list[tuple[str, int]], str]:
    """The numbers of the results; the operations that may run only once, in order; and, of a program whose
    values should have the `known` first numbers, the first operation that computes something else."""
    stranger = ""
    value: dict[Any, int] = {}

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    def read(v: Any, reader: str) -> int:
        if isinstance(v, Literal):
            return number(("literal", str(v.val), str(v.aval)))
        if v not in value:
            raise PlanError(f"{reader} reads a value before it is written")
        return value[v]

    for var, const in zip(flat.constvars, flat.consts, strict=True):
        value[var] = number(("constant", id(const)))
    for i, var in enumerate(flat.invars):
        value[var] = number(("argument", i))
    single: list[tuple[str, int]] = []
    for eqn in flat.eqns:
        name = eqn.primitive.name
        operands = tuple(read(v, name) for v in eqn.invars)
        if name in _SAME or is_memory_move(eqn):
            made: Sequence[int] = operands
        else:
            # Rewriting copies equations, so equal parameters are the same object.
            own = number((name, id(eqn.params), operands))
            made = [number((own, i)) for i in range(len(eqn.outvars))]
            if known is not None and own >= known and not stranger:
                frame = user_frame(eqn)
                stranger = f"{name} at {frame.file}:{frame.line}" if frame else name
            if effects(eqn) or name in once:
                single.append((name, own))
        for v, n in zip(eqn.outvars, made, strict=True):
            if v in value:
                raise PlanError(f"{name} writes a value that is written already")
            value[v] = n
    return [read(v, "the result") for v in flat.outvars], single, stranger
