"""The minimum cut against every possible set of kept values, on small random graphs."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._planner.mincut import Network, front, recomputed, sweep

from .helpers import chain


@st.composite
def graphs(draw, most=7):
    """A random program, what is needed late, and which operations may run again."""
    count = draw(st.integers(2, most))
    spec = []
    for i in range(count):
        reads = draw(st.lists(st.integers(0, i), min_size=1, max_size=3, unique=True))
        cost = draw(st.integers(0, 20))
        size = draw(st.integers(1, 1000))
        spec.append((f"op{i}", reads, size, {"cost": float(cost), "flops": float(cost)}))
    program = chain(spec, tail=False)
    needed = draw(st.lists(st.integers(1, count), min_size=1, unique=True))
    recomputable = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return program, needed, recomputable


def total(program, needed, kept, recomputable, price):
    """Bytes kept plus price times cost; None if a value can be had in no way."""
    stack, ran, cost = list(needed), set(), 0.0
    while stack:
        v = stack.pop()
        p = program.values[v].producer
        if p < 0 or v in kept or p in ran:
            continue
        if not recomputable[p]:
            return None
        ran.add(p)
        cost += program.ops[p].cost
        stack += program.ops[p].reads
    return sum(program.values[v].bytes for v in kept) + price * cost


def best(program, needed, recomputable, price):
    values = range(1, len(program.values))
    kept_sets = (set(c) for n in range(len(program.values)) for c in combinations(values, n))
    return min(
        found
        for kept in kept_sets
        if (found := total(program, needed, kept, recomputable, price)) is not None
    )


@settings(max_examples=80, deadline=None)
@given(graphs(), st.floats(0.0, 200.0))
def test_agrees_with_every_possible_set(graph, price):
    program, needed, recomputable = graph
    kept = Network(program, needed, recomputable=recomputable).kept(price)
    mine = total(program, needed, kept, recomputable, price)
    assert mine is not None
    everything = sum(value.bytes for value in program.values) + price * sum(op.cost for op in program.ops)
    # Capacities are rounded to 2**-30 of all bytes, and a free operation counts as one unit.
    assert mine <= best(program, needed, recomputable, price) + 1e-5 * everything


@settings(max_examples=60, deadline=None)
@given(graphs(12))
def test_a_sweep_trades_bytes_for_cost(graph):
    program, needed, recomputable = graph
    for cuts in (
        sweep(program, needed, recomputable=recomputable),
        front(program, needed, recomputable=recomputable),
    ):
        assert all(a.bytes > b.bytes or a.kept == b.kept for a, b in pairwise(cuts))
        assert all(a.cost <= b.cost for a, b in pairwise(cuts))
        for cut in cuts:
            assert total(program, needed, cut.kept, recomputable, 1.0) == cut.bytes + cut.cost
            assert cut.recomputed == recomputed(program, needed, cut.kept, recomputable=recomputable)


def test_what_is_there_anyway_is_not_kept():
    program = chain([("f", [0], 100, {}), ("g", [1], 100, {}), ("h", [2], 100, {})], tail=False)
    assert Network(program, [3], recomputable=[True] * 3).kept(0.0) == set()
    assert Network(program, [3], recomputable=[True] * 3).kept(1e9) == {3}
    assert Network(program, [3], recomputable=[True] * 3, free=[3]).kept(1e9) == set()
    assert Network(program, [3], recomputable=[True] * 3, free=[2]).kept(1.0) == set()


def test_one_small_value_replaces_two_large_ones():
    spec = [("f", [0], 10, {"cost": 1e6}), ("g", [1], 100, {}), ("h", [1], 100, {})]
    program = chain(spec, tail=False)
    assert Network(program, [2, 3], recomputable=[True] * 3).kept(1.0) == {1}
    # A random draw or an effect cannot run again: its readers' cut moves below it.
    assert Network(program, [2, 3], recomputable=[True, False, True]).kept(1.0) == {1, 2}
