"""Advice for those who wrap by hand: the functions to put in regions that come closest to a plan.

Idea: each equation remembers which of the user's functions were running when it was recorded. A call of a
function is then a run of forward operations, and wrapping it means: what it made and nobody outside reads
is computed again, all at once, right before the first late use. Candidates are functions, how many of
their calls to wrap, and which values that the plan keeps to keep by name. The planner's machine ranks them
all; the best are rewritten as a plan is, and the memory model predicts them. Where no function is called
several times, ranges of lines between narrow points stand in. A loop's body takes the plan's own trade.
Limits: calls are told apart by the place in the code where they begin, so the calls of a function that
begins with a Python loop count as one. Two functions are not combined. The user's own regions are left as
they are.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recoup import _compat, _memory
from recoup._compat import Call
from recoup._inline import Flat
from recoup._planner.layout import Layout, zones
from recoup._planner.machine import execute
from recoup._program import Program
from recoup._report.advice import Advice, Keep, Wrap
from recoup._rewrite import _Rewriter

if TYPE_CHECKING:
    from recoup._evidence import Evidence
    from recoup._plan import Plan

_FUNCTIONS = 4  # candidates with the most bytes
_NAMES = (0, 1, 2, 4, 8)  # how many groups of values to keep by name
_COUNTS = 8  # how many of a function's calls to wrap: so many different answers
_CANDIDATES = 300_000  # operations times candidates: each is executed by the machine
_PREDICTIONS = 8
_WORTH_NAMING = 0.01  # of what the calls would keep


@dataclass(frozen=True)
class _Group:
    """A function's calls (or ranges of lines), each a run of forward operations."""

    function: str
    source: str
    calls: tuple[tuple[int, ...], ...]


class _ByHand(_Rewriter):
    """What regions by hand make of a program: barriers before recomputations only, nothing pinned."""

    def _to_pin(self, schedule: Sequence[int]) -> set[int]:
        return set()

    def _late_uses(self) -> dict[int, list[int]]:
        return {}


@dataclass(frozen=True)
class _Candidate:
    wrap: Wrap | None
    schedule: tuple[int, ...]
    peak_bytes: int  # by the machine: ranks only
    cost: float
    flops: float


