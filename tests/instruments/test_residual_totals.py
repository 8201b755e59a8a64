"""The residual list reconciles to the byte with what crosses in the jaxpr, loops included."""

import jax
import jax.numpy as jnp
import pytest

import recoup
from benchmarks.instruments import counted_crossing, example_arguments, layers, programs
from benchmarks.zoo import ZOO
from recoup._compat import JAX_VERSION

NEWER = JAX_VERSION >= (0, 12)
ARRAY = 512 * 1024


@pytest.mark.parametrize("name", list(ZOO))
def test_the_total_is_what_crosses(name):
    step, args = ZOO[name].make("small")
    found = recoup.residuals(step, *args)
    assert found.total_bytes == counted_crossing(step, args) > 0
    assert sum(found.by_source().values()) == found.total_bytes
    stacked = [item for item in found.items if item.iterations]
    assert all(item.per_iteration_bytes * item.iterations == item.bytes for item in stacked)
    assert bool(stacked) == (ZOO[name].layout != "unrolled")


@pytest.mark.parametrize(("count", "old", "new"), [(4, 9, 8), (16, 33, 32)])
def test_arrays_of_the_worked_example(count, old, new):
    found = recoup.residuals(layers(count), *example_arguments())
    computed = [item for item in found.items if item.kind == "computed"]
    assert len(computed) == (new if NEWER else old)
    assert {item.bytes for item in computed} == {ARRAY} and found.total_bytes == len(computed) * ARRAY
    given = [item for item in found.items if item.kind == "argument"]
    assert sorted(item.name for item in given) == ["args[0]", "args[1]"]
    assert found.argument_bytes == 3 * ARRAY


@pytest.mark.parametrize("name", ["four in jax.checkpoint", "four in recoup.checkpoint"])
def test_a_region_around_the_whole_keeps_the_arguments_only(name):
    found = recoup.residuals(programs()[name], *example_arguments())
    assert sorted(item.name for item in found.items) == ["args[0]", "args[1]"]
    assert found.total_bytes == 0


def test_the_path_through_nested_loops():
    def loss(w, xs):
        def inner(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h

        def outer(h, x):
            return jax.lax.scan(inner, h, x)

        return jnp.sum(jax.lax.scan(outer, jnp.zeros((4, 8)), xs)[1] ** 2)

    found = recoup.residuals(loss, jnp.ones((8, 8)), jnp.ones((5, 3, 4, 8)))
    rows = [item for item in found.items if item.iterations]
    assert rows and all(item.iterations == 15 and item.per_iteration_bytes == 128 for item in rows)
    for item in rows:
        outside, inside = item.path
        assert outside.startswith("scan of 5 at test_residual_totals.py:")
        assert inside.startswith("scan of 3 at test_residual_totals.py:")
    assert {"carry", ""} == {item.name for item in rows}
    assert all("inner)" in item.source for item in rows)


def test_a_gradient_inside_a_loop_is_not_differentiated_again():
    def accumulated(w, xs):
        def one(total, x):
            return total + jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w), None

        return jax.lax.scan(one, jnp.zeros_like(w), xs)[0]

    found = recoup.residuals(accumulated, jnp.ones((8, 8)), jnp.ones((5, 4, 8)))
    computed = [item for item in found.items if item.kind == "computed"]
    assert [item.bytes for item in computed] == [128]  # of one iteration: the next one writes over it
    assert computed[0].path[0].startswith("scan of 5") and computed[0].iterations == 0


def test_a_value_returned_twice_counts_once():
    def loss(w, xs):
        def cell(h, x):
            y = jnp.sin(h * w) + x
            return y, (y, y)

        _, (a, b) = jax.lax.scan(cell, xs[0], xs)
        return jnp.sum(jnp.sin(a) * jnp.sin(b * 2.0))

    found = recoup.residuals(loss, jnp.ones((8,)), jnp.ones((5, 8)))
    rows = [item for item in found.items if item.iterations and item.op == "add"]
    assert [item.bytes for item in rows if not item.duplicate] == [160]  # JAX itself stacks it once


def test_the_same_elements_in_another_layout_are_marked():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.sum(jnp.sin(h @ w) * 2) + jnp.sum(jnp.sin(h.T @ x)) + jnp.sum(jnp.cos(x.T @ h))

    found = recoup.residuals(loss, jnp.ones((8, 8)), jnp.ones((4, 8)))
    marked = [item for item in found.items if item.duplicate]
    assert {item.op for item in marked} == {"transpose"} and {item.bytes for item in marked} == {128}
    assert "= the elements of another value" in str(found)
    assert found.to_dict()["items"][found.items.index(marked[0])]["duplicate"]


def test_rows_with_the_same_elements_are_marked():
    def loss(w, xs):
        def cell(h, x):
            y = jnp.tanh(h @ w + x)
            return y, jnp.sum(jnp.sin(y @ w)) + jnp.sum(jnp.sin(y.T @ x))

        return jnp.sum(jax.lax.scan(cell, xs[0], xs)[1])

    found = recoup.residuals(loss, jnp.ones((8, 8)), jnp.ones((5, 4, 8)))
    marked = [item for item in found.items if item.duplicate]
    assert marked and all(item.op == "transpose" and item.iterations == 5 for item in marked)


def test_what_the_compiler_fuses_away_is_marked():
    """The square's derivative is computed inside the backward pass's first product; the activations stay."""
    found = recoup.residuals(layers(4), *example_arguments())
    fused = {item.op for item in found.items if item.fused}
    assert "tanh" not in fused
    assert 0 < found.fused_bytes < found.total_bytes
    assert "~ expected inside its readers" in str(found)


def test_timelines_compare():
    args = example_arguments()
    few, many = (recoup.timeline(jax.grad(layers(n), argnums=(0, 1)), *args) for n in (2, 6))
    difference = few.diff(many)
    assert difference.rows and all(a != b for *_, a, b in difference.rows)
    text = str(difference)
    assert max(map(len, text.splitlines())) <= 80 and "temporaries" in text
    assert not few.diff(few).rows
    assert [r.what for r in few.readings[:3]] == ["temporaries low", "temporaries", "temporaries high"]
