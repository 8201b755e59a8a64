"""The model machine, the bounds and the oracle: checked against a second, naive implementation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._graph import Graph
from recoup._solve import check
from recoup._solve._bounds import cover_bound, given_profile, peak_bound
from recoup._solve._brute import brute_force
from recoup.errors import PlanError


@st.composite
def graphs(draw, max_size=8):
    count = draw(st.integers(1, max_size))
    costs = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    edges = [(u, v) for v in range(count) for u in range(v) if draw(st.integers(0, 2)) == 0]
    return Graph(costs, sizes, edges)


def naive_profile(graph, order):
    """The semantics literally: a computation is live at i if it runs there or is read from there on."""
    readers = {i: [] for i in range(len(order))}
    latest = {}
    for i, op in enumerate(order):
        for u in graph.operands(op).tolist():
            readers[latest[u]].append(i)
        latest[op] = i
    profile = []
    for i in range(len(order)):
        live = [j for j in range(i + 1) if j == i or any(r >= i for r in readers[j])]
        profile.append(sum(int(graph.sizes[order[j]]) for j in live))
    return profile


def legal_order(graph, rng, extra):
    order = list(range(len(graph)))
    for _ in range(extra):
        at = int(rng.integers(1, len(order) + 1))
        order.insert(at, int(rng.choice(order[:at])))
    return order


@given(graphs(), st.integers(0, 2**32 - 1), st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_machine_agrees_with_literal_semantics(graph, seed, extra):
    order = legal_order(graph, np.random.default_rng(seed), extra)
    checked = check(graph, order, given=True)
    assert checked.profile.tolist() == naive_profile(graph, order)
    assert checked.peak_bytes == max(checked.profile)
    assert checked.cost == pytest.approx(sum(graph.costs[op] for op in order))


@given(
    graphs(),
    st.integers(0, 2**32 - 1),
    st.integers(0, 4),
    st.sampled_from(["drop", "early", "range", "budget"]),
)
@settings(max_examples=200, deadline=None)
def test_machine_refuses_mutated_schedules(graph, seed, extra, mutation):
    rng = np.random.default_rng(seed)
    order = legal_order(graph, rng, extra)
    if mutation == "drop":
        victim = int(rng.integers(len(graph)))
        order = [op for op in order if op != victim]
        # without its users the omission must still be noticed
        with pytest.raises(PlanError, match=r"never runs|before its operand"):
            check(graph, order)
    elif mutation == "early" and len(graph.edges):
        _, v = graph.edges[int(rng.integers(len(graph.edges)))].tolist()
        with pytest.raises(PlanError, match="step 0"):
            check(graph, [v, *order])
    elif mutation == "range":
        with pytest.raises(PlanError, match=f"step {len(order)} "):
            check(graph, [*order, len(graph)])
    else:
        peak = check(graph, order).peak_bytes
        check(graph, order, peak)
        if peak:
            with pytest.raises(PlanError, match="over the budget"):
                check(graph, order, peak - 1)


def test_machine_refuses_another_first_order():
    graph = Graph([1, 1], [1, 1], [])
    check(graph, [1, 0])
    with pytest.raises(PlanError, match="step 0 is the first to compute operation 1"):
        check(graph, [1, 0], given=True)


@pytest.mark.parametrize(
    ("costs", "sizes", "edges", "message"),
    [
        ([1.0], [1, 2], [], "2 sizes"),
        ([-1.0, 1], [1, 2], [], "cost of operation 0"),
        ([float("nan")], [1], [], "cost of operation 0"),
        ([1, 1], [1, -2], [], "size of operation 1"),
        ([1, 1], [1, 2.5], [], "integers"),
        ([1, 1], [1, 2], [(1, 0)], "edge 0"),
        ([1, 1], [1, 2], [(0, 2)], "edge 0"),
    ],
)
def test_graph_refuses(costs, sizes, edges, message):
    with pytest.raises(PlanError, match=message):
        Graph(costs, sizes, edges)


def test_graph_merges_repeated_edges_and_lists_both_ways():
    graph = Graph([1, 1, 1], [4, 5, 6], [(0, 2), (0, 2), (1, 2), (0, 1)])
    assert graph.operands(2).tolist() == [0, 1]
    assert graph.users(0).tolist() == [1, 2]
    assert graph.working_sets_bytes().tolist() == [4, 9, 15]
    assert graph.operand_lists() == [[], [0], [0, 1]]


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_unplanned_profile_and_bounds(graph):
    plain = check(graph, range(len(graph)))
    assert given_profile(graph).tolist() == plain.profile.tolist()
    bound, op = peak_bound(graph)
    assert bound <= plain.peak_bytes
    assert graph.working_sets_bytes()[op] == bound


@given(graphs(max_size=6), st.floats(0.3, 1.0))
@settings(max_examples=60, deadline=None)
def test_brute_force_is_legal_and_no_bound_exceeds_it(graph, share):
    budget = int(check(graph, range(len(graph))).peak_bytes * share)
    free, kept = brute_force(graph, budget), brute_force(graph, budget, given=True)
    if kept is not None:
        cost = check(graph, kept, budget, given=True).cost
        assert free is not None
        assert check(graph, free, budget).cost <= cost
        assert (
            graph.total_cost + max(cover_bound(graph, budget), cover_bound(graph, budget, free=True))
            <= cost + 1e-6
        )
    if free is None:
        assert kept is None
    elif budget < peak_bound(graph)[0]:
        raise AssertionError("a schedule below the working-set bound")


def test_brute_force_recomputes_where_it_must():
    # a long-lived value and a wide middle: holding 0 across 2 needs 3 + 4 + 4, recomputing it 4 + 4
    graph = Graph([1, 1, 1, 1], [3, 4, 4, 1], [(0, 1), (1, 2), (0, 3), (2, 3)])
    assert check(graph, [0, 1, 2, 3]).peak_bytes == 11
    assert brute_force(graph, 8) == [0, 1, 2, 0, 3]
    assert brute_force(graph, 7) is None


def test_large_graph_is_linear():
    count = 50_000
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, count - 1 - i) for i in range(count // 2 - 1)]
    graph = Graph(np.ones(count), np.ones(count, dtype=np.int64), edges)
    assert check(graph, range(count)).peak_bytes == given_profile(graph).max()