def advise(evidence: "Evidence", plan: "Plan") -> Advice:
    """The regions that come closest to `plan`."""
    flat, program, division, loops = evidence.base()
    work = max(evidence.traced.program.flops, 1.0)
    kept = _kept_groups(plan)
    plain = _candidate(program, division, None, (), frozenset())
    grids = [_candidates(group, program, division, kept) for group in _groups(flat, program, division)]
    # the coarsest of every group first, so that a large program loses the finest
    turns = (c for row in itertools.zip_longest(*grids) for c in row if c is not None)
    found = [plain, *itertools.islice(turns, max(12, _CANDIDATES // max(1, len(program.ops))))]
    front = _front(found)
    target = plan.budget_bytes or plan.peak_bytes
    best, prediction = _closest(front, target, flat, program, division, evidence.traced.donated)
    wraps = (*_loop_wraps(evidence, plan, loops), *((best.wrap,) if best.wrap else ()))
    return Advice(
        wraps=wraps,
        low_bytes=prediction.low.total_bytes,
        estimate_bytes=prediction.estimate.total_bytes,
        high_bytes=prediction.high.total_bytes,
        overhead=(best.flops - evidence.traced.program.flops) / work,
        plan_bytes=plan.peak_bytes,
        plan_overhead=plan.overhead,
        unplanned_bytes=plan.unplanned_bytes,
        budget_bytes=plan.budget_bytes,
        regions=plan.region_names if plan.regions == "respect" else (),
    )


def _closest(
    front: Sequence[_Candidate], target: int, flat: Flat, program: Program, division: Layout, donated: Any
) -> tuple[_Candidate, Any]:
    """The cheapest candidate predicted within the target; else the one predicted lowest. A bisection."""
    seen: dict[int, Any] = {}

    def predicted(index: int) -> Any:
        if index not in seen:
            schedule = front[index].schedule
            rewritten = _ByHand(flat, program, division).run(schedule) if index else flat
            seen[index] = _memory.predict(rewritten.per_device(), donated=donated)
        return seen[index]

    low, high = 0, len(front) - 1
    while low < high and len(seen) < _PREDICTIONS:
        middle = (low + high) // 2
        if predicted(middle).high.total_bytes <= target:
            high = middle
        else:
            low = middle + 1
    predicted(high)
    within = [i for i, p in seen.items() if p.high.total_bytes <= target]
    at = min(within) if within else min(seen, key=lambda i: (seen[i].high.total_bytes, i))
    return front[at], seen[at]


def _front(found: Sequence[_Candidate]) -> list[_Candidate]:
    """From the plain step (first) down, each lower by the machine and dearer."""
    front: list[_Candidate] = []
    for candidate in sorted(found, key=lambda c: (c.cost, c.peak_bytes)):
        if not front or candidate.peak_bytes < front[-1].peak_bytes:
            front.append(candidate)
    return front


def _candidates(
    group: _Group, program: Program, division: Layout, kept: dict[tuple[str, str], int]
) -> Iterator[_Candidate]:
    """A group wrapped more and less, with more and less kept by name; nothing by name first."""
    total = len(group.calls)
    steps = min(_COUNTS, total)
    counts = [round(total * (steps - i) / steps) for i in range(steps)]
    keeps = {count: _keeps(group.calls[:count], program, division, kept) for count in counts}
    for names, count in itertools.product(_NAMES, counts):
        chosen = keeps[count][:names]
        if len(chosen) < names:
            continue
        values = frozenset(v for _, members in chosen for v in members)
        wrap = Wrap(group.function, group.source, count, total, tuple(keep for keep, _ in chosen))
        yield _candidate(program, division, wrap, group.calls[:count], values)


def _candidate(
    program: Program,
    division: Layout,
    wrap: Wrap | None,
    calls: Sequence[tuple[int, ...]],
    named: frozenset[int],
) -> _Candidate:
    schedule = _schedule(program, division, calls, named)
    run = execute(program, schedule)
    return _Candidate(wrap, schedule, run.peak_bytes, run.cost, run.flops)


def _schedule(
    program: Program, division: Layout, calls: Sequence[tuple[int, ...]], named: frozenset[int]
) -> tuple[int, ...]:
    """The step with each call a region: what it made inside is computed again before its first late use."""
    region = {o: number for number, call in enumerate(calls) for o in call}
    epoch, values = division.epoch, program.values
    droppable = set(division.droppable) - named
    dropped: set[int] = set()
    for o, number in region.items():
        for v in program.ops[o].writes:
            early = (r for r in program.readers[v] if epoch[r] == epoch[o])
            if v in droppable and all(region.get(r) == number for r in early):
                dropped.add(v)
    late: dict[int, list[int]] = {}  # window -> regions that it needs first
    needed: dict[int, list[int]] = {}  # region -> its values with a late use
    for window, v in division.late_reads:
        if v in dropped:
            number = region[values[v].producer]
            if number not in needed:
                late.setdefault(window, []).append(number)
            needed.setdefault(number, []).append(v)
    schedule: list[int] = []
    window = 0
    for i in range(len(program.ops)):
        if division.window[i] != window:
            window = division.window[i]
            clones: set[int] = set()
            stack = [v for number in late.get(window, ()) for v in needed[number]]
            while stack:
                v = stack.pop()
                if v in dropped and values[v].producer not in clones:
                    clones.add(values[v].producer)
                    stack += program.ops[values[v].producer].reads
            schedule += sorted(clones)
        schedule.append(i)
    return tuple(schedule)


def _keeps(
    calls: Sequence[tuple[int, ...]], program: Program, division: Layout, kept: dict[tuple[str, str], int]
) -> list[tuple[Keep, tuple[int, ...]]]:
    """Values inside the calls that the plan keeps, by line and operation, those that cost most a byte
    first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for o in itertools.chain.from_iterable(calls):
        op = program.ops[o]
        for v in op.writes:
            if v in division.crossing and (op.source, op.name) in kept:
                groups.setdefault((op.source, op.name), []).append(v)

    def worth(members: Sequence[int]) -> float:
        cost = sum(program.ops[program.values[v].producer].cost for v in members)
        return cost / max(1, sum(program.values[v].bytes for v in members))

    crossing = (v for o in itertools.chain.from_iterable(calls) for v in program.ops[o].writes)
    whole = sum(program.values[v].bytes for v in crossing if v in division.crossing)
    ranked = sorted(groups.items(), key=lambda item: -worth(item[1]))
    found = []
    for (source, name), members in ranked:
        line = source.split(" (")[0].rpartition(":")[2]
        size = sum(program.values[v].bytes for v in members)
        if size < _WORTH_NAMING * whole:
            continue
        keep = Keep(f"{name}_{line}", source, name, program.values[members[0]].text, len(members), size)
        found.append((keep, tuple(members)))
    return found


def _kept_groups(plan: "Plan") -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for d in plan.decisions:
        if d.action == "keep" and not d.iterations:
            found[d.source, d.op] = found.get((d.source, d.op), 0) + d.bytes
    return found


def _groups(flat: Flat, program: Program, division: Layout) -> list[_Group]:
    """Functions with several calls, those with the most bytes first; else ranges of lines."""
    last = max(division.epoch, default=0)
    early = [o for o in range(len(program.ops)) if division.epoch[o] < last]
    stacks = {o: _compat.user_calls(flat.eqns[o]) for o in early}
    found = [group for group in _functions(early, stacks) if len(group.calls) > 1]

    def size(group: _Group) -> int:
        members = itertools.chain.from_iterable(group.calls)
        return sum(
            program.values[v].bytes for o in members for v in program.ops[o].writes if v in division.crossing
        )

    found = sorted((g for g in found if size(g)), key=lambda g: -size(g))[:_FUNCTIONS]
    return found or _ranges(program, division)


def _functions(early: Sequence[int], stacks: dict[int, tuple[Call, ...]]) -> Iterator[_Group]:
    calls: dict[tuple[str, str, int], list[list[int]]] = {}
    began: dict[tuple[str, str, int], tuple[Any, int, bool]] = {}  # callers, first place, whether past it
    for o in early:
        for depth, call in enumerate(stacks[o]):
            if depth == 0 or "site-packages" in call.file or call.function.endswith(("<lambda>", "<module>")):
                continue
            key = (call.file, call.function, call.first_line)
            callers = tuple((c.function, c.position) for c in stacks[o][:depth])
            now = began.get(key)
            if now is None or now[0] != callers or (now[2] and now[1] == call.position and not call.looped):
                began[key] = (callers, call.position, False)
                calls.setdefault(key, []).append([])
            elif now[1] != call.position:
                began[key] = (callers, now[1], True)
            calls[key][-1].append(o)
    for (file, function, line), found in calls.items():
        name = function.rpartition("<locals>.")[2]
        yield _Group(name, f"{file}:{line}", tuple(map(tuple, found)))


def _ranges(program: Program, division: Layout) -> list[_Group]:
    """Ranges of lines between narrow points of the forward pass; the last one would gain nothing."""
    found = []
    for count in (4, 8, 16):
        if count * 4 > len(program.ops):
            break
        parts = zones(program, division, count)
        members: list[list[int]] = [[] for _ in range(parts.count)]
        for o in range(len(program.ops)):
            if division.epoch[o] == 0:
                members[parts.zone[o]].append(o)
        calls = tuple(tuple(m) for m in members if m)[:-1]
        if calls:
            lines = [_lines(program, call) for call in calls]
            found.append(_Group("", ", ".join(dict.fromkeys(line for line in lines if line)), calls))
    return found


def _lines(program: Program, call: Sequence[int]) -> str:
    places = [program.ops[o].source.split(" (")[0] for o in call if program.ops[o].source]
    if not places:
        return ""
    file = max({p.rpartition(":")[0] for p in places}, key=lambda f: sum(p.startswith(f) for p in places))
    numbers = sorted(int(p.rpartition(":")[2]) for p in places if p.rpartition(":")[0] == file)
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{numbers[0]}-{numbers[-1]}" if numbers[0] != numbers[-1] else f"{name}:{numbers[0]}"


def _loop_wraps(evidence: "Evidence", plan: "Plan", loops: Sequence[tuple[Any, Any]]) -> Iterator[Wrap]:
    """The plan's own trades of loops, as regions around their bodies."""
    for pair, cut in loops:
        body = _body(evidence.traced.flat.eqns[pair.forward], pair.body.eqns)
        keeps: dict[tuple[str, str, str], Keep] = {}
        for d in plan.decisions:
            if d.action == "keep" and d.iterations == pair.length and d.op != "operand" and d.op != "carry":
                line = d.source.split(" (")[0].rpartition(":")[2]
                fresh = Keep(f"{d.op}_{line}", d.source, d.op, d.value, 0, 0)
                old = keeps.get((d.source, d.op, d.value), fresh)
                keeps[d.source, d.op, d.value] = replace(old, count=old.count + 1, bytes=old.bytes + d.bytes)
        yield Wrap(
            function=body.function.rpartition("<locals>.")[2] if body else "",
            source=f"{body.file}:{body.first_line}" if body else "",
            regions=1,
            calls=1,
            keeps=tuple(sorted(keeps.values(), key=lambda k: -k.bytes)),
            loop=pair.length,
            segment=cut.segment,
        )


def _body(scan: Any, eqns: Sequence[Any]) -> Call | None:
    """The function that a loop's body calls first: the outermost in which most of its operations are."""
    around = {(c.file, c.function) for c in _compat.user_calls(scan)}
    found: Counter[tuple[str, str, int]] = Counter()
    calls: dict[tuple[str, str, int], Call] = {}
    for eqn in eqns:
        for call in _compat.user_calls(eqn):
            if (call.file, call.function) not in around and not call.function.endswith("<lambda>"):
                key = (call.file, call.function, call.first_line)
                found[key] += 1
                calls[key] = call
                break
    return calls[found.most_common(1)[0][0]] if found else None
