"""Moves over a link that takes time: the machine, its oracle, the bound and the search."""

import hashlib
import heapq
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup import Graph, InfeasibleError, Offload, solve
from recoup._solve import check
from recoup._solve._bounds import peak_bound
from recoup._solve._brute import brute_force
from recoup._solve._brute_link import brute_force_link
from recoup._solve._cut import peak_cut, planned
from recoup._solve._linked import Linked
from recoup._solve._place import evict, place
from recoup._solve._search import Search
from recoup.errors import PlanError


def way_back(n, rng, density=0.15, largest=9):
    """A chain and its way back, and a few edges more."""
    edges = [(v - 1, v) for v in range(1, n)] + [(v, n - 1 - v) for v in range(n // 2)]
    edges += [(u, v) for v in range(n) for u in range(v) if rng.random() < density]
    edges = [(u, v) for u, v in edges if u < v]
    return Graph(rng.integers(0, 10, n), rng.integers(1, largest + 1, n), edges)


def between(graph, rng):
    """A budget from the largest working set to below one pass; None where there is none."""
    floor, peak = peak_bound(graph)[0], check(graph, range(len(graph))).peak_bytes
    return int(rng.integers(floor, peak)) if floor < peak else None


def moved(order, graph):
    return any(code >= len(graph) for code in order)


def simulated(graph, order, offload):
    """The semantics literally: who waits for whom, as the longest path to the end of the last computation."""
    n = len(graph)
    takes = [s / offload.bytes_per_cost for s in graph.sizes.tolist()]
    ends = []  # of each step: when what it does is done
    gate = []  # of each step: when the computation may go on after it
    source = {}  # the step that made each value's latest copy
    out = back = None  # the latest step on each side of the link
    price = 0.0
    for i, code in enumerate(order):
        before = gate[-1] if gate else 0.0
        value = code % n
        if code < n:
            need = [ends[source[u]] for u in graph.operands(code).tolist()]
            ends.append(max([before, *need]) + graph.costs[code])
            gate.append(ends[-1])
            source[value] = i
        elif code < 2 * n:
            ends.append(max(before, ends[back] if back is not None else 0.0) + takes[value])
            gate.append(before)
            source[value] = back = i
            price += offload.fetches[value]
        else:
            ends.append(max(ends[source[value]], ends[out] if out is not None else 0.0) + takes[value])
            gate.append(max(before, ends[-1]))
            out = i
            price += offload.stores[value]
    return gate[-1] + price


def cheapest(graph, budget, offload, given):
    """The cost of the cheapest schedule, by Dijkstra over all there is to do, nothing left out."""
    n = len(graph)
    full, operands = (1 << n) - 1, graph.operand_lists()
    costs, sizes, movable = graph.costs.tolist(), graph.sizes.tolist(), offload.movable
    takes = (graph.sizes / offload.bytes_per_cost).tolist()
    longest = -max(takes)  # what happened longer ago than any move takes is as good as forgotten
    ties = itertools.count()
    queue = [(0.0, next(ties), (0, frozenset(), longest, longest, ()))]
    seen = set()

    def offer(cost, passed, done, stored, out, back, held):
        def later(t):
            return max(longest, round(t - passed, 9))

        ready = tuple(sorted((v, later(t)) for v, t in held.items()))
        state = (done, stored, later(out), later(back), ready)
        heapq.heappush(queue, (cost, next(ties), state))

    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in seen:
            continue
        seen.add(state)
        done, stored, out, back, ready = state
        if done == full:
            return cost
        held = dict(ready)
        total = sum(sizes[v] for v in held)
        for v in held:
            if held[v] <= 0:  # dropping what is on its way would only make the link busier
                offer(cost, 0.0, done, stored, out, back, {w: t for w, t in held.items() if w != v})
            if v not in stored and movable[v]:
                ended = max(out, held[v]) + takes[v]
                waited = max(0.0, ended)
                offer(cost + waited + offload.stores[v], waited, done, stored | {v}, ended, back, held)
        for v in range(n):
            if v in held or total + sizes[v] > budget:
                continue
            if v in stored:
                there = max(back, 0.0) + takes[v]
                offer(cost + offload.fetches[v], 0.0, done, stored, out, there, {**held, v: there})
            first = not done >> v & 1
            if all(u in held for u in operands[v]) and not (given and first and done != (1 << v) - 1):
                passed = max([0.0, *(held[u] for u in operands[v])]) + costs[v]
                offer(cost + passed, passed, done | 1 << v, stored, out, back, {**held, v: passed})
    return None


def test_moves_run_beside_the_computation_and_stall_it_where_they_do_not_fit():
    #      0 -> 1 -> 2 -> 3, and 3 reads 0 again; 0 has 6 bytes, a byte takes half a unit of cost
    graph = Graph([1, 4, 4, 1], [6, 1, 1, 1], [(0, 1), (1, 2), (2, 3), (0, 3)])
    offload = Offload.link(graph, 2.0)
    # stored while 1 runs (3 of its 4), fetched while 2 runs
    hidden = check(graph, [0, 1, 8, 4, 2, 3], offload=offload)
    assert (hidden.cost, hidden.stalls) == (10, 0)
    assert hidden.profile.tolist() == [6, 7, 7, 7, 8, 8]
    # in memory until its store has ended, from where its fetch begins
    away = check(graph, [0, 1, 8, 2, 4, 3], offload=offload)
    assert away.profile.tolist() == [6, 7, 7, 2, 7, 8]
    assert (away.cost, away.stalls) == (13, 3)  # 3 waits for the fetch
    # the next computation waits for a store that has to end before it
    waiting = check(graph, [0, 8, 1, 4, 2, 3], offload=offload)
    assert (waiting.cost, waiting.stalls) == (13, 3)
    # moves of one direction wait for each other, those of two do not
    wide = Graph([1, 1, 1, 1], [4, 4, 1, 1], [(0, 2), (1, 2), (0, 3), (1, 3)])
    both = Offload.link(wide, 1.0)
    assert check(wide, [0, 1, 2, 8, 9, 4, 5, 3], offload=both).stalls == (9 - 3) + 8
    # prices are paid beside the time
    priced = Offload([2.0] * 4, [3.0] * 4, 2.0)
    assert check(graph, [0, 1, 8, 4, 2, 3], offload=priced).cost == 15


def test_what_the_machine_refuses():
    graph = Graph([1, 1, 1], [4, 4, 1], [(0, 1), (1, 2), (0, 2)])
    offload = Offload.link(graph, 1.0)
    for order, message in [
        ([0, 1, 3, 2], "step 2 fetches the value of 0 before its store has ended"),
        ([6, 0, 1, 2], "step 0 stores the value of 0 before it was computed"),
        ([3, 0, 1, 2], "step 0 fetches the value of 0 before it was computed"),
        ([0, 6, 1, 6, 2], "step 3 stores the value of 0 again"),
        ([0, 1, 9, 2], "step 2 computes operation 9"),
    ]:
        with pytest.raises(PlanError, match=message):
            check(graph, order, offload=offload)
    with pytest.raises(PlanError, match="operation 6"):
        check(graph, [0, 6, 1, 2], offload=Offload.per_byte(graph, 1.0))
    with pytest.raises(PlanError, match="bytes_per_cost=0"):
        Offload.link(graph, 0)
    with pytest.raises(PlanError, match="bytes_per_cost=nan"):
        Offload([1], [1], float("nan"))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_machine_agrees_with_literal_time_and_with_itself_without(seed):
    rng = np.random.default_rng(seed)
    graph = way_back(int(rng.integers(3, 9)), rng)
    n = len(graph)
    offload = Offload(rng.integers(0, 3, n), rng.integers(0, 3, n), float(rng.choice([0.5, 1, 4, np.inf])))
    order, stored = list(range(n)), set()
    for _ in range(8):
        at = int(rng.integers(1, len(order) + 1))
        code = int(rng.choice(order[:at])) % n
        if rng.random() < 0.7:
            # its store somewhere after it, its fetch after that
            if code not in stored and order.index(code) < at:
                order.insert(at, 2 * n + code)
                stored.add(code)
            if code in stored:
                after = order.index(2 * n + code) + 1
                order.insert(int(rng.integers(after, len(order) + 1)), n + code)
        else:
            order.insert(at, code)
    timed = Offload(offload.stores, offload.fetches, min(offload.bytes_per_cost, 1e12))
    checked = check(graph, order, offload=timed)
    assert checked.cost == pytest.approx(simulated(graph, order, timed), abs=1e-6)
    # a link that takes no time is no link
    untimed = [code for code in order if code < 2 * n]
    without = Offload(timed.stores * [n + v in order for v in range(n)], timed.fetches)
    quick = check(graph, order, offload=Offload(without.stores, without.fetches, 1e15))
    assert quick.cost == pytest.approx(check(graph, untimed, offload=without).cost, abs=1e-6)
    assert checked.cost >= quick.cost - 1e-6


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_oracle_agrees_with_dijkstra_over_everything(seed, order_given, priced):
    rng = np.random.default_rng(seed)
    graph = way_back(int(rng.integers(3, 6)), rng, largest=4)
    n, budget = len(graph), between(graph, rng)
    if budget is None:
        return
    stores = np.where(rng.random(n) < 0.8, rng.integers(0, 3, n) * priced, np.inf)
    offload = Offload(stores, rng.integers(0, 2, n) * priced, float(rng.choice([1, 2, 4])))
    found = brute_force_link(graph, budget, offload, given=order_given)
    assert found.finished
    cost = cheapest(graph, budget, offload, order_given)
    assert (found.order is None) == (cost is None)
    if found.order is not None:
        checked = check(graph, found.order, budget, given=order_given, offload=offload)
        assert checked.cost == pytest.approx(cost) == pytest.approx(found.lower_bound)


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_brute_force_agrees_and_no_bound_exceeds_it(seed, free):
    rng = np.random.default_rng(seed)
    graph = way_back(int(rng.integers(4, 9)), rng)
    n, budget = len(graph), between(graph, rng)
    if budget is None:
        return
    prices = rng.integers(0, 2, n)
    offload = Offload(prices, prices, float(rng.choice([0.5, 1, 2, 8])))
    order = "free" if free else "given"
    exact = brute_force_link(graph, budget, offload, given=not free)
    cut = peak_cut(graph, budget, free=free, time_limit=5.0, offload=offload)
    assert cut is not None
    assert graph.total_cost + cut.extra_cost <= exact.lower_bound + 1e-6
    if exact.order is None:
        if exact.finished:
            with pytest.raises(InfeasibleError):
                solve(graph, budget, order=order, offload=offload, moves=512)
        return
    solved = solve(graph, budget, order=order, offload=offload)
    assert solved.optimal
    assert solved.cost == pytest.approx(exact.lower_bound)
    # time never helps, and moving never hurts
    instant = Offload(offload.stores, offload.fetches)
    assert solved.cost >= check(graph, brute_force(graph, budget, given=not free, offload=instant),
                                given=not free, offload=instant).cost - 1e-9  # fmt: skip
    without = brute_force(graph, budget, given=not free)
    assert without is None or solved.cost <= check(graph, without).cost + 1e-9


@pytest.mark.parametrize("free", [False, True], ids=["given", "free"])
def test_search_alone_finds_the_optimum_nearly_always(free):
    rng = np.random.default_rng(5)
    met = tried = moving = 0
    while tried < 25:
        graph = way_back(int(rng.integers(5, 8)), rng)
        budget = between(graph, rng)
        if budget is None:
            continue
        offload = Offload.link(graph, float(rng.choice([0.5, 1, 2])))
        exact = brute_force_link(graph, budget, offload, given=not free)
        if exact.order is None:
            continue
        search = Linked(graph, budget, list(range(len(graph))), None, None, free, 0, offload)
        search.run(20_480, float("inf"), 0.0)
        tried += 1
        moving += moved(exact.order, graph)
        if search.order is not None:
            cost = check(graph, search.order, budget, given=not free, offload=offload).cost
            assert cost == pytest.approx(search.cost)
            assert cost >= exact.lower_bound - 1e-9
            met += cost <= exact.lower_bound + 1e-9
    assert moving >= 5
    assert met >= 0.9 * tried, (met, tried)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("price", [0.0, 0.2])
def test_placed_moves_stay_within_the_budget_and_bring_all_back(seed, price):
    rng = np.random.default_rng(seed)
    graph = way_back(40, rng, density=0.02)
    n, budget = len(graph), between(graph, rng)
    offload = Offload.link(graph, float(rng.choice([1, 4, 20])))
    priced = Offload.per_byte(graph, price)
    search = Search(graph, budget, [list(range(n))], True, seed, priced)
    search.run(10_240, float("inf"))
    if search.order is None:
        return
    order = place(graph, search.order, budget, offload)
    assert [c for c in order if c < n] == [c for c in search.order if c < n]
    placed = check(graph, order, budget, offload=offload)
    # not worse than every move waited for
    takes = [graph.sizes[c % n] / offload.bytes_per_cost for c in order if c >= n]
    assert placed.stalls <= sum(takes) + 1e-9


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_starts_without_a_search(seed):
    rng = np.random.default_rng(seed)
    graph = way_back(int(rng.integers(8, 40)), rng, density=0.05)
    n, floor = len(graph), peak_bound(graph)[0]
    everything = np.ones(n, dtype=bool)
    instant, offload = Offload(np.zeros(n), np.zeros(n)), Offload.link(graph, 2.0)
    # whatever the operations fit in
    order = evict(graph, range(n), floor, everything)
    assert [code for code in order if code < n] == list(range(n))
    assert check(graph, order, floor, given=True, offload=instant).peak_bytes <= floor
    assert evict(graph, range(n), floor - 1, everything) is None
    if check(graph, range(n)).peak_bytes > floor:
        assert evict(graph, range(n), floor, ~everything) is None
        check(graph, place(graph, order, floor, offload), floor, given=True, offload=offload)
    # what follows the relaxation is legal; its bound is below the cheapest of both
    budget = between(graph, rng)
    if budget is not None:
        bound, order = planned(graph, budget, offload, 5.0)
        placed = check(graph, place(graph, order, budget, offload), given=True, offload=offload)
        assert placed.peak_bytes <= max(budget, check(graph, order, offload=instant).peak_bytes)
        if placed.peak_bytes <= budget:
            assert graph.total_cost + bound <= placed.cost + 1e-6


@pytest.mark.parametrize("order", ["given", "free"])
def test_solve_is_legal_bounded_and_the_same_for_a_seed(order):
    rng = np.random.default_rng(3)
    graph = way_back(50, rng, density=0.01)
    budget = int(check(graph, range(50)).peak_bytes * 0.6)
    offload = Offload.link(graph, 2.0, smallest_bytes=2)
    found = solve(graph, budget, order=order, offload=offload, seed=2, moves=81_920)
    again = solve(graph, budget, order=order, offload=offload, seed=2, moves=81_920)
    assert found.order.tolist() == again.order.tolist()
    checked = check(graph, found.order, budget, given=order == "given", offload=offload)
    assert (checked.cost, checked.peak_bytes) == (found.cost, found.peak_bytes)
    assert graph.total_cost <= found.lower_bound <= found.cost
    assert moved(found.order, graph)
    stays = solve(graph, budget, order=order, seed=2, moves=81_920)
    assert found.cost < stays.cost
    more = solve(graph, budget, order=order, offload=offload, seed=2, moves=1024, start=found.order)
    assert more.cost <= found.cost


def test_a_link_that_never_waits_is_free_and_one_that_always_does_is_not_used():
    rng = np.random.default_rng(8)
    graph = way_back(40, rng, density=0.0)
    graph = Graph(graph.costs + 1, graph.sizes, graph.edges)
    budget = int(check(graph, range(40)).peak_bytes * 0.7)
    quick = solve(graph, budget, order="given", offload=Offload.link(graph, 1e6), moves=40_960)
    assert quick.optimal
    assert quick.overhead == pytest.approx(0, abs=1e-4)
    slow = solve(graph, budget, order="given", offload=Offload.link(graph, 1e-6), moves=40_960)
    assert not moved(slow.order, graph)
    assert slow.extra_cost > 0
    closed = Offload([np.inf] * 40, [np.inf] * 40, 1e6)
    assert not moved(solve(graph, budget, order="given", offload=closed, moves=40_960).order, graph)


def test_moves_make_a_budget_possible():
    draws = np.random.default_rng(0)
    found = refused = 0
    for _ in range(40):
        graph = way_back(12, draws, density=0.1)
        budget = peak_bound(graph)[0]
        if check(graph, range(12)).peak_bytes <= budget:
            continue
        try:
            solve(graph, budget, order="given", time_limit=5)
        except InfeasibleError as error:
            if not error.proved:
                continue
            refused += 1
            offload = Offload.link(graph, 1.0)
            order = solve(graph, budget, order="given", offload=offload, moves=20_480).order
            found += moved(order, graph)
        if refused == 3:
            break
    assert found == refused == 3


def pinned(n, seed):
    draws = random.Random(seed)

    def below(k):
        return int(draws.random() * k)

    edges = [(max(0, v - 1 - below(9)), v) for v in range(1, n) for _ in range(1 + below(3))]
    edges += [(v, n - 1 - v) for v in range(n // 2 - 1)]
    return Graph([below(100) for _ in range(n)], [1 + below(100) for _ in range(n)], edges)


@pytest.mark.parametrize(
    ("n", "seed", "order", "moving", "share", "digest"),
    [
        (60, 1, "free", False, 0.8, "9e65fb3d19af1050"),
        (60, 1, "given", False, 0.8, "d6982978ed4bb292"),
        (300, 2, "given", False, 0.7, "0c4648a4e9bc3e65"),
        (300, 2, "free", False, 0.6, "23a2a8b5561b0202"),
        (40, 3, "free", True, 0.6, "889e8ef47ac4472f"),
        (120, 4, "given", True, 0.5, "fcbe9278dbd95924"),
    ],
)
def test_schedules_of_a_seed_are_those_of_earlier_versions(n, seed, order, moving, share, digest):
    """Where moves take no time; a change of the search on purpose changes these."""
    graph = pinned(n, seed)
    offload = Offload.per_byte(graph, 0.5, smallest_bytes=20) if moving else None
    budget = int(check(graph, range(n)).peak_bytes * share)
    found = solve(graph, budget, order=order, seed=seed, moves=20_480, offload=offload)
    text = " ".join(map(str, found.order.tolist()))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
