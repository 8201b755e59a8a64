"""Pairs of loops: a forward scan that stacks residuals and a scan that reads them, and trades between them.

Idea: iteration i of the second scan reads row i of what the first one stacked, so a residual can be dropped
from the stack and computed again inside the second body from what is still there: other stacked rows, the
first scan's own operands, and its carry (stacked if need be). Which to keep is a minimum cut of the first
body; the sizes are rows times iterations.
Source: partial evaluation of scan, run backwards. Limits: a pair is a scan and the scans of the same length
that read its stacked results directly; a residual that anything else reads stays stacked; in a row of loops
that read each other's (second derivatives) every other pair is traded. Whole scans are rebuilt with
`jax.lax.scan`, never by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from recoup import _compat, _memory
from recoup._compat import Literal, Var
from recoup._inline import Flat, flatten
from recoup._planner.ladder import ladder
from recoup._planner.mincut import Cut, front
from recoup._program import Op, Program
from recoup._rewrite import rewrite
from recoup._segments import best_segment, placed, segment_eqns
from recoup._trace import to_program
from recoup.errors import PlanError

RECOMPUTE_SCOPE = "recoup_recompute"
FREE = 0.02  # of an iteration's cost: elementwise work that fusion mostly hides


@dataclass(frozen=True)
class Pair:
    """Equation indices of two scans, the stacked results that only the second reads, and the trades."""

    forward: int
    backward: int
    residuals: tuple[int, ...]  # positions among the forward scan's outvars
    body: Flat
    program: Program  # of the body; its carry is made by a pseudo-operation, as it may have to be stacked
    cuts: tuple[Cut, ...]  # the first is the cheapest: nothing dear is recomputed
    length: int


def find_pairs(flat: Flat) -> list[Pair]:
    """The loop pairs of a flat program, with their trades."""
    readers: dict[Any, list[int]] = {}
    for i, eqn in enumerate(flat.eqns):
        for v in eqn.invars:
            if not isinstance(v, Literal):
                readers.setdefault(v, []).append(i)
    results = {v for v in flat.outvars if not isinstance(v, Literal)}
    given = {*flat.invars, *flat.constvars}
    pairs = []
    for i, eqn in enumerate(flat.eqns):
        if eqn.primitive.name != "scan":
            continue
        scan = _compat.scan_parts(eqn)
        by_reader: dict[int, list[int]] = {}
        for position in range(scan.num_carry, len(eqn.outvars)):
            v = eqn.outvars[position]
            who = set(readers.get(v, ()))
            if len(who) == 1 and v not in results:
                by_reader.setdefault(who.pop(), []).append(position)
        for j, positions in by_reader.items():
            other = flat.eqns[j]
            if other.primitive.name != "scan" or _compat.scan_parts(other).length != scan.length:
                continue
            theirs = _compat.scan_parts(other)
            xs = other.invars[theirs.num_consts + theirs.num_carry :]
            others = other.invars[: theirs.num_consts + theirs.num_carry]
            rows = [p for p in positions if eqn.outvars[p] in xs and eqn.outvars[p] not in others]
            pair = _pair(eqn, i, j, rows, scan, given)
            if pair is not None:
                pairs.append(pair)
    # A trade rebuilds both loops, so a loop takes part in one: in that which can free the most.
    taken: set[int] = set()
    chosen = []
    for pair in sorted(pairs, key=lambda pair: pair.cuts[-1].bytes - pair.cuts[0].bytes):
        if taken.isdisjoint((pair.forward, pair.backward)):
            taken.update((pair.forward, pair.backward))
            chosen.append(pair)
    return sorted(chosen, key=lambda pair: (pair.forward, pair.backward))


def _pair(
    eqn: Any, forward: int, backward: int, rows: Sequence[int], scan: _compat.Scan, given: set[Any]
) -> Pair | None:
    body = flatten(scan.body)
    if not rows or any(not hasattr(v.aval, "shape") for v in body.invars):
        return None
    program = to_program(body)
    stored = list(program.inputs[scan.num_consts : scan.num_consts + scan.num_carry])
    # Rows of an operand that is itself a temporary would have to stay alive for the second scan.
    for position in range(scan.num_consts + scan.num_carry, len(eqn.invars)):
        if eqn.invars[position] not in given:
            stored.append(program.inputs[position])
    # Keeping a result of the body that is stacked for other readers anyway costs nothing.
    index = _value_index(body)
    anyway = {
        index[v]
        for p, v in enumerate(body.outvars)
        if p >= scan.num_carry and p not in rows and not isinstance(v, Literal)
    }
    program = _with_source(program, stored, scan.length)
    needed = {index[body.outvars[p]] for p in rows if not isinstance(body.outvars[p], Literal)}
    recomputable = [op.pure for op in program.ops]
    free = [v for v in range(len(program.values)) if program.values[v].producer < 0] + list(anyway)
    cuts = front(program, needed, recomputable=recomputable, free=free)
    cuts = _with_segments(cuts, program, stored[: scan.num_carry], needed, scan.length)
    if len(cuts) < 2:
        return None
    return Pair(forward, backward, tuple(rows), body, program, tuple(cuts), scan.length)


def _with_segments(
    cuts: Sequence[Cut], program: Program, carry: Sequence[int], needed: set[int], length: int
) -> list[Cut]:
    """The cuts, and last the loop in segments if that holds less than any of them."""
    carry_bytes = sum(program.values[v].bytes for v in carry) // max(1, length)
    row_bytes = sum(program.values[v].bytes for v in needed) // max(1, length)
    k = best_segment(length, carry_bytes, row_bytes)
    if not k or not all(op.pure for op in program.ops[:-1]):
        return list(cuts)
    ops = frozenset(range(len(program.ops) - 1))
    size = (length // k) * carry_bytes + k * row_bytes
    if size >= cuts[-1].bytes:
        return list(cuts)
    segmented = Cut(frozenset(carry), size, ops, sum(program.ops[o].cost for o in ops), k)
    return [*(c for c in cuts if c.cost < segmented.cost), segmented]


def _value_index(flat: Flat) -> dict[Any, int]:
    everything = [*flat.constvars, *flat.invars, *(v for eqn in flat.eqns for v in eqn.outvars)]
    return {v: i for i, v in enumerate(everything)}


def _with_source(program: Program, stored: Sequence[int], length: int) -> Program:
    """The body, sizes and costs of the whole loop, and a last pseudo-operation that makes stored inputs."""
    source = len(program.ops)
    marked = set(stored)
    values = tuple(
        replace(value, bytes=value.bytes * length, producer=source if i in marked else value.producer)
        for i, value in enumerate(program.values)
    )
    ops = tuple(replace(op, cost=op.cost * length, flops=op.flops * length) for op in program.ops)
    pseudo = Op("carry", (), tuple(stored), 0.0, 0.0, pure=False, fusible=False, heavy=False)
    return replace(program, ops=(*ops, pseudo), values=values)


def apply(flat: Flat, pairs: Sequence[Pair], choice: Sequence[int], share: float = FREE) -> Flat:
    """The flat program with cut `choice[i]` applied to pair i (-1 leaves the pair as it is).

    `share` is how much of an iteration's cost may be spent on lowering the peak inside an iteration.
    """
    left = list(zip(pairs, choice, strict=True))
    while left:
        (pair, which), *left = left
        if which >= 0:
            changed = _apply_one(flat, pair, pair.cuts[which], share)
            left = [(_moved(other, flat, changed), cut) for other, cut in left]
            flat = changed
    return flat


def _moved(pair: Pair, before: Flat, after: Flat) -> Pair:
    """The pair where its loops are now: others were replaced by one equation or several."""
    place = {id(eqn): i for i, eqn in enumerate(after.eqns)}
    forward, backward = (place[id(before.eqns[i])] for i in (pair.forward, pair.backward))
    return replace(pair, forward=forward, backward=backward)


def _check(pair: Pair, cut: Cut, num_carry: int) -> None:
    """Raises unless every row that the second loop reads is kept or follows from what is kept."""
    values, ops = pair.program.values, pair.program.ops[:-1]
    index = _value_index(pair.body)
    rows = [None if isinstance(v, Literal) else index[v] for v in pair.body.outvars]
    there = {v for v, value in enumerate(values) if value.producer < 0} | cut.kept
    there |= {v for p, v in enumerate(rows) if v is not None and p >= num_carry and p not in pair.residuals}
    legal = cut.kept <= set(range(len(values))) and cut.recomputed <= set(range(len(ops)))
    for o in sorted(cut.recomputed) if legal else ():
        legal = legal and ops[o].pure and there.issuperset(ops[o].reads)
        there.update(ops[o].writes)
    if not legal or any(rows[p] is not None and rows[p] not in there for p in pair.residuals):
        raise PlanError("the plan's loop trade does not keep what its recomputation reads: it is damaged")


def _apply_one(flat: Flat, pair: Pair, cut: Cut, share: float) -> Flat:
    first, second = flat.eqns[pair.forward], flat.eqns[pair.backward]
    if cut.segment:
        return _replaced(flat, pair, *segment_eqns(first, second, pair.residuals, cut.segment))
    f, b = _compat.scan_parts(first), _compat.scan_parts(second)
    _check(pair, cut, f.num_carry)
    body = pair.body
    index = _value_index(body)
    by_value = {i: v for v, i in index.items()}
    f_xs = first.invars[f.num_consts + f.num_carry :]

    # The forward scan: what is dropped leaves its results, what is newly kept joins them.
    row_of: dict[int, Any] = {}  # value of the body -> the stacked array's variable in the outer program
    outvars: list[Any] = list(body.outvars[: f.num_carry])
    outer: list[Any] = list(first.outvars[: f.num_carry])
    for p in range(f.num_carry, len(body.outvars)):
        v = body.outvars[p]
        keep = p not in pair.residuals or isinstance(v, Literal) or index[v] in cut.kept
        if keep and p in pair.residuals and not isinstance(v, Literal) and index[v] in row_of:
            keep = False  # stacked once already
        if keep:
            outvars.append(v)
            outer.append(first.outvars[p])
            if not isinstance(v, Literal):
                row_of.setdefault(index[v], first.outvars[p])
    xs_of = {index[v]: x for v, x in zip(body.invars[f.num_consts + f.num_carry :], f_xs, strict=True)}
    consts_of = {
        index[v]: c for v, c in zip(body.invars[: f.num_consts], first.invars[: f.num_consts], strict=True)
    }
    for v in sorted(cut.kept):
        if v in row_of:
            continue
        if v in xs_of:
            row_of[v] = xs_of[v]
            continue
        var = by_value[v]
        stacked = Var(_compat.with_leading(var.aval, f.length))
        outvars.append(var)
        outer.append(stacked)
        row_of[v] = stacked
    # Flattened again: what only served a dropped residual is dead now.
    new_body = flatten(
        _compat.close_jaxpr(body.constvars, body.invars, outvars, body.eqns, body.consts)
    ).closed()
    forward = _scan_eqns(first, new_body, f, first.invars, outer)

    # The second scan: a row it read is read from what is kept, or computed again at the start of its body.
    back = flatten(b.body)
    b_split = b.num_consts + b.num_carry
    slot = {v: p for p, v in enumerate(first.outvars)}
    env: dict[Any, Any] = {}  # variables of the first body -> of the new second body
    new_consts: dict[Any, Any] = {}
    new_xs: dict[Any, Any] = {}

    def outer_row(array: Any, like: Any) -> Any:
        if array not in new_xs:
            new_xs[array] = Var(like.aval)
        return new_xs[array]

    def lookup(v: Any) -> Any:
        if isinstance(v, Literal) or v in env:
            return env.get(v, v) if not isinstance(v, Literal) else v
        i = index[v]
        if i in row_of:
            env[v] = outer_row(row_of[i], v)
        elif i in xs_of:
            env[v] = outer_row(xs_of[i], v)
        elif i in consts_of:
            c = consts_of[i]
            if isinstance(c, Literal):
                env[v] = c
            else:
                env[v] = new_consts.setdefault(c, Var(v.aval))
        else:
            env[v] = v  # a constant of the body, carried over below
        return env[v]

    clones = []
    for o in sorted(cut.recomputed):
        eqn = body.eqns[o]
        fresh = [Var(v.aval) for v in eqn.outvars]
        clones.append(
            _compat.named(eqn.replace(invars=[lookup(v) for v in eqn.invars], outvars=fresh), RECOMPUTE_SCOPE)
        )
        for v, var in zip(eqn.outvars, fresh, strict=True):
            if index.get(v) not in row_of:
                env[v] = var
    rename: dict[Any, Any] = {}
    xs_vars, xs_outer = [], []
    for var, array in zip(back.invars[b_split:], second.invars[b_split:], strict=True):
        if array in slot and slot[array] in pair.residuals:
            inner = body.outvars[slot[array]]
            rename[var] = lookup(inner)
        else:
            xs_vars.append(var)
            xs_outer.append(array)
    eqns = [
        e.replace(invars=[rename.get(v, v) if not isinstance(v, Literal) else v for v in e.invars])
        for e in back.eqns
    ]
    outs = [rename.get(v, v) if not isinstance(v, Literal) else v for v in back.outvars]
    invars = [
        *back.invars[: b.num_consts],
        *new_consts.values(),
        *back.invars[b.num_consts : b_split],
        *xs_vars,
        *new_xs.values(),
    ]
    outer_in = [
        *second.invars[: b.num_consts],
        *new_consts.keys(),
        *second.invars[b.num_consts : b_split],
        *xs_outer,
        *new_xs.keys(),
    ]
    constvars = [*back.constvars, *body.constvars]
    consts = [*back.consts, *body.consts]
    closed = _planned(_compat.close_jaxpr(constvars, invars, outs, [*clones, *eqns], consts), share)
    b = b._replace(num_consts=b.num_consts + len(new_consts))
    backward = _scan_eqns(second, closed, b, outer_in, second.outvars)

    return _replaced(flat, pair, forward, backward)


def _replaced(flat: Flat, pair: Pair, forward: Sequence[Any], backward: Sequence[Any]) -> Flat:
    """The program with other equations in place of the two scans."""
    rebuilt: list[Any] = []
    for i, eqn in enumerate(flat.eqns):
        rebuilt += forward if i == pair.forward else backward if i == pair.backward else [eqn]
    return replace(flat, eqns=tuple(rebuilt))


def _planned(closed: Any, share: float) -> Any:
    """The second body with its own plan: barriers, and what lowers its peak for at most `share` of its cost.

    The body is a small step itself: what it recomputes comes early, its backward part late.
    """
    flat = flatten(closed)
    program = to_program(flat)
    plan, rungs = ladder(program, targets=10, resolutions=(8,))
    total = sum(op.cost for op in program.ops)
    affordable = [rung for rung in rungs[1:] if rung.cost <= share * total]
    schedule = affordable[-1].schedule if affordable else range(len(program.ops))
    planned = rewrite(flat, program, plan, schedule).closed()
    # Barriers also give buffers to values that fusion would do without: in a small body they may cost more
    # than they save.
    return min((closed, planned), key=lambda body: _memory.predict(body).high.temporaries_bytes)


def _scan_eqns(
    like: Any, body: Any, scan: _compat.Scan, invars: Sequence[Any], outvars: Sequence[Any]
) -> list[Any]:
    """The scan as JAX records it, with the outer program's variables and the original's source line."""
    split = scan.num_consts + scan.num_carry

    def run(*operands: Any) -> Any:
        consts = operands[: scan.num_consts]

        def step(carry: Any, xs: Any) -> Any:
            outs = _compat.eval_jaxpr(body, *consts, *carry, *xs)
            return tuple(outs[: scan.num_carry]), tuple(outs[scan.num_carry :])

        carry, ys = jax.lax.scan(
            step,
            tuple(operands[scan.num_consts : split]),
            tuple(operands[split:]),
            length=scan.length,
            reverse=scan.reverse,
            unroll=scan.unroll,
        )
        return (*carry, *ys)

    traced = _compat.trace_at(like, run, [v.aval for v in invars])
    jaxpr, consts = _compat.open_jaxpr(traced)
    if consts:
        raise AssertionError("a body's constants travel as operands")
    return placed(jaxpr, like, invars, outvars)
