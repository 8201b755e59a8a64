"""The search: its incremental state against the machine, against the oracle, and its determinism."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup import Graph, InfeasibleError, solve
from recoup._graph import Offload
from recoup._solve import check, curve
from recoup._solve._annealer import Annealer
from recoup._solve._bounds import cover_bound, peak_bound
from recoup._solve._brute import brute_force
from recoup._solve._exact import exact
from recoup._solve._search import Search
from recoup.errors import PlanError


def random_graph(rng, count, density=2.0):
    edges = [
        (int(rng.integers(max(0, v - 12), v)), v)
        for v in range(1, count)
        for _ in range(rng.poisson(density))
    ]
    return Graph(rng.integers(0, 100, count), rng.integers(1, 100, count), edges)


@st.composite
def small_graphs(draw, max_size=8):
    count = draw(st.integers(2, max_size))
    costs = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    edges = [(u, v) for v in range(count) for u in range(v) if draw(st.integers(0, 2)) == 0]
    return Graph(costs, sizes, edges)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("moving", [False, True])
def test_incremental_profile_is_the_machines(free, seed, moving):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 60)
    budget = int(check(graph, range(60)).peak_bytes * rng.uniform(0.5, 0.9))
    costs = graph.costs.astype(int).tolist()
    starts, ids = graph.operand_starts.tolist(), graph.operand_ids.tolist()
    stores, fetches = [30] * 60, [20 if moving and v % 2 else -1 for v in range(60)]
    annealer = Annealer(starts, ids, graph.sizes.tolist(), costs, budget, 6, free, seed, stores, fetches)
    offload = Offload(stores, [f if f >= 0 else np.inf for f in fetches]) if moving else None
    annealer.start(list(range(60)), 3)
    for _ in range(12):
        annealer.heat(100.0, 1.0, 2560)
        annealer.run(512)
        now = check(graph, annealer.order(), given=not free, offload=offload)
        assert annealer.peak() == now.peak_bytes
        assert annealer.over == np.maximum(0, now.profile - budget).sum()
        assert annealer.cost == now.cost
        best = annealer.best_order()
        if best:
            assert check(graph, best, budget, given=not free, offload=offload).cost == annealer.best_cost
        annealer.start(annealer.order(), 3)


def test_feasible_search_happened():
    # the assertions on the record above are not vacuous
    rng = np.random.default_rng(5)
    graph = random_graph(rng, 60)
    budget = int(check(graph, range(60)).peak_bytes * 0.8)
    found = solve(graph, budget, moves=40_960)
    assert found.peak_bytes <= budget
    assert len(found.order) >= 60


@given(small_graphs(), st.floats(0.3, 1.0), st.sampled_from(["free", "given"]))
@settings(max_examples=150, deadline=None)
def test_brute_force_agrees(graph, share, order):
    budget = int(check(graph, range(len(graph))).peak_bytes * share)
    exact = brute_force(graph, budget, given=order == "given")
    search = Search(graph, budget, [list(range(len(graph)))], order == "free", seed=0)
    if exact is None:
        with pytest.raises(InfeasibleError):
            solve(graph, budget, order=order, moves=2_048)
        return
    cost = check(graph, exact, budget, given=order == "given").cost
    # answered by another search over states than the oracle's
    found = solve(graph, budget, order=order, moves=8_192)
    assert found.cost == pytest.approx(cost)
    assert found.optimal
    # the search alone proves nothing and may miss on the tightest budgets; it is never below the optimum
    search.run(16_384, float("inf"))
    if search.order is not None:
        assert check(graph, search.order, budget, given=order == "given").cost >= cost - 1e-9


@pytest.mark.parametrize("given", [False, True])
def test_states_decide_graphs_beyond_brute_force(given):
    rng = np.random.default_rng(11)
    decided = better = refused = 0
    for _ in range(24):
        count = int(rng.integers(11, 17))
        edges = [(u, v) for v in range(count) for u in range(v) if rng.random() < 2.5 / count]
        graph = Graph(rng.integers(1, 10, count), rng.integers(1, 10, count), edges)
        budget = int(check(graph, range(count)).peak_bytes * rng.uniform(0.6, 0.95))
        found = exact(graph, budget, given=given, most=30_000)
        search = Search(graph, budget, [list(range(count))], not given, 0)
        search.run(10_240, float("inf"))
        if not found.finished:
            if search.order is not None:
                assert found.lower_bound <= check(graph, search.order).cost + 1e-9
            continue
        decided += 1
        if found.order is None:
            refused += 1
            assert search.order is None
            continue
        cost = check(graph, found.order, budget, given=given).cost
        assert cost == found.lower_bound
        if search.order is not None:
            assert cost <= check(graph, search.order).cost
            better += cost < check(graph, search.order).cost
    assert decided >= 20
    assert 0 < refused < decided


def test_states_give_a_bound_where_they_give_up():
    graph = random_graph(np.random.default_rng(3), 24)
    budget = int(check(graph, range(24)).peak_bytes * 0.85)
    bounds = [exact(graph, budget, given=True, most=most).lower_bound for most in (1, 3_000, 30_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] >= graph.total_cost
    found = solve(graph, budget, order="given", moves=20_480)
    assert bounds[-1] <= found.cost + 1e-9


def test_same_seed_and_moves_same_schedule_and_interpreted_too(tmp_path):
    rng = np.random.default_rng(7)
    graph = random_graph(rng, 40)
    budget = int(check(graph, range(40)).peak_bytes * 0.85)
    first = solve(graph, budget, seed=3, moves=6_144)
    again = solve(graph, budget, seed=3, moves=6_144)
    assert first.order.tolist() == again.order.tolist()
    offload = Offload.link(graph, 10.0)
    linked = solve(graph, budget, seed=3, moves=6_144, offload=offload)
    problem = {"costs": graph.costs.tolist(), "sizes": graph.sizes.tolist(), "edges": graph.edges.tolist()}
    # a process that finds only the .py files of the compiled modules
    script = """
