"""From a program to a ladder of schedules: epochs, windows, zones, assignments, rungs."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._planner.assign import KEPT, LOCAL, RESTART, assign
from recoup._planner.ladder import ladder, pareto_by
from recoup._planner.layout import SMALL_BYTES, crossing_bytes, layout, zones
from recoup._planner.machine import execute
from recoup._planner.options import choices, choose, levels
from recoup._program import CONSTANT, Program, Value

from .helpers import chain

BIG = 1 << 16


def training(blocks, width=BIG, pure=True):
    """Forward of `blocks` (product, tanh), backward reading both in reverse, by hand."""
    spec, x, saved = [], 0, []
    tanh = {"cost": 10.0, "flops": 10.0, "fusible": True, "heavy": False, "dear": True}
    for i in range(blocks):
        dot = {"cost": 1000.0, "flops": 1000.0, "source": f"net.py:{i}"}
        spec.append(("dot", [x], width, dot | {"pure": pure or i % 2 == 0}))
        y = len(spec)
        spec.append(("tanh", [y], width, tanh))
        saved.append((x, y, len(spec)))
        x = len(spec)
    g = x
    for x, y, h in reversed(saved):
        spec.append(("grad_tanh", [g, h, y], width, {"cost": 10.0, "fusible": True, "heavy": False}))
        back = len(spec)
        spec.append(("dot_w", [back, x], 8, {"cost": 1000.0}))
        spec.append(("dot_x", [back], width, {"cost": 1000.0}))
        g = len(spec)
    return chain(spec)


@st.composite
def chains(draw):
    """Chains of blocks of random sizes and costs with random skips and operations that may run only once."""
    blocks = draw(st.integers(2, 6))
    spec, x, saved, older = [], 0, [], [0]
    for _ in range(blocks):
        inner = draw(st.integers(1, 3))
        enter, made = x, []
        for _ in range(inner):
            heavy = draw(st.booleans())
            size = draw(st.integers(1, 64)) * 1024
            reads = [x]
            if draw(st.integers(0, 4)) == 0 and draw(st.sampled_from(older)) not in reads:
                reads.append(draw(st.sampled_from([o for o in older if o not in reads] or [x])))
            price, pure = float(draw(st.integers(1, 1000))), draw(st.integers(0, 9)) > 0
            options = {"cost": price, "heavy": heavy, "fusible": not heavy, "pure": pure}
            spec.append(("dot" if heavy else "ew", list(dict.fromkeys(reads)), size, options))
            x = len(spec)
            made.append(x)
        older.append(x)
        saved.append((enter, made))
    g = x
    for enter, made in reversed(saved):
        for v in reversed(made):
            spec.append(("back", [g, v], draw(st.integers(1, 64)) * 1024, {"cost": 5.0}))
            g = len(spec)
        spec.append(("grad", [g, enter], 1024, {}))
    return chain(spec)


@settings(max_examples=25, deadline=None)
@given(chains())
def test_every_rung_is_legal_and_the_ladder_is_a_front(program):
    plan, rungs = ladder(program, targets=6, resolutions=(4, 8))
    count = len(program.ops)
    assert rungs[0].schedule == tuple(range(count)) and rungs[0].cost == 0.0
    for rung in rungs:
        run = execute(program, rung.schedule, plan.window)  # raises on an illegal schedule
        assert (run.peak_bytes, run.cost) == (rung.peak_bytes, rung.cost)
        firsts = tuple(dict.fromkeys(rung.schedule))
        assert firsts == tuple(range(count))
    for above, below in itertools.pairwise(rungs):
        assert below.peak_bytes < above.peak_bytes or above is rungs[0]
        assert below.peak_bytes <= above.peak_bytes
        assert below.cost >= above.cost
    assert ladder(program, targets=6, resolutions=(4, 8))[1] == rungs  # deterministic


@settings(max_examples=25, deadline=None)
@given(chains(), st.integers(2, 8), st.data())
def test_any_assignment_becomes_a_legal_schedule(program, count, data):
    plan = layout(program)
    parts = zones(program, plan, count)
    crossing = sorted(plan.crossing)
    kept = set(data.draw(st.lists(st.sampled_from(crossing), unique=True))) if crossing else set()
    level = levels(program, plan, parts, kept)
    assert not any(v in level for v in (kept - plan.trivial) | plan.free)
    assert set(level.values()) <= {RESTART, LOCAL}
    assigned = assign(program, plan, parts, level)
    assert len(assigned.schedule) == len(assigned.zone)
    execute(program, assigned.schedule, plan.window)
    late = [
        v
        for v in level
        if any(plan.epoch[r] > plan.epoch[program.values[v].producer] for r in program.readers[v])
    ]
    repeated = {o for o in set(assigned.schedule) if assigned.schedule.count(o) > 1}
    # Everything that is dropped and read late is computed again.
    assert {program.values[v].producer for v in late} <= repeated


@settings(max_examples=20, deadline=None)
@given(chains())
def test_a_choice_costs_no_more_where_the_peak_is_higher(program):
    plan = layout(program)
    found = choices(program, plan, zones(program, plan, 4), limit=6)
    cost = {option.kept: option.cost for zone in found.options for option in zone}
    top = execute(program, range(len(program.ops)), plan.window).peak_bytes
    dearest = sum(max(o.cost for o in zone) for zone in found.options)
    for peak in (top, top * 3 // 4, top // 2):
        kept = choose(found, peak)
        if kept is not None:
            picked = [[o for o in zone if o.kept <= kept] for zone in found.options]
            assert all(picked) and cost and sum(min(o.cost for o in zone) for zone in picked) <= dearest
    assert choose(found, max(1, min(o.high_bytes for o in found.options[0]) - 1)) is None


def test_layout_of_a_training_step():
    program = training(6)
    plan = layout(program)
    assert plan.epoch == (0,) * 12 + (1,) * 18
    assert set(plan.window[:12]) == {0} and list(plan.window) == sorted(plan.window)
    # A window opens after each product of the backward chain; the weight products do not lead on.
    assert max(plan.window) == 6
    assert all(program.ops[program.values[plan.trigger[w]].producer].name == "dot_x" for w in range(2, 7))
    # The newest value of the forward pass that more than the next operation reads.
    assert program.values[plan.trigger[1]].producer == 10
    assert 0 in plan.free
    # The last tanh crosses too: it starts the backward pass.
    assert {program.values[v].producer for v in plan.crossing} == set(range(12))


def test_small_values_cross_for_nothing():
    assert not layout(training(4, width=SMALL_BYTES - 1)).crossing


def test_zones_start_at_narrow_points():
    # Wide inside a block, narrow between blocks.
    spec, x, saved = [], 0, []
    for _ in range(4):
        for size in (16 * BIG, 16 * BIG, BIG):
            spec.append(("dot", [x], size, {}))
            x = len(spec)
            saved.append(x)
    for v in reversed(saved):
        spec.append(("back", [x, v], BIG, {}))
        x = len(spec)
    program = chain(spec)
    plan = layout(program)
    parts = zones(program, plan, 4)
    assert parts.count == 5  # four of the forward pass, and the backward pass
    assert parts.zone[:12] == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    assert parts.boundary == {3, 6, 9}


def test_crossing_bytes_of_a_short_program():
    program = chain([("f", [0], 100, {}), ("g", [1], 10, {}), ("h", [1, 2], 1, {})])
    assert crossing_bytes(program).tolist() == [100, 110, 0]


def test_two_losses_make_two_epochs_of_memory():
    one = training(5)
    spec = []
    for repeat in range(2):
        for op in one.ops:
            offset = 0 if not repeat else len(one.ops)
            reads = [v + offset if v else 0 for v in op.reads]
            options = {"cost": op.cost, "fusible": op.fusible, "heavy": op.heavy, "dear": op.dear}
            spec.append((op.name, reads, one.values[op.writes[0]].bytes, options))
    plan = layout(chain(spec))
    assert sorted(set(plan.epoch)) == [0, 1, 2]


def test_levels_decide_how_long_a_recomputation_stays():
    program = training(4)
    plan = layout(program)
    parts = zones(program, plan, 2)
    free_of_all = assign(program, plan, parts, levels(program, plan, parts, set()))
    kept_all = assign(program, plan, parts, dict.fromkeys(plan.crossing, KEPT))
    assert kept_all.schedule == tuple(range(len(program.ops)))
    assert len(free_of_all.schedule) > len(program.ops)
    assert set(free_of_all.zone) >= {-1, 0, 1}


def test_a_chain_falls_far_for_one_more_forward_pass():
    program = training(16)
    _plan, rungs = ladder(program)
    forward = sum(op.cost for op in program.ops[:32])
    low = [r for r in rungs if r.cost <= forward]
    assert low[-1].peak_bytes <= 0.6 * rungs[0].peak_bytes
    assert rungs[-1].peak_bytes <= 0.4 * rungs[0].peak_bytes


def test_operations_that_may_run_only_once_are_kept():
    _plan, rungs = ladder(training(8, pure=False))
    assert len(rungs) > 1
    for rung in rungs:
        assert all(rung.schedule.count(o) == 1 for o in range(2, 16, 4))


def test_nothing_to_gain_means_one_rung():
    program = chain([("f", [0], BIG, {}), ("g", [1], BIG, {})])
    assert {rung.schedule for rung in ladder(program)[1]} == {(0, 1)}


def test_constants_are_there_anyway():
    program = training(3)
    values = (*program.values, Value(BIG, CONSTANT, "u8[65536]"))
    constant = len(values) - 1
    ops = list(program.ops)
    ops[-1] = ops[-1].__class__(
        **{f: getattr(ops[-1], f) for f in ops[-1].__dataclass_fields__}
        | {"reads": (*ops[-1].reads, constant)}
    )
    plan = layout(Program(tuple(ops), values, program.inputs, (constant,), program.outputs))
    assert constant in plan.free and constant not in plan.crossing


def test_a_front_leaves_out_what_is_beaten():
    class Item:
        def __init__(self, peak_bytes, cost):
            self.peak_bytes, self.cost = peak_bytes, cost

    items = [Item(9, 1.0), Item(8, 2.0), Item(8, 3.0), Item(7, 2.5), Item(10, 0.0)]
    assert [(i.peak_bytes, i.cost) for i in pareto_by(items, 10)] == [(9, 1.0), (8, 2.0), (7, 2.5)]
