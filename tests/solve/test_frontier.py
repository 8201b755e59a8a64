"""`frontier`: monotone whatever the ladder says, and what `plan` gives at a point's peak."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup._frontier import Point, _front, _spread
from recoup._solve import check


def step(weights, x):
    def loss(weights):
        h = x
        for w in weights:
            h = h + jnp.tanh(jnp.tanh(h @ w) @ w.T)
        return jnp.mean(h * h)

    value, grads = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


ARGS = ([jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6, jax.ShapeDtypeStruct((2048, 32), jnp.float32))


def monotone(found):
    for a, b in itertools.pairwise(found.points):
        assert b.peak_bytes < a.peak_bytes
        assert b.overhead > a.overhead


def test_of_a_step_agrees_with_plan():
    found = recoup.frontier(step, *ARGS, points=10)
    assert 3 <= len(found.points) <= 10
    monotone(found)
    assert found.points[0].overhead == 0
    assert found.points[-1].peak_bytes >= found.lower_bound_bytes > 0
    assert 0 < found.knee < len(found.points) - 1
    for point in (found.points[0], found.points[found.knee], found.points[-1]):
        plan = recoup.plan(step, *ARGS, budget=point.peak_bytes)
        assert plan.peak_bytes <= point.peak_bytes
        assert plan.overhead <= point.overhead + 1e-12
    data = json.loads(found.to_json())
    assert [p["peak_bytes"] for p in data["points"]] == [p.peak_bytes for p in found.points]
    text = str(found)
    assert text.count("<- knee") == 1
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("order", ["free", "given"])
def test_of_a_graph(order):
    rng = np.random.default_rng(3)
    edges = [(int(rng.integers(max(0, v - 9), v)), v) for v in range(1, 40) for _ in range(2)]
    graph = recoup.Graph(rng.integers(1, 50, 40), rng.integers(1, 50, 40), edges)
    found = recoup.frontier(graph, points=6, time_limit=1.2, order=order)
    monotone(found)
    for point in found.points:
        checked = check(graph, point.schedule.order, point.peak_bytes, given=order == "given")
        assert checked.cost / graph.total_cost - 1 == pytest.approx(point.overhead, abs=1e-12)
        assert point.bound <= point.overhead + 1e-9
    assert "schedule" not in json.loads(found.to_json())["points"][0]


def test_wrong_calls():
    graph = recoup.Graph([1, 1], [4, 4], [(0, 1)])
    with pytest.raises(TypeError, match="takes no arguments"):
        recoup.frontier(graph, 3)
    with pytest.raises(TypeError, match="budgets= is for graphs"):
        recoup.frontier(step, *ARGS, budgets=[1])
    assert [p.overhead for p in recoup.frontier(graph, budgets=[1]).points] == [0.0]


def test_dominated_points_go():
    given = [Point(100, 0.0, 0.0), Point(90, 0.2, 2.0), Point(95, 0.1, 1.0), Point(96, 0.3, 3.0)]
    assert [p.peak_bytes for p in _front(given)] == [100, 95, 90]
    assert _spread([5, 4, 3, 2, 1], 3) == [0, 2, 4]
    assert _spread([5, 4], 3) == [0, 1]
    assert _spread([5, 4], 1) == [1]
