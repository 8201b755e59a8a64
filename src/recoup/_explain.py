"""A rung of the ladder as a Plan: what runs again, from what, for whom, and what a file stores.

Limits: a recipe lists at most `_RECIPE` operations; a decision's FLOPs are those of its own operation, so
that they add up.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import jax

from recoup import _compat, _loop_pairs, _objective, _signature
from recoup._bound import lower_bound
from recoup._compat import Literal
from recoup._evidence import Evidence
from recoup._inline import Flat, flatten
from recoup._ladder import Ladder, Step
from recoup._loop_bodies import with_body
from recoup._loop_pairs import Pair
from recoup._offload import stored
from recoup._plan import BodyPlan, Decision, LoopTrade, Plan, Repeat
from recoup._planner.layout import layout
from recoup._planner.machine import execute
from recoup._planner.mincut import Cut
from recoup._program import OFFLOAD, Program, Value
from recoup._rewrite import rewrite
from recoup._scopes import under
from recoup._trace import NEVER_REPEATED, Traced, to_program
from recoup._verify import verify
from recoup.errors import PlanError

if TYPE_CHECKING:
    from recoup._calibrate import Roofline

_MOST_REPEATS = 32  # of each operation, on average, in a stored plan: a file must not make a compiler hang
_RECIPE = 8


def fingerprint(program: Program) -> str:
    """Tells programs apart: operations, operands, shapes and dtypes."""
    digest = hashlib.sha256()
    for op in program.ops:
        digest.update(f"{op.name}|{op.reads}|{op.writes}|{op.detail}|{op.flops}\n".encode())
    for value in program.values:
        digest.update(f"{value.text}|{value.producer}\n".encode())
    digest.update(f"{program.inputs}|{program.outputs}|{sorted(program.donated)}".encode())
    return digest.hexdigest()[:32]


def to_plan(
    ladder: Ladder,
    step: Step,
    budget_bytes: int,
    regions: str,
    *,
    certified: bool = False,
    roofline: "Roofline | None" = None,
) -> Plan:
    """The plan that `step` carries out.

    Its predicted peak is the estimate where the compiler certified the step, else the upper end: what a plan
    promises.
    """
    program = ladder.traced.program
    bound, where = lower_bound(program, ladder.tradable())
    loops, repeats, bodies, decisions = _parts(ladder, step)
    gathers, gathered_bytes = _gathered_again(ladder, step)
    return Plan(
        budget_bytes=budget_bytes,
        peak_bytes=step.prediction.estimate.total_bytes if certified else step.predicted_bytes,
        unplanned_bytes=ladder.steps[0].predicted_bytes,
        lower_bound_bytes=bound,
        bound=where,
        flops=program.flops,
        extra_flops=step.extra_flops,
        fingerprint=fingerprint(program),
        decisions=tuple(sorted(decisions, key=lambda d: -d.bytes)),
        loops=loops,
        repeats=repeats,
        bodies=bodies,
        gathers=gathers,
        gathered_bytes=gathered_bytes,
        moves=step.variant.moves if repeats else (),
        regions=regions,
        lever=step.lever,
        made_with={
            **_signature.describe(program),
            **({"host memory": ladder.host} if ladder.host else {}),
            **({"time": _objective.described(ladder, step, roofline)} if roofline else {}),
            "jax": jax.__version__,
            "instrument": "memory model (predicted, estimate)"
            if certified
            else "memory model (predicted, upper end)",
        },
        evidence=Evidence.of(ladder, step),
    )


def _gathered_again(ladder: Ladder, step: Step) -> tuple[int, int]:
    """How many gathers run again in a rung, and the bytes that each device receives through them."""
    variant, traced = step.variant, ladder.traced
    again = [
        variant.program.ops[o].gathered_bytes
        for r in _repeats(step.rung.schedule, len(variant.program.ops))
        for o in r.ops
    ]
    count, size = sum(map(bool, again)), sum(again)
    if variant.flat is not traced.flat:
        for sign, flat, program in ((1, variant.flat, variant.program), (-1, traced.flat, traced.program)):
            found = _gathers(flat, program)
            count, size = count + sign * found[0], size + sign * found[1]
    return count, size


def _gathers(flat: Flat, program: Program) -> tuple[int, int]:
    count = sum(bool(op.gathered_bytes) for op in program.ops)
    size = sum(op.gathered_bytes for op in program.ops)
    for eqn in flat.eqns:
        if eqn.primitive.name == "scan":
            scan = _compat.scan_parts(eqn)
            body = flatten(scan.body)
            inner = _gathers(body, to_program(body))
            count, size = count + inner[0], size + scan.length * inner[1]
    return count, size


def _parts(
    ladder: Ladder, step: Step
) -> tuple[tuple[LoopTrade, ...], tuple[Repeat, ...], tuple[BodyPlan, ...], list[Decision]]:
    """What runs again in a rung, and what that means for each value; of planned bodies too."""
    choice = step.variant.choice
    trades: list[LoopTrade] = []
    decisions: list[Decision] = []
    for pair, which in zip(ladder.pairs, choice, strict=False):
        cut = pair.cuts[which] if which >= 0 else None
        if cut is not None:
            kept, recomputed = tuple(sorted(cut.kept)), tuple(sorted(cut.recomputed))
            trades.append(LoopTrade(pair.forward, pair.backward, kept, recomputed, cut.segment))
        decisions += _loop_decisions(pair, cut, ladder.traced.flat)
    bodies = []
    for body, which in zip(ladder.bodies, choice[len(ladder.pairs) :], strict=True):
        if which < 0:
            continue
        inner, again, nested, inside = _parts(body.ladder, body.ladder.steps[body.rungs[which]])
        bodies.append(BodyPlan(body.at, inner, again, nested))
        decisions += [
            replace(
                d,
                iterations=max(1, d.iterations) * body.length,
                flops=d.flops * body.length,
                scope=under(_scope(ladder.traced.flat, body.at), d.scope),
            )
            for d in inside
        ]
    repeats = _repeats(step.rung.schedule, len(step.variant.program.ops))
    decisions += _decisions(step)
    return tuple(trades), tuple(repeats), tuple(bodies), decisions


def apply_plan(traced: Traced, plan: Plan) -> Flat:
    """The rewritten program of a stored plan.

    Raises:
      PlanError: the plan was made for another step, or is not legal for this one.
    """
    found = fingerprint(traced.program)
    if found != plan.fingerprint:
        changed = _signature.differences(plan.made_with, _signature.describe(traced.program))
        if (made := plan.made_with.get("jax", "?")) != jax.__version__:
            changed.append(f"JAX: {made} became {jax.__version__}")
        raise PlanError(
            f"this plan was made for another step (fingerprint {plan.fingerprint}, this step has {found}). "
            f"What differs: {'; '.join(changed) or 'which values the operations read'}. Plan again"
        )
    return _applied(traced.flat, plan, traced.argument_names, traced.donated)


def _applied(flat: Flat, plan: Plan | BodyPlan, names: Sequence[str], donated: Sequence[bool]) -> Flat:
    for part in plan.bodies:
        eqn = flat.eqns[part.at] if part.at < len(flat.eqns) else None
        if eqn is None or eqn.primitive.name != "scan":
            raise PlanError(f"the plan changes the body of operation {part.at}, which is no loop")
        body = flatten(_compat.scan_parts(eqn).body)
        flat = with_body(flat, part.at, _applied(body, part, (), (False,) * len(body.invars)))
    pairs = {(p.forward, p.backward): p for p in _loop_pairs.find_pairs(flat)}
    traded = []
    for trade in plan.loops:
        pair = pairs.get((trade.forward, trade.backward))
        if pair is None:
            raise PlanError(
                f"the plan trades between operations {trade.forward} and {trade.backward}, "
                "which are no loop pair"
            )
        if trade.segment and (trade.segment > pair.length or pair.length % trade.segment):
            raise PlanError(f"the plan cuts a loop of {pair.length} steps into segments of {trade.segment}")
        cut = Cut(frozenset(trade.kept), 0, frozenset(trade.recomputed), 0.0, trade.segment)
        traded.append(replace(pair, cuts=(cut,)))
    flat = _loop_pairs.apply(flat, traded, [0] * len(traded))
    if not plan.repeats:
        return flat
    program = to_program(flat, names, donated)
    if isinstance(plan, Plan) and plan.moves:
        offer = stored(flat, program, plan.moves, names, donated)
        flat, program = offer.flat, offer.program
    before = {r.before: r.ops for r in plan.repeats}
    schedule: list[int] = []
    for index in range(len(program.ops)):
        schedule += before.get(index, ())
        schedule.append(index)
    if len(schedule) > _MOST_REPEATS * len(program.ops):
        raise PlanError(f"the plan makes {len(schedule)} operations of a step of {len(program.ops)}")
    if any(not 0 <= o < len(program.ops) for o in (*schedule, *before)):
        raise PlanError("the plan repeats operations that the step does not have")
    division = layout(program)
    execute(program, schedule, division.window)
    rewritten = rewrite(flat, program, division, schedule)
    verify(flat, rewritten, NEVER_REPEATED)
    return rewritten


def _repeats(schedule: Sequence[int], count: int) -> list[Repeat]:
    done = [False] * count
    found, group = [], []
    for index in schedule:
        if done[index]:
            group.append(index)
            continue
        done[index] = True
        if group:
            found.append(Repeat(index, tuple(group)))
            group = []
    return found


def _decisions(step: Step) -> list[Decision]:
    program, plan = step.variant.program, step.variant.layout
    runs = Counter(o for r in _repeats(step.rung.schedule, len(program.ops)) for o in r.ops)
    repeated = set(runs)
    counted: set[int] = set()  # an operation's work counts once, whichever of its results is listed first
    found = []
    results = set(program.outputs)
    extra_sources = {
        v
        for o in repeated
        for v in program.ops[o].reads
        if program.values[v].producer >= 0 and program.values[v].producer not in repeated
    }
    fetched = {program.ops[o].writes[0] for o in repeated if program.ops[o].name == OFFLOAD}
    for v in sorted(plan.crossing | (extra_sources - plan.free) | fetched):
        value = program.values[v]
        op = program.ops[value.producer]
        again = value.producer in repeated
        late = [r for r in program.readers[v] if plan.epoch[r] > plan.epoch[value.producer]]
        use = program.ops[late[0]] if late else None
        recipe, inputs = _recipe(program, v, repeated) if again and op.name != OFFLOAD else ((), ())
        if v in results:
            continue
        made = program.maker(v)
        extra = op.flops * runs[value.producer] if value.producer not in counted else 0.0
        counted.add(value.producer)
        found.append(
            Decision(
                action="keep" if not again else "offload" if op.name == OFFLOAD else "recompute",
                value=value.text,
                bytes=value.bytes,
                op=made.name,
                source=made.source,
                scope=op.scope,
                name=value.name,
                use=use.name if use else "recomputation",
                use_source=use.source if use else "",
                recipe=recipe,
                inputs=inputs,
                flops=extra,
            )
        )
    # Operations that run again only on the way to a value count too.
    for o in sorted(repeated - counted):
        op = program.ops[o]
        found.append(
            Decision(
                action="recompute",
                value=program.values[op.writes[0]].text,
                bytes=0,
                op=op.name,
                source=op.source,
                scope=op.scope,
                use="recomputation",
                flops=op.flops * runs[o],
            )
        )
    return found


def _recipe(program: Program, v: int, repeated: set[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names: list[str] = []
    inputs: list[str] = []
    seen: set[int] = set()
    stack = [v]
    while stack and len(names) < _RECIPE:
        value = stack.pop()
        producer = program.values[value].producer
        if producer < 0 or producer not in repeated:
            inputs.append(_label(program.values[value], program))
            continue
        if producer in seen:
            continue
        seen.add(producer)
        names.append(program.ops[producer].name)
        stack += program.ops[producer].reads
    return tuple(names), tuple(dict.fromkeys(inputs))


def _label(value: Value, program: Program) -> str:
    if value.producer < 0:
        return value.name or "constant"
    made = program.maker(program.ops[value.producer].writes[0])
    return f"{made.name} {value.text}" + (f" {value.name!r}" if value.name else "")


def _loop_decisions(pair: Pair, cut: Cut | None, flat: Flat) -> list[Decision]:
    program = pair.program
    index = {v: i for i, v in enumerate([*pair.body.constvars, *pair.body.invars])}
    for eqn, op in zip(pair.body.eqns, program.ops, strict=False):
        index.update(zip(eqn.outvars, op.writes, strict=True))
    rows = {index[v] for p in pair.residuals if not isinstance(v := pair.body.outvars[p], Literal)}
    kept = rows if cut is None else set(cut.kept)
    again = frozenset() if cut is None else cut.recomputed
    use, around = flat.eqns[pair.backward], _scope(flat, pair.forward)
    found = []
    segments = pair.length // cut.segment if cut is not None and cut.segment else pair.length
    for v in sorted(rows | kept):
        value = program.values[v]
        maker = program.maker(v) if value.producer >= 0 else None
        recompute = v not in kept
        recipe, inputs = _recipe(program, v, set(again)) if recompute else ((), ())
        found.append(
            Decision(
                action="recompute" if recompute else "keep",
                value=f"{pair.length if recompute else segments} x {value.text}",
                bytes=value.bytes if recompute else value.bytes * segments // pair.length,
                op=maker.name if maker else "operand",
                source=maker.source if maker and maker.source else _loop_source(pair, program),
                scope=under(around, maker.scope if maker else ""),
                name=value.name if maker else "",
                use=use.primitive.name,
                recipe=recipe,
                inputs=inputs,
                flops=maker.flops if maker and recompute and value.producer in again else 0.0,
                iterations=pair.length,
            )
        )
    covered = {program.values[v].producer for v in rows | kept}
    for o in sorted(again - covered):
        op = program.ops[o]
        text = f"{pair.length} x {program.values[op.writes[0]].text}"
        found.append(
            Decision("recompute", text, 0, op.name, op.source, under(around, op.scope), use="recomputation",
                     flops=op.flops, iterations=pair.length)
        )  # fmt: skip
    return found


def _scope(flat: Flat, index: int) -> str:
    return str(flat.eqns[index].source_info.name_stack)


def _loop_source(pair: Pair, program: Program) -> str:
    return next((op.source for op in program.ops if op.source), "")