import importlib.machinery, json, sys
class Source:
    def find_spec(self, name, path=None, target=None):
        parts = ("profile", "slots", "moves", "annealer", "timed", "link")
        if name in ["recoup._solve._" + part for part in parts]:
            import importlib.util, pathlib
            import recoup
            file = pathlib.Path(recoup.__file__).parent / "_solve" / (name.rsplit(".", 1)[1] + ".py")
            return importlib.util.spec_from_file_location(name, file)
        return None
sys.meta_path.insert(0, Source())
problem, budget = json.loads(sys.argv[1]), int(sys.argv[2])
import recoup
from recoup._solve import _annealer
assert not _annealer.COMPILED
graph = recoup.Graph(**problem)
found = recoup.solve(graph, budget, seed=3, moves=6144)
linked = recoup.solve(graph, budget, seed=3, moves=6144, offload=recoup.Offload.link(graph, 10.0))
print(json.dumps([found.order.tolist(), found.method, linked.order.tolist(), linked.method]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, json.dumps(problem), str(budget)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=True,
    )
    order, method, linked_order, linked_method = json.loads(ran.stdout)
    assert order == first.order.tolist()
    assert linked_order == linked.order.tolist()
    assert "interpreted" in method
    assert "interpreted" in linked_method


def test_one_pass_that_fits_is_returned_as_it_is():
    graph = random_graph(np.random.default_rng(1), 30)
    found = solve(graph, check(graph, range(30)).peak_bytes)
    assert found.order.tolist() == list(range(30))
    assert found.optimal
    assert found.extra_cost == 0
    assert found.gap == 0


def test_refusals_name_the_numbers():
    graph = random_graph(np.random.default_rng(2), 30)
    floor, operation = peak_bound(graph)
    with pytest.raises(InfeasibleError, match=f"operation {operation} alone needs {floor} bytes") as caught:
        solve(graph, floor - 1)
    assert caught.value.proved
    assert caught.value.bound_bytes == floor
    with pytest.raises(PlanError, match="integer number of bytes"):
        solve(graph, 10.5)
    with pytest.raises(PlanError, match='"free" or "given"'):
        solve(graph, 10, order="any")


def test_given_order_costs_no_less_than_free():
    graph = random_graph(np.random.default_rng(4), 50)
    budget = int(check(graph, range(50)).peak_bytes * 0.75)
    kept = solve(graph, budget, order="given", moves=102_400)
    free = solve(graph, budget, order="free", moves=102_400)
    assert kept.lower_bound <= kept.cost
    assert free.cost <= kept.cost


@pytest.mark.parametrize("order", ["free", "given"])
def test_curve_is_monotone_and_every_point_checks(order):
    graph = random_graph(np.random.default_rng(6), 40)
    found = curve(graph, points=8, order=order, moves=20_480)
    assert len(found.points) + len(found.infeasible_bytes) == 8
    assert len(found.points) >= 2
    assert 0 <= found.knee < len(found.points)
    for point in found.points:
        checked = check(graph, point.order, point.budget_bytes, given=order == "given")
        assert (checked.cost, checked.peak_bytes) == (point.cost, point.peak_bytes)
        assert point.lower_bound <= point.cost
    for larger, smaller in itertools.pairwise(found.points):
        assert smaller.cost >= larger.cost
        assert smaller.peak_bytes <= larger.peak_bytes


def test_start_is_checked_and_used():
    graph = random_graph(np.random.default_rng(6), 40)
    budget = int(check(graph, range(40)).peak_bytes * 0.8)
    good = solve(graph, budget, order="given", moves=40_960)
    again = solve(graph, budget, order="given", moves=256, start=good.order)
    assert again.cost <= good.cost
    with pytest.raises(PlanError, match="never runs"):
        solve(graph, budget, start=[0])


@given(small_graphs(max_size=6), st.floats(0.3, 0.95), st.integers(0, 5), st.integers(0, 5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_brute_force_agrees_with_offload(graph, share, store, fetch, free):
    offload = Offload.per_byte(graph, 1.0, smallest_bytes=3)
    offload = Offload(np.where(np.isfinite(offload.stores), store, np.inf), np.full(len(graph), fetch))
    budget = int(check(graph, range(len(graph))).peak_bytes * share)
    exact = brute_force(graph, budget, given=not free, offload=offload)
    if exact is None:
        return
    cost = check(graph, exact, budget, given=not free, offload=offload).cost
    without = brute_force(graph, budget, given=not free)
    assert without is None or cost <= check(graph, without, budget).cost
    assert graph.total_cost + cover_bound(graph, budget, free=free, offload=offload) <= cost + 1e-6
    search = Search(graph, budget, [list(range(len(graph)))], free, 0, offload)
    search.run(16_384, float("inf"))
    if search.order is not None:
        assert check(graph, search.order, budget, given=not free, offload=offload).cost >= cost - 1e-9
    solved = solve(graph, budget, order="free" if free else "given", offload=offload)
    assert solved.cost == pytest.approx(cost)


def test_search_alone_finds_the_optimum_nearly_always():
    rng = np.random.default_rng(0)
    met = tried = 0
    for _ in range(120):
        count = int(rng.integers(4, 8))
        edges = [(u, v) for v in range(count) for u in range(v) if rng.random() < 0.35]
        graph = Graph(rng.integers(0, 10, count), rng.integers(0, 10, count), edges)
        budget = int(check(graph, range(count)).peak_bytes * rng.uniform(0.5, 0.95))
        exact = brute_force(graph, budget)
        if exact is None or check(graph, range(count)).peak_bytes <= budget:
            continue
        tried += 1
        search = Search(graph, budget, [list(range(count))], True, 0)
        search.run(16_384, float("inf"))
        met += search.order is not None and check(graph, search.order).cost == check(graph, exact).cost
    assert tried >= 10
    assert met >= 0.9 * tried, (met, tried)


def test_fetches_are_checked():
    graph = Graph([5, 1, 1], [4, 4, 1], [(0, 1), (0, 2), (1, 2)])
    offload = Offload([2, 2, 2], [1, 1, 1])
    assert check(graph, [0, 1, 3, 2], offload=offload).cost == 10
    with pytest.raises(PlanError, match="step 0 fetches the value of 1 before"):
        check(graph, [4, 0, 1, 2], offload=offload)
    with pytest.raises(PlanError, match="operation 3"):
        check(graph, [0, 1, 3, 2])
    with pytest.raises(PlanError, match="moving value 0"):
        Offload([-1.0], [0.0])
