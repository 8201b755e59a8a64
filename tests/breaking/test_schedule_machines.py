"""The machines that need no JAX catch every kind of illegal schedule: the solver's and the loops'.

Each mutation of a legal schedule is refused, or shows in the numbers; some numbers are worked out by hand.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recoup._graph import Graph, Offload
from recoup._loops import schedules
from recoup._loops.machine import execute as execute_loop
from recoup._loops.schedules import Advance, ForwardEnd, Free, Load, Reverse, Store
from recoup._planner.machine import execute as execute_step
from recoup._program import ARGUMENT, Op, Program, Value
from recoup._solve import check, solve
from recoup.errors import PlanError

# -- the solver's checker ---------------------------------------------------------------------------------


@st.composite
def problems(draw: Any) -> Graph:
    """Chains with a backward that reads the forward in reverse: graphs on which recomputation pays."""
    n = draw(st.integers(3, 7))
    sizes = draw(st.lists(st.integers(1, 9), min_size=2 * n, max_size=2 * n))
    edges = [(i, i + 1) for i in range(2 * n - 1)] + [(i, 2 * n - 1 - i) for i in range(n - 1)]
    return Graph([1.0] * (2 * n), sizes, edges)


@given(problems(), st.floats(0.5, 0.95), st.data())
@settings(max_examples=60, deadline=None)
def test_solver_checker_refuses_mutations(graph: Graph, share: float, data: Any) -> None:
    plain = check(graph, range(len(graph)))
    low = int(graph.working_sets_bytes().max())
    budget = int(low + share * (plain.peak_bytes - low))
    try:
        found = solve(graph, budget, time_limit=0.2)
    except ValueError:
        assume(False)
    order = list(found.order)
    honest = check(graph, order, budget)
    assert (honest.cost, honest.peak_bytes) == (found.cost, found.peak_bytes)
    assert honest.peak_bytes <= budget
    # A value that is freed between two uses is held if its recomputation is left out: over the budget, or
    # the recomputation was not needed, and the solver would not have paid for it.
    repeats = [i for i, o in enumerate(order) if o in order[:i]]
    if repeats and found.optimal:
        at = data.draw(st.sampled_from(repeats))
        with pytest.raises(PlanError, match="over the budget"):
            check(graph, order[:at] + order[at + 1 :], budget)
    with pytest.raises(PlanError, match="over the budget"):
        check(graph, order, honest.peak_bytes - 1)
    with pytest.raises(PlanError, match="before its operand"):
        check(graph, order[1:], budget)  # operation 0 is read by the next
    with pytest.raises(PlanError, match=r"operation -1|operation \d+, and the graph"):
        check(graph, [*order, -1], budget)


def test_solver_checker_refuses_a_fetch_of_what_was_never_made() -> None:
    graph = Graph([1, 1, 1], [4, 4, 4], [(0, 1), (1, 2), (0, 2)])
    offload = Offload(np.ones(3), np.ones(3))
    check(graph, [0, 1, 3, 2], offload=offload)
    with pytest.raises(PlanError, match="fetches the value of 1 before"):
        check(graph, [0, 4, 1, 2], offload=offload)
    with pytest.raises(PlanError, match="step 0 computes operation 6"):
        check(graph, [6, 0, 1, 2], offload=offload)
    with pytest.raises(PlanError, match="step 3 computes operation 3"):
        check(graph, [0, 1, 2, 3])


def test_what_offload_costs_and_holds() -> None:
    """By hand: a store is paid once, a fetch each time, and between them the value is not in memory."""
    graph = Graph([1, 2, 4, 8], [5, 7, 3, 1], [(0, 1), (1, 2), (2, 3), (0, 3)])
    offload = Offload(np.array([16.0, 0, 0, 0]), np.array([32.0, 0, 0, 0]))
    plain = check(graph, range(4), offload=offload)
    assert (plain.cost, plain.profile.tolist()) == (15, [5, 12, 15, 9])
    once = check(graph, [0, 1, 2, 4, 3], offload=offload)
    assert (once.cost, once.profile.tolist()) == (15 + 16 + 32, [5, 12, 10, 8, 9])
    twice = check(graph, [0, 1, 4, 2, 4, 3], offload=offload)
    assert (twice.cost, twice.profile.tolist()) == (15 + 16 + 2 * 32, [5, 12, 12, 10, 8, 9])
    again = check(graph, [0, 1, 2, 0, 4, 3], offload=offload)  # computed again, for nothing
    assert (again.cost, again.profile.tolist()) == (15 + 1 + 16 + 32, [5, 12, 10, 8, 8, 9])


def test_the_numbers_of_the_solver_checker() -> None:
    graph = Graph([1, 2, 4], [5, 7, 3], [(0, 1), (0, 2)])
    found = check(graph, [0, 1, 0, 2])
    assert (found.cost, found.peak_bytes, found.profile.tolist()) == (8, 12, [5, 12, 5, 8])
    found = check(graph, np.array([[0, 1], [1, 2]]), 15)
    assert (found.cost, found.profile.tolist()) == (9, [5, 12, 12, 8])
    with pytest.raises(PlanError, match=r"step 1 \(operation 1\) holds 12 bytes, over the budget of 11"):
        check(graph, [0, 1, 2], 11)
    with pytest.raises(PlanError, match=r"step 1 \(operation 1\) holds 12 bytes, over the budget of 5"):
        check(graph, [0, 1, 2], 5)  # step 0 holds exactly 5
    with pytest.raises(PlanError, match=r"step 0 computes operation 3, and the graph has operations 0 to 2$"):
        check(graph, [3])
    with pytest.raises(PlanError, match=r"the graph has operations 0 to 1$"):
        check(Graph([1, 1], [1, 1], []), [2])
    with pytest.raises(PlanError, match="operation 2 never runs: the schedule ends after step 1"):
        check(graph, [0, 1])
    with pytest.raises(PlanError, match="step 1 computes operation 2 before its operand 0"):
        check(Graph([1, 1, 1], [1, 1, 1], [(0, 2)]), [1, 2, 0])
    with pytest.raises(PlanError, match="step 1 is the first to compute operation 2, and 1 comes first"):
        check(graph, [0, 2, 1], given=True)
    check(graph, [0, 0, 1, 0, 2], given=True)
    with pytest.raises(TypeError):  # so that no flag is taken for a budget
        check(graph, [0, 1, 2], None, True)  # type: ignore[misc]
    empty = check(Graph([], [], []), [])
    assert (empty.cost, empty.peak_bytes, empty.profile.tolist()) == (0, 0, [])


# -- the step planner's machine: temporaries in the memory of results --------------------------------------


def program(
    spec: list[tuple[list[int], int]], results: list[int], donated: frozenset[int] = frozenset()
) -> Any:
    """Operations that nothing fuses, as (what they read, bytes); value 0 is the argument."""
    values = [Value(64, ARGUMENT, "f32[16]")]
    ops = []
    for i, (reads, size) in enumerate(spec):
        ops.append(Op(f"op{i}", tuple(reads), (i + 1,), 2.0, 1.0, True, False, True))
        values.append(Value(size, i, f"u8[{size}]"))
    return Program(tuple(ops), tuple(values), (0,), (), tuple(results), donated)


def literal_live(made: Any, schedule: list[int]) -> list[int]:
    """What is alive at each step: temporaries, largest first, sit in free results that are large enough."""
    reads = {step: made.ops[o].reads for step, o in enumerate(schedule)}
    latest: dict[int, int] = {}
    end = list(range(len(schedule)))
    for step, o in enumerate(schedule):
        for v in reads[step]:
            if v:
                end[latest[v]] = step
        latest[made.ops[o].writes[0]] = step
    outputs = set(made.outputs)
    sizes = [0 if made.ops[o].writes[0] in outputs else made.values[o + 1].bytes for o in schedule]
    live = []
    for step in range(len(schedule)):
        # the memory of a result is free until the operation that writes it runs for the first time
        free = sorted(made.values[v].bytes for v in made.own_results if schedule.index(v - 1) > step)
        total = 0
        for size in sorted((sizes[s] for s in range(step + 1) if end[s] >= step), reverse=True):
            room = next((f for f in free if f >= size), None)
            if size and 32 * size >= max(sizes) and room is not None:
                free.remove(room)
            else:
                total += size
        live.append(total)
    return live


@st.composite
def programs_with_results(draw: Any) -> tuple[Any, list[int]]:
    n = draw(st.integers(2, 8))
    sizes = st.sampled_from([1, 2, 3, 31, 32, 33, 64, 96, 1000])
    spec = [
        (draw(st.lists(st.integers(0, i), min_size=1, max_size=2, unique=True)), draw(sizes))
        for i in range(n)
    ]
    made = program(spec, draw(st.lists(st.integers(1, n), max_size=4)))
    schedule: list[int] = []
    for o in range(n):
        again = draw(st.lists(st.integers(0, o - 1), max_size=2)) if o else []
        schedule += [*again, o]
    return made, schedule


@given(programs_with_results())
@settings(max_examples=200, deadline=None)
def test_step_machine_agrees_with_literal_semantics(drawn: Any) -> None:
    made, schedule = drawn
    run = execute_step(made, schedule)
    live = literal_live(made, schedule)
    assert list(run.live_bytes) == live and run.peak_bytes == max(live)
    assert (run.cost, run.flops) == (len(schedule) - len(made.ops), 2.0 * len(schedule))


def test_temporaries_in_the_memory_of_results() -> None:
    spec = [([0], 100), ([1], 3), ([2], 3), ([3, 1], 96), ([4], 100), ([4, 5], 7)]
    alone = execute_step(program(spec, [6]), range(6))
    assert alone.live_bytes == (100, 103, 106, 199, 196, 196)
    # value 5 has room for value 1, then, when both wait, for one of the two
    assert execute_step(program(spec, [5, 6]), range(6)).live_bytes == (0, 3, 6, 99, 96, 96)
    # three results' memory for three temporaries of two sizes
    three = program([([0], 100), ([1], 90), ([2], 90), ([1, 2, 3], 100), ([4], 100), ([5], 100)], [4, 5, 6])
    assert execute_step(three, range(6)).live_bytes[:3] == (0, 0, 0)
    # in the memory of a donated argument nothing else is put
    spec[4] = ([4], 64)
    made = program(spec, [5, 6], frozenset([0]))
    values = (replace(made.values[0], text="u8[64]"), *made.values[1:])
    assert execute_step(replace(made, values=values), range(6)).live_bytes[0] == 100


def test_the_step_machine_names_the_step() -> None:
    made = program([([0], 4), ([1], 4), ([2], 4)], [3])
    with pytest.raises(PlanError, match="step 1 runs operation 2 before operation 1"):
        execute_step(made, [0, 2, 1])
    with pytest.raises(PlanError, match="step 3 runs operation 2 before operation 1"):
        execute_step(made, [0, 0, 0, 2, 1])
    with pytest.raises(PlanError, match=r"operation 2 \(op2\) is never computed"):
        execute_step(made, [0, 1, 0])
    impure = replace(made, ops=(made.ops[0], replace(made.ops[1], pure=False), made.ops[2]))
    with pytest.raises(PlanError, match=r"step 3 repeats operation 1 \(op1, \), which may run only once"):
        execute_step(impure, [0, 0, 1, 1, 2])
    late = program([([2], 4), ([0], 4)], [1])
    with pytest.raises(PlanError, match=r"step 0 \(op0, \) reads a value that is not computed yet"):
        execute_step(late, [0, 1])
    empty = execute_step(program([], []), [])
    assert (empty.live_bytes, empty.peak_bytes, empty.cost) == ((), 0, 0.0)


# -- the loop machine -------------------------------------------------------------------------------------


@st.composite
def loops(draw: Any) -> tuple[list[Any], int, int]:
    n, slots = draw(st.integers(2, 40)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["binomial", "online", "two stores"]))
    if kind == "binomial":
        return list(schedules.binomial(n, slots)), n, slots
    if kind == "online":
        return list(schedules.online(n, slots)), n, slots
    return list(schedules.two_store(n, slots, draw(st.integers(1, n)))), n, slots


MUTATIONS: dict[str, tuple[type, Any]] = {
    "a state loaded that the slot does not hold": (Load, lambda a: replace(a, step=a.step + 1)),
    "a load from an empty slot": (Load, lambda a: replace(a, slot=a.slot + 1000)),
    "a state stored that is not there": (Store, lambda a: replace(a, step=a.step + 1)),
    "a slot that does not exist": (Store, lambda a: replace(a, slot=a.slot + 1000, store="memory")),
    "an advance from another state": (Advance, lambda a: replace(a, begin=a.begin + 1, end=a.end + 1)),
    "an advance past the end": (Advance, lambda a: replace(a, end=a.end + 10_000)),
    "an empty advance": (Advance, lambda a: replace(a, end=a.begin)),
    "another step reversed": (Reverse, lambda a: replace(a, step=a.step + 1)),
    "a slot freed that is empty": (Free, lambda a: replace(a, slot=a.slot + 1000)),
}


@pytest.mark.parametrize("kind", MUTATIONS)
@given(loops(), st.data())
@settings(max_examples=25, deadline=None)
def test_loop_machine_refuses_changed_actions(kind: str, loop: Any, data: Any) -> None:
    actions, n, slots = loop
    execute_loop(actions, n, slots)
    of, change = MUTATIONS[kind]
    at = data.draw(st.sampled_from([i for i, a in enumerate(actions) if isinstance(a, of)]))
    with pytest.raises(PlanError):
        execute_loop([*actions[:at], change(actions[at]), *actions[at + 1 :]], n, slots)


@pytest.mark.parametrize("of", [Advance, Reverse, ForwardEnd, Load])
@given(loops(), st.data())
@settings(max_examples=25, deadline=None)
def test_loop_machine_refuses_lost_actions(of: type, loop: Any, data: Any) -> None:
    actions, n, slots = loop
    at = data.draw(st.sampled_from([i for i, a in enumerate(actions) if isinstance(a, of)]))
    lost = actions[:at] + actions[at + 1 :]
    if of is Load:  # loading the state that is being worked on changes nothing
        before = actions[at - 1]
        assume(not (isinstance(before, Store) and before.step == actions[at].step))
    with pytest.raises(PlanError):
        execute_loop(lost, n, slots)


@pytest.mark.parametrize("of", [Advance, Reverse, ForwardEnd, Free])
@given(loops(), st.data())
@settings(max_examples=25, deadline=None)
def test_loop_machine_refuses_doubled_actions(of: type, loop: Any, data: Any) -> None:
    actions, n, slots = loop
    at = data.draw(st.sampled_from([i for i, a in enumerate(actions) if isinstance(a, of)]))
    with pytest.raises(PlanError):
        execute_loop([*actions[: at + 1], actions[at], *actions[at + 1 :]], n, slots)


@given(loops(), st.data())
@settings(max_examples=50, deadline=None)
def test_loop_machine_refuses_a_state_read_after_it_was_freed(loop: Any, data: Any) -> None:
    actions, n, slots = loop
    frees = [i for i, a in enumerate(actions) if isinstance(a, Load)]
    at = data.draw(st.sampled_from(frees))
    load = actions[at]
    freed = [*actions[:at], Free(load.slot, load.store), *actions[at:]]
    with pytest.raises(PlanError):
        execute_loop(freed, n, slots)


@given(loops())
@settings(max_examples=50, deadline=None)
def test_loop_machine_refuses_fewer_slots_than_are_held(loop: Any) -> None:
    actions, n, slots = loop
    peak = execute_loop(actions, n, slots).peak_slots
    assume(peak > 1)
    with pytest.raises(PlanError, match=r"states are held|slots"):
        execute_loop(actions, n, peak - 1)


def test_the_numbers_of_the_loop_machine() -> None:
    """By hand: four steps, two slots in memory, one state in the second store."""
    forward = [Store(0, 0), Advance(0, 2), Store(7, 2, "second"), Advance(2, 3), Store(1, 3), Advance(3, 4)]
    back = [
        ForwardEnd(), Load(1, 3), Free(1), Reverse(3), Load(7, 2, "second"), Reverse(2), Free(7, "second"),
        Load(0, 0), Advance(0, 1), Store(1, 1), Free(1), Reverse(1), Load(0, 0), Reverse(0), Free(0),
    ]  # fmt: skip
    run = execute_loop([*forward, *back], 4, 2)
    assert (run.advances, run.reverses, run.second_writes, run.second_reads) == (5, 4, 1, 1)
    # the state that is worked on, the one before the step that is reversed next, takes no slot
    assert (run.peak_slots, run.peak_second) == (1, 1)
    late = [*forward, *back[:2], back[3], back[2], *back[4:]]  # given up after its step is reversed
    assert execute_loop(late, 4, 2).peak_slots == 2
    with pytest.raises(PlanError, match="1 states are held"):
        execute_loop([*forward, *back], 4, 0)
    with pytest.raises(PlanError, match="there are 2 slots"):
        execute_loop([Store(3, 0)], 4, 2)
    with pytest.raises(PlanError, match="the working state is None, the next step to reverse 3"):
        execute_loop([*forward, ForwardEnd(), Reverse(3)], 4, 2)
    with pytest.raises(PlanError, match="steps 2 and below were not reversed"):
        execute_loop([*forward, *back[:4]], 4, 2)
    with pytest.raises(PlanError, match="the forward pass has not ended"):
        execute_loop([Store(0, 0), Reverse(0)], 1, 1)
    with pytest.raises(PlanError, match="the working state is 0"):
        execute_loop([Advance(0, 5)], 4, 2)
    empty = execute_loop([ForwardEnd()], 0, 1)
    assert (empty.advances, empty.reverses, empty.peak_slots, empty.peak_second) == (0, 0, 0, 0)
