"""Chains with a way back: the dynamic program against a literal one and the optimum, and inside `solve`."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup import Graph, InfeasibleError, Offload, solve
from recoup._solve import check
from recoup._solve._bounds import peak_bound
from recoup._solve._chain import Program, chain_order, stages
from recoup._solve._exact import exact
from recoup._solve._search import COPIES


def chain(forward, back, outputs, gradients):
    """F_1 .. F_{L-1}, then B_L .. B_1; B_i reads the output of F_{i-1} and the gradient of B_{i+1}."""
    length = len(back)
    count = 2 * length - 1
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, count - 1 - i - 1) for i in range(length - 1)]
    return Graph([*forward, *back[::-1]], [*outputs, *gradients[::-1]], edges)


def random_chain(length, rng, largest):
    forward, back = rng.integers(1, 9, length - 1), rng.integers(1, 9, length)
    outputs, gradients = rng.integers(1, largest + 1, length - 1), rng.integers(1, largest + 1, length)
    parts = [part.tolist() for part in (forward, back, outputs, gradients)]
    return chain(*parts), parts


def revolve(parts, budget):
    """The cheapest persistent schedule of such a chain, recursively (Beaumont et al. 2019, one option)."""
    forward, back, outputs, gradients = parts
    length = len(back)

    @functools.cache
    def cost(s, t, room):
        # stages s to t (from 1), the input of s held outside of the room
        below = gradients[t] if t < length else 0
        if s == t:
            return back[s - 1] if room >= below + gradients[s - 1] else float("inf")
        best = float("inf")
        need = 0
        for k in range(s + 1, t + 1):  # run s .. k-1 and hold the input of k
            held = outputs[k - 2]
            need = max(need, (outputs[k - 3] if k - 1 > s else 0) + held + below)
            if room < max(need, held):
                break
            steps = sum(forward[s - 1 : k - 1])
            best = min(best, steps + cost(k, t, room - held) + cost(s, k - 1, room))
        return best

    return cost(1, length, budget)


def network(layers, rng, wide=3):
    """Layers of a few operations, and a way back that reads what is inside them."""
    count = 2 * layers * wide
    half = count // 2
    edges = [(v - 1, v) for v in range(1, count)] + [(v, count - 1 - v) for v in range(half - 1)]
    edges += [(v - 2, v) for v in range(2, half) if v % wide == 0]
    return Graph(rng.integers(1, 20, count), rng.integers(1, 30, count), edges)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_dynamic_program_is_the_literal_one(seed):
    rng = np.random.default_rng(seed)
    graph, parts = random_chain(int(rng.integers(5, 11)), rng, int(rng.integers(1, 6)))
    found = stages(graph, 200)
    assert len(found) == len(parts[1])
    floor, peak = peak_bound(graph)[0], check(graph, range(len(graph))).peak_bytes
    budget = int(rng.integers(floor, peak + 1))
    order = chain_order(graph, budget, 200)
    # the last of the way back reads no stage: it counts with the second one, whose input is held until then
    expected = revolve(parts, budget - parts[2][0])
    if order is None:
        assert expected == float("inf")
        return
    assert check(graph, order, budget, given=True).cost <= expected
    if budget >= check(graph, range(len(graph))).profile[-2:].max() + parts[2][0]:
        assert check(graph, order, budget, given=True).cost == revolve(parts, budget)


@pytest.mark.parametrize("length", [5, 6, 7])
def test_equal_stages_are_optimal(length):
    parts = [1] * (length - 1), [2] * length, [1] * (length - 1), [1] * length
    graph = chain(*parts)
    peak = check(graph, range(len(graph))).peak_bytes
    for budget in range(peak_bound(graph)[0], peak):
        order = chain_order(graph, budget, 200)
        best = exact(graph, budget, given=True, most=400_000)
        assert best.finished
        assert check(graph, order, budget, given=True).cost == best.lower_bound == revolve(parts, budget)


@given(st.integers(0, 2**32 - 1), st.integers(4, 40))
@settings(max_examples=40, deadline=None)
def test_layers_of_several_operations_are_stages_too(seed, most):
    rng = np.random.default_rng(seed)
    graph = network(int(rng.integers(6, 20)), rng)
    found = stages(graph, most)
    assert found is not None
    assert 4 <= len(found) <= most
    assert sorted(op for stage in found for op in (*stage.forward, *stage.back)) == list(range(len(graph)))
    peak = check(graph, range(len(graph))).peak_bytes
    costs = []
    for share in (1.0, 0.8, 0.6, 0.5, 0.4):
        program = Program(graph, found, int(peak * share))
        order = program.order()
        if order is None:
            break
        # sizes are rounded up to steps of the memory: what it says fits, fits, but for operations
        # that only a first run has
        checked = check(graph, order, given=True)
        assert checked.peak_bytes <= peak * share * 1.05
        costs.append(checked.cost)
    assert costs
    assert all(a <= b * 1.02 for a, b in itertools.pairwise(costs))


def test_other_graphs_are_no_chains():
    rng = np.random.default_rng(1)
    assert stages(Graph([], [], []), 100) is None
    assert stages(Graph([1, 1], [1, 1], [(0, 1)]), 100) is None
    edges = [(int(rng.integers(max(0, v - 12), v)), v) for v in range(1, 60) for _ in range(2)]
    assert stages(Graph(np.ones(60), np.ones(60, int), edges), 100) is None
    # a gradient that passes a stage by
    length = 8
    plain = chain([1] * 7, [1] * 8, [1] * 7, [1] * 8)
    assert stages(plain, 100) is not None
    assert stages(Graph(plain.costs, plain.sizes, [*plain.edges.tolist(), (length, 14)]), 100) is None


def test_solve_meets_the_tightest_budgets_of_long_chains():
    # 3 bytes of 59: operations run far more often than the search has room for
    length = 30
    parts = [1] * (length - 1), [2] * length, [1] * (length - 1), [1] * length
    graph = chain(*parts)
    found = solve(graph, 3, order="given", moves=5_120)
    assert found.cost == revolve(parts, 3)
    assert np.bincount(found.order).max() > COPIES
    assert "chain" in found.method
    with pytest.raises(InfeasibleError):
        solve(graph, 2, order="given", moves=5_120)
    # from there, and as a start that the search has no room for
    again = solve(graph, 3, order="given", moves=5_120, start=found.order)
    assert again.cost == found.cost


@pytest.mark.parametrize(("length", "share"), [(50, 0.1), (100, 0.1)])
def test_solve_is_at_the_dynamic_program_or_below_it(length, share):
    rng = np.random.default_rng(0)
    graph, _ = random_chain(length, rng, 6)
    budget = int(check(graph, range(len(graph))).peak_bytes * share)
    found = solve(graph, budget, order="given", moves=20_480)
    assert found.cost <= check(graph, chain_order(graph, budget, 200), budget).cost
    assert found.lower_bound <= found.cost


def test_moves_at_a_price_beside_the_chain():
    graph, _ = random_chain(30, np.random.default_rng(2), 6)
    budget = int(check(graph, range(len(graph))).peak_bytes * 0.2)
    alone = chain_order(graph, budget, 200)
    costs = [check(graph, alone, budget).cost]
    for price in (5.0, 0.5, 0.0):
        offload = Offload.per_byte(graph, price)
        found = solve(graph, budget, order="given", moves=10_240, offload=offload)
        assert check(graph, found.order, budget, given=True, offload=offload).cost == found.cost
        costs.append(found.cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == graph.total_cost
