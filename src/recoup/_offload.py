"""A traced step's values offered to host memory: the jaxpr side of `_planner.offload`.

Idea: each value that may move gets a copy, an identity equation that all its readers read. It lowers to
nothing; where a schedule repeats it, `_rewrite` writes JAX's own moves between memory spaces instead.
Limits: a loop's stacked residuals move as a whole; neither loops' bodies nor what is inside a `shard_map`
are looked into.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from recoup import _barrier, _compat
from recoup._compat import Literal, Var
from recoup._host import HostMemory
from recoup._inline import Flat
from recoup._planner import offload
from recoup._planner.ladder import Rung
from recoup._planner.layout import Layout, layout
from recoup._program import Program
from recoup._trace import to_program
from recoup.errors import PlanError


@dataclass(frozen=True, eq=False)
class Offer:
    """A program in which `moves` (values of the program that it was made from) may go to the host.

    `free_bytes` of them can move while the step computes.
    """

    moves: tuple[int, ...]
    flat: Flat
    program: Program
    host: HostMemory
    free_bytes: int

    def finish(self, plan: Layout, rung: Rung) -> list[Rung]:
        """The rung with its fetches begun early enough, and, where that holds more, as it is: waited for."""
        found: list[Rung] = []
        for schedule in dict.fromkeys(
            (offload.ahead(self.program, plan, rung.schedule, self.host), rung.schedule)
        ):
            peak_bytes, cost = offload.run(self.program, plan, schedule, self.host, self.free_bytes)
            if found:
                cost += offload.waiting(self.program, schedule, self.host)
            found.append(replace(rung, schedule=schedule, peak_bytes=peak_bytes, cost=cost))
        return found if len(found) < 2 or found[1].peak_bytes < found[0].peak_bytes else found[:1]


def offers(
    flat: Flat, program: Program, host: HostMemory, names: Sequence[str], donated: Sequence[bool]
) -> Iterable[Offer]:
    """What may move: all that can while the step computes, and everything that is worth it."""
    plan = layout(program)
    if not plan.crossing or flat.shards is not None:
        return
    found = offload.candidates(program, plan, host)
    free = offload.in_time(program, plan, found, host)
    free_bytes = sum(program.values[v].bytes for v in free)
    for chosen, paid in ((free, False), (found, True)):
        if chosen and not (paid and len(found) == len(free)):
            changed, at = offered(flat, program, chosen)
            priced = offload.priced(to_program(changed, names, donated), at, host, free=not paid)
            yield Offer(tuple(chosen), changed, priced, host, free_bytes)


def stored(
    flat: Flat, program: Program, moves: Sequence[int], names: Sequence[str], donated: Sequence[bool]
) -> Offer:
    """The offer that a stored plan was made in.

    Raises:
      PlanError: a move is not of a value that the step computes and does not return.
    """
    results = set(program.outputs)
    for v in moves:
        if not 0 <= v < len(program.values) or program.values[v].producer < 0 or v in results:
            raise PlanError(
                f"the plan moves value {v} to host memory, which the step does not compute for itself"
            )
    changed, at = offered(flat, program, sorted(set(moves)))
    host = HostMemory()
    priced = offload.priced(to_program(changed, names, donated), at, host, free=True)
    return Offer(tuple(moves), changed, priced, host, 0)


def offered(flat: Flat, program: Program, moves: Sequence[int]) -> tuple[Flat, list[int]]:
    """The flat jaxpr with a copy of each value of `moves`, and the copies' positions."""
    everything = [*flat.constvars, *flat.invars, *(v for eqn in flat.eqns for v in eqn.outvars)]
    by_producer: dict[int, list[int]] = {}
    for v in moves:
        by_producer.setdefault(program.values[v].producer, []).append(v)
    copies: dict[_compat.Var, _compat.Var] = {}
    eqns, at = [], []
    params = _barrier.barrier_params(0, mode=_barrier.FENCE, groups=())  # orders nothing: the identity
    for i, eqn in enumerate(flat.eqns):
        read = [v if isinstance(v, Literal) else copies.get(v, v) for v in eqn.invars]
        eqns.append(eqn.replace(invars=read))
        for v in by_producer.get(i, ()):
            var = everything[v]
            copies[var] = Var(var.aval)
            at.append(len(eqns))
            eqns.append(_compat.new_eqn([var], [copies[var]], _barrier.barrier_p, params, eqn))
    return replace(flat, eqns=tuple(eqns)), at
