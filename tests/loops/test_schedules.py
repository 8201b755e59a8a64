"""Every schedule is executed by the model machine, and the binomial one is compared with exhaustive dynamic
programming."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._loops import schedules
from recoup._loops.choose import Sizes, engines_within
from recoup._loops.machine import execute
from recoup._loops.schedules import Advance, ForwardEnd, Free, Load, Reverse, Store
from recoup.errors import PlanError


@cache
def fewest(n: int, slots: int) -> int:
    """Advances before the last step, by trying every place for the next state."""
    if n <= 1:
        return 0
    if slots == 1:
        return n * (n - 1) // 2
    return min(i + fewest(i, slots) + fewest(n - i, slots - 1) for i in range(1, n))


def test_formula_is_the_optimum():
    for n in range(251):
        for slots in range(1, 21):
            assert schedules.extra(n, slots) == fewest(n, slots)


def check_binomial(n, slots):
    run = execute(schedules.binomial(n, slots), n, slots)
    assert run.advances == schedules.optimal_advances(n, slots) == (1 + fewest(n, slots) if n else 0)
    assert run.reverses == n
    assert run.peak_slots <= slots


def test_binomial_executes_the_optimum():
    for n in [*range(40), 97, 150, 231, 250]:
        for slots in (1, 2, 3, 5, 10, 20):
            check_binomial(n, slots)


@pytest.mark.slow
def test_binomial_executes_the_optimum_everywhere():
    for n in range(251):
        for slots in range(1, 21):
            check_binomial(n, slots)


@given(st.integers(0, 400), st.integers(1, 40))
def test_online_is_legal_and_counted(n, slots):
    run = execute(schedules.online(n, slots), n, slots)
    assert run.reverses == n
    assert run.advances == schedules.online_advances(n, slots)
    assert run.advances >= schedules.optimal_advances(n, slots)


@pytest.mark.parametrize(("slots", "within"), [(10, 1.12), (20, 1.06), (45, 1.06), (64, 1.06)])
def test_online_stays_near_the_optimum(slots, within):
    n = 2 * slots
    while n <= 20_000:
        best = schedules.optimal_advances(n, slots) + n
        assert schedules.online_advances(n, slots) + n <= within * best, n
        n = max(n + 1, n * 103 // 100)


@given(st.integers(0, 300), st.integers(1, 20), st.integers(1, 50))
def test_tapes_are_legal_and_counted(n, slots, tape):
    run = execute(schedules.taped(n, slots, tape), n, slots, tape)
    assert run.reverses == n
    assert run.advances == schedules.taped_advances(n, slots, tape)
    assert run.peak_slots <= slots
    assert run.peak_tape == min(n, tape)
    if n:
        pieces = -(-n // tape)
        # all but the last piece: whole pieces, as often as the optimum for so many pieces says
        assert run.advances == tape * fewest(pieces, slots) + n - tape * (pieces - 1)


def test_the_machine_refuses_a_tape_that_is_too_long():
    whole = [Store(0, 0), Advance(0, 4), ForwardEnd(), Load(0, 0), Free(0), Reverse(0, 4)]
    assert execute(whole, 4, 1, 4).peak_tape == 4
    with pytest.raises(PlanError, match="the tape holds 3 steps"):
        execute(whole, 4, 1, 3)


@settings(deadline=None)
@given(st.integers(0, 2000), st.integers(2, 2**18), st.floats(0.01, 3), st.integers(0, 4096), st.booleans())
def test_engines_within_a_budget(n, state_bytes, ratio, xs_bytes, weights):
    sizes = Sizes(state_bytes, int(ratio * state_bytes) + 1, state_bytes * weights, xs_bytes * n)
    budget = 40 * state_bytes + 3000
    found = list(engines_within(n, sizes, budget))
    assert {c.tape_steps > 1 for c in found} <= {False, True}
    for c in found:
        assert c.predicted_bytes <= budget
        run = execute(schedules.taped(n, c.slots, c.tape_steps), n, c.slots, c.tape_steps)
        assert run.advances + run.reverses == c.evaluations


@given(st.integers(0, 300), st.integers(1, 12), st.integers(1, 60))
def test_two_stores_are_legal(n, slots, interval):
    run = execute(schedules.two_store(n, slots, interval), n, slots)
    assert run.reverses == n
    assert run.peak_second == run.second_writes == run.second_reads == -(-n // interval)
    pieces = [min(interval, n - p) for p in range(0, n, interval)]
    assert run.advances == n + sum(schedules.extra(k, slots) for k in pieces)


@given(st.integers(1, 3000), st.integers(1, 30), st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_interval_is_chosen_by_cost(n, slots, write, read):
    def cost(interval):
        if interval >= n:
            return schedules.optimal_advances(n, slots)
        pieces = [min(interval, n - p) for p in range(0, n, interval)]
        return n + sum(schedules.extra(k, slots) for k in pieces) + len(pieces) * (write + read)

    chosen = schedules.two_store_interval(n, slots, 1.0, write, read)
    assert cost(chosen) <= cost(n)
    for repeats in range(1, 6):
        assert cost(chosen) <= cost(schedules.reach(slots, repeats)) + 1e-9


def test_everything_advances_once():
    run = execute(schedules.everything(37), 37, 37)
    assert (run.advances, run.reverses) == (37, 37)


@given(st.integers(1, 100_000), st.integers(1, 4))
def test_levels_cover_almost_all_steps(n, levels):
    counts = schedules.level_lengths(n, levels)
    product = 1
    for k in counts:
        assert k >= 1
        product *= k
    assert product <= n
    assert n - product < max(2, product)


@pytest.mark.parametrize(
    "actions",
    [
        [Advance(1, 2)],
        [Store(0, 0), Advance(0, 2), Reverse(1)],
        [Store(0, 0), Advance(0, 2), ForwardEnd(), Load(0, 1), Reverse(1)],
        [Store(0, 0), Advance(0, 2), ForwardEnd(), Load(0, 0), Reverse(0)],
        [Store(0, 0), Advance(0, 2), ForwardEnd(), Load(0, 0), Advance(0, 1), Reverse(1)],
        [Store(0, 0), Advance(0, 1), Store(5, 1), Advance(1, 2), ForwardEnd()],
        [Free(0)],
        [Store(0, 0), Advance(0, 1), ForwardEnd()],
    ],
)
def test_the_machine_refuses(actions):
    with pytest.raises(PlanError):
        execute(actions, 2, 1)


def test_the_machine_refuses_one_state_too_many():
    legal = list(schedules.binomial(60, 5))
    execute(legal, 60, 5)
    with pytest.raises(PlanError):
        execute(legal, 60, 4)


def test_bad_numbers():
    with pytest.raises(ValueError, match="slots"):
        schedules.extra(3, 0)
    with pytest.raises(ValueError, match="levels"):
        schedules.level_lengths(3, 0)
