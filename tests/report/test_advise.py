"""Advice: the functions it names are the user's, and what it predicts is what wrapping them gives."""

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup._report.advice import Advice, Wrap
from tests.report.samples import block, mlp_args, mlp_step, scan_args, scan_step, shape


def _by_hand(count):
    wrapped = recoup.checkpoint(block)

    def step(params, x):
        def loss(params):
            h = x
            for i, p in enumerate(params):
                h = (wrapped if i < count else block)(p, h)
            return jnp.mean(h**2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def test_wrapping_what_it_says_gives_what_it_says():
    plan = recoup.plan(mlp_step, *mlp_args(), budget="55%")
    advice = plan.advise()
    (wrap,) = advice.wraps
    assert wrap.function == "block" and "samples.py:" in wrap.source
    assert wrap.calls == 6 and 1 <= wrap.regions <= 6
    assert advice.high_bytes < plan.unplanned_bytes
    if wrap.keeps:
        pytest.skip("the advice keeps values by name, which this test does not write")
    stats = jax.jit(_by_hand(wrap.regions)).lower(*mlp_args()).compile().memory_analysis()
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert total == pytest.approx(advice.estimate_bytes, rel=0.03)


def test_it_says_so_in_eighty_columns(plan):
    text = str(plan.advise())
    assert "block = recoup.checkpoint(block)" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "Instrument" in text


def test_the_body_of_a_loop():
    plan = recoup.plan(scan_step, *scan_args(), budget="75%")
    (wrap,) = plan.advise().wraps
    assert (wrap.function, wrap.loop) == ("body", 8)
    assert "In the loop of 8 iterations" in str(plan.advise())


def test_without_functions_it_names_lines():
    def step(ws, x):
        def loss(ws):
            h = x
            for w in ws:
                h = jnp.tanh(jnp.sin(h @ w) @ w.T)
            return jnp.sum(h**2)

        return jax.grad(loss)(ws)

    plan = recoup.plan(step, [shape(32, 256)] * 8, shape(256, 32), budget="60%")
    advice = plan.advise()
    assert advice.wraps and not advice.wraps[0].function
    assert "test_advise.py:" in advice.wraps[0].source


def test_a_step_that_fits_needs_no_advice():
    plan = recoup.plan(mlp_step, *mlp_args(2), budget="1GiB")
    advice = plan.advise()
    assert not advice.wraps and advice.overhead == 0
    assert "None" in str(advice)


def test_a_method_is_called_through_its_instance():
    wrap = Wrap("Block.__call__", "model.py:3", 2, 4, loop=0)
    text = str(Advice((wrap,), 1, 2, 3, 0.1, 3, 0.1, 9, 4))
    assert "recoup.checkpoint(block)(...) for block(...)" in text
    assert all(len(line) <= 80 for line in text.splitlines())
