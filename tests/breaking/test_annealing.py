"""The annealer's memory and cost are those of its schedule, whatever moves it made; what no search can meet.

Fast enough for plain Python, in which the coverage of the compiled modules is measured.
"""

import time
from typing import Any

import numpy as np
import pytest

from recoup._graph import Graph, Offload
from recoup._solve import _bounds, _portfolio, check, solve
from recoup._solve._annealer import Annealer
from recoup._solve._bounds import cover_bound
from recoup._solve._cut import Cut, realise
from recoup._solve._exact import exact
from recoup.errors import InfeasibleError


def training(layers: int, sizes: tuple[int, int], rng: np.random.Generator) -> Graph:
    """A chain and its way back, each step of which reads one of the chain, and a few edges more."""
    n = 2 * layers
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(layers - 1)]
    edges += [(int(rng.integers(0, v)), v) for v in range(1, n, 3)]
    return Graph(rng.integers(1, 9, n), rng.integers(*sizes, n), edges)


def annealer(
    graph: Graph, budget: int, free: bool, seed: int, offload: Offload | None, copies: int = 4
) -> Any:
    n = len(graph)
    movable = np.zeros(n, bool) if offload is None else np.isfinite(offload.fetches)
    stores = [0] * n if offload is None else [int(s) for s in offload.stores]
    fetches = [int(offload.fetches[v]) if offload is not None and movable[v] else -1 for v in range(n)]
    starts, ids = graph.operand_starts.tolist(), graph.operand_ids.tolist()
    costs = graph.costs.astype(int).tolist()
    return Annealer(starts, ids, graph.sizes.tolist(), costs, budget, copies, free, seed, stores, fetches)


