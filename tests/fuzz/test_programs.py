"""Random programs in a quick profile; `python -m benchmarks.fuzz` runs as long as one likes.

hypothesis draws the decisions that make a program, so a failure is shown as a few lines of Python.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, target

from benchmarks import fuzz, fuzz_table, literal, programs
from recoup import _rewrite
from recoup._planner import layout


@pytest.fixture(autouse=True, scope="module")
def _values_of_any_size() -> Iterator[None]:
    before = layout.SMALL_BYTES
    fuzz.small_too("tiny")
    yield
    layout.SMALL_BYTES = _rewrite.SMALL_BYTES = before


@given(programs.cases("tiny"))
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,  # what CI runs does not depend on luck; the long runs have seeds of their own
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
def test_random_programs(case: Any) -> None:
    target(len(case.made))
    outcomes = fuzz.attack(case, seed=len(case.made))
    assert len(outcomes) >= fuzz.BUDGETS


@pytest.mark.parametrize(("seed", "double"), [(3, False), (11, False), (300_000, True)])
def test_drawn_programs(seed: int, double: bool) -> None:
    with jax.enable_x64(double):
        log = fuzz.run([seed], "tiny", 5.0, None, 0.0, double)
    assert not log.failures and log.programs == 1 and log.rungs and log.primitives


def wrong_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewriting that computes another value: the first recomputed tanh is a sine."""
    honest = _rewrite.rewrite

    def rewrite(flat: Any, *args: Any) -> Any:
        found = honest(flat, *args)
        eqns = list(found.eqns)
        for i, eqn in enumerate(eqns):
            if "recoup_recompute" in str(eqn.source_info.name_stack) and eqn.primitive.name == "tanh":
                eqns[i] = eqn.replace(primitive=jax.lax.sin_p)
                break
        return type(found)(
            found.constvars, found.consts, found.invars, found.outvars, tuple(eqns), found.like
        )

    monkeypatch.setattr(_rewrite, "rewrite", rewrite)


CASE = """
def step(w1, w2, x):
    loss = lambda w1, w2: jnp.mean(jnp.tanh(jnp.tanh(x @ w1) @ w2) ** 2)
    return jax.grad(loss, (0, 1))(w1, w2)
"""


def made() -> Any:
    space: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(CASE, space)
    rng = np.random.default_rng(0)
    args = tuple(jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((8, 8), (8, 8), (16, 8)))
    return programs.steps.Case(space["step"], args, (), CASE, (), "tiny", False)


def test_a_wrong_rewriting_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = made()
    for seed in range(4):
        fuzz.attack(case, seed)
    wrong_rewrite(monkeypatch)
    with pytest.raises(fuzz.Wrong, match=r"values: .* another value: sin"):
        for seed in range(4):
            fuzz.attack(case, seed)


def test_literal_evaluation_is_what_the_program_says() -> None:
    def body(x: Any, w: Any) -> Any:
        x = jax.lax.cond(jnp.sum(x) > 0, jnp.sin, lambda v: v * 2.0, x @ w)
        return x, jnp.sum(x)

    def fun(x: Any, stack: Any, n: Any) -> Any:
        x, ys = jax.lax.scan(jax.checkpoint(body), x, stack, reverse=True)
        x = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x))[1]
        return x, ys, jax.lax.scan(body, x, stack[:0])[1]

    args = (jnp.ones((4, 3)), jnp.linspace(-1.0, 1.0, 45).reshape(5, 3, 3), 3)
    got = literal.evaluate(jax.make_jaxpr(fun)(*args), *jax.tree.leaves(args))
    for a, b in zip(got, jax.tree.leaves(fun(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert a.shape == b.shape and a.dtype == b.dtype


def test_the_page_of_a_run() -> None:
    log = fuzz.Log(seeds=[4, 5], programs=2, rungs=7, outcomes={"as it is, equal to the bit": 5, "FAILED": 1})
    log.primitives = {"sin": 2}
    log.failures = [{"seed": 5, "kind": "numbers", "text": "numbers: off by one", "program": ""}]
    page = fuzz_table.markdown([vars(log), vars(log) | {"running": 9}])
    assert "| as it is, equal to the bit | 10 |" in page and "sin 4" in page
    assert "seed 5: numbers" in page and "seed 9: the process died" in page and "Failures: 3" in page