@pytest.mark.parametrize("spacing", [1, 3])
@pytest.mark.parametrize("moving", [False, True], ids=["compute", "fetch"])
@pytest.mark.parametrize("free", [False, True], ids=["given", "free"])
def test_memory_and_cost_are_the_schedules(free: bool, moving: bool, spacing: int) -> None:
    """From a schedule with repeats and fetches, at falling budgets, loaded again and again."""
    rng = np.random.default_rng(1)
    graph = training(10, (1, 40), rng)
    n = len(graph)
    offload = None
    if moving:
        offload = Offload(np.full(n, 3.0), np.where(np.arange(n) % 3 == 0, np.inf, 2.0))
    peak, low = check(graph, range(n)).peak_bytes, int(graph.working_sets_bytes().max())
    order = [*range(n // 2), 0, 1, 2, *([n + 1, n + 4] if moving else []), *range(n // 2, n)]
    made = annealer(graph, peak, free, 5, offload)
    made.start(order, spacing)
    best = 0
    for share in (0.7, 0.5, 0.3, 0.1, 0.0):
        budget = int(low + share * (peak - low))
        made.set_budget(budget)
        made.forget_best()
        for cold in (3.0, 0.01):
            made.heat(30.0, cold, 512)
            made.run(1024)
            order = made.order()
            now = check(graph, order, given=not free, offload=offload)
            assert (made.peak(), made.cost) == (now.peak_bytes, now.cost)
            assert made.over == np.maximum(0, now.profile - budget).sum()
            if found := made.best_order():
                best += 1
                kept = check(graph, found, budget, given=not free, offload=offload)
                assert kept.cost == made.best_cost
        made.start(order, spacing)
        assert made.order() == order
    assert best >= 3  # the record was not always empty


def test_a_search_without_holes_says_so() -> None:
    """It stops early, to be loaded again with new holes; nothing that it did is wrong."""
    graph = training(12, (1, 40), np.random.default_rng(2))
    made = annealer(graph, int(graph.working_sets_bytes().max()), True, 3, None, copies=8)
    made.start(list(range(len(graph))), 0)
    made.heat(1e6, 1e5, 25_600)
    assert made.run(25_600) < 25_600
    assert made.peak() == check(graph, made.order()).peak_bytes


def test_the_record_outlives_a_longer_schedule() -> None:
    graph = training(40, (1, 9), np.random.default_rng(3))
    n = len(graph)
    made = annealer(graph, check(graph, range(n)).peak_bytes, False, 3, None)
    made.start(list(range(n)), 3)  # more slots than one block of the smallest size
    made.heat(1.0, 0.1, 256)
    made.run(256)
    best = made.best_order()
    assert best and made.best_cost == check(graph, best).cost
    made.start([*range(n // 2), *range(n // 2), *range(n // 2, n)], 3)
    assert made.best_order() == best
    made.forget_best()
    assert made.best_order() == []


def both_at_once() -> Graph:
    """Two values of 5 bytes, each made from one of 5 bytes, and read together: 11 bytes are enough for every
    operation alone, and for no schedule."""
    return Graph([1] * 5, [5, 5, 5, 5, 1], [(0, 1), (2, 3), (1, 4), (3, 4)])


@pytest.mark.parametrize("order", ["free", "given"])
@pytest.mark.parametrize("offload", [None, Offload(np.full(5, np.inf), np.full(5, np.inf))])
def test_a_budget_that_no_schedule_meets_is_refused_with_proof(order: str, offload: Offload | None) -> None:
    graph = both_at_once()
    assert int(graph.working_sets_bytes().max()) == 11
    with pytest.raises(InfeasibleError) as caught:
        solve(graph, 14, order=order, offload=offload)
    assert caught.value.proved
    assert solve(graph, 15, order=order, offload=offload).cost == 5


def test_bounds_where_no_schedule_exists() -> None:
    """A bound may be anything then, but a number; and it is no proof of something else."""
    graph = both_at_once()
    for free in (False, True):
        assert np.isfinite(cover_bound(graph, 10, free=free, time_limit=0.2))
    flat = Graph([1, 1, 1], [0, 4, 4], [(0, 1), (0, 2), (1, 2)])  # nothing that could be dropped has bytes
    assert cover_bound(flat, 7) == 0.0


def test_bounds_of_many_full_steps_hold() -> None:
    """More rows than are looked at: those that are left out make the bound weaker, never wrong."""
    rng = np.random.default_rng(4)
    m = _bounds.MOST_ROWS  # values made from the first, then read in reverse, each once
    edges = [(0, i) for i in range(1, m + 1)] + [(i, 2 * m + 1 - i) for i in range(1, m + 1)]
    sizes = [1, *rng.integers(50, 60, m), *[1] * m]
    graph = Graph(rng.integers(1, 9, 2 * m + 1), sizes, edges)
    plain = check(graph, range(2 * m + 1))
    budget = plain.peak_bytes // 4
    assert (plain.profile > budget).sum() > _bounds.MOST_ROWS
    # a legal schedule: the first ones are held, the others computed again right before they are read
    held = int(np.searchsorted(np.cumsum(sizes), budget - 200))
    back = [o for i in range(m, 0, -1) for o in ([] if i <= held else [i]) + [2 * m + 1 - i]]
    cost = check(graph, [*range(m + 1), *back], budget).cost
    assert 0 < cover_bound(graph, budget, time_limit=0.5) <= cost - graph.total_cost


def test_a_cut_is_realised_once_for_each_value() -> None:
    """A value that two others wait for is computed again once."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5)]
    graph = Graph([1] * 6, [4, 2, 2, 8, 1, 1], edges)
    held = np.zeros(6, bool)
    order = realise(graph, range(6), Cut(0.0, held, 4))
    assert order == [0, 1, 2, 3, 4, 0, 2, 1, 3, 5] or order == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5]
    check(graph, order)


def test_the_search_over_states_without_values_to_drop() -> None:
    graph = both_at_once()
    for given in (False, True):
        decided = exact(graph, 14, given=given, deadline=time.monotonic() + 5)
        assert decided.finished and decided.order is None
        best = exact(graph, 15, given=given, deadline=time.monotonic() + 5).order
        assert best is not None and check(graph, best, 15, given=given).cost == 5


def test_large_graphs_start_from_the_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_portfolio, "LARGE", 20)
    monkeypatch.setattr(_portfolio, "SMALL", 0)
    rng = np.random.default_rng(5)
    graph = training(15, (10, 30), rng)
    peak, low = check(graph, range(len(graph))).peak_bytes, int(graph.working_sets_bytes().max())
    for order in ("free", "given"):
        found = solve(graph, low + 2 * (peak - low) // 3, moves=2560, order=order)
        assert check(graph, found.order, found.budget_bytes).cost == found.cost
        again = solve(graph, found.budget_bytes, moves=2560, order=order, start=found.order)
        assert again.cost <= found.cost
