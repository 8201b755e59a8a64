"""Loops at their edges: what a plan says, odd lengths, odd bodies, derivatives that are zero."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import recoup
from recoup import _ladder, _loop_pairs
from recoup._compiling import to_function
from recoup._loops import choose as choosing
from recoup._loops import schedules
from recoup._loops.choose import Sizes, choose
from recoup._trace import trace
from recoup.errors import BudgetError, EffectError

W, STATE = 0.2 * jax.random.normal(jax.random.key(0), (16, 16)), jnp.ones((8, 16))


def body(c: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(c @ W) + x), None


# -- plans -------------------------------------------------------------------------------------------------


def test_a_plan_says_what_it_holds_and_repeats() -> None:
    for options in ({}, {"checkpoints": 5}, {"budget": "8KiB"}, {"method": "all"}, {"method": "levels"}):
        plan = recoup.loop_plan(body, STATE, jnp.zeros(100), **options)
        text = str(plan)
        assert text.startswith(f"loop of 100 steps: {plan.chosen.label}") and plan.reason in text
        assert plan.recomputed == plan.evaluations - 100 >= 0
        assert f"states held {plan.states_held}, steps recomputed {plan.recomputed}" in text
        assert ("of a budget of 8.00 KiB" in text) == ("budget" in options)
        for other in plan.alternatives:
            assert other.label in text
    assert recoup.loop_plan(body, STATE, jnp.zeros(100), method="all").states_held == 100
    assert recoup.loop_plan(body, STATE, jnp.zeros(3), checkpoints=5).states_held == 3


def test_a_plan_of_a_loop_of_unknown_length() -> None:
    grow = lambda c, _: (c * 1.5, None)
    plan = recoup.loop_plan(grow, STATE, checkpoints=7)
    assert (plan.length, plan.evaluations, plan.recomputed, plan.states_held) == (None, None, None, 7)
    text = str(plan)
    assert "loop of unknown length: online, 7 slots" in text and "depends on the length" in text
    # the table's rows are what the model machine counts
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["1000"])
    assert int(row[1]) == schedules.online_advances(1000, 7) + 1000
    assert f"{choosing.UNKNOWN_SLOTS} states" in str(recoup.loop_plan(grow, STATE))
    within = recoup.loop_plan(grow, STATE, budget="16KiB")
    assert within.predicted_bytes <= 16 * 1024 < within.predicted_bytes + STATE.nbytes
    with pytest.raises(BudgetError, match=r"cannot run within 1\.00 KiB: the smallest is online, 1 slots"):
        recoup.loop_plan(grow, STATE, budget="1KiB")


def test_the_choice_for_loops_that_do_not_divide_or_are_heavy_elsewhere() -> None:
    assert choose(3, Sizes(8, 80, 0)).method == "all"
    assert "too short" in choose(2, Sizes(8, 80, 0)).reason
    assert "do not divide" in choose(10_007, Sizes(8, 80, 0)).reason
    assert "accumulator per level" in choose(100, Sizes(8, 80, 900)).reason
    assert "copy slices" in choose(100, Sizes(8, 80, 0, 10**6)).reason
    assert choose(100, Sizes(8, 80, 0)).method == "levels"
    square_root = schedules.optimal_advances(100, schedules.default_slots(100)) + 100
    assert 200 <= (choose(100, Sizes(8, 80, 0), method="binomial").evaluations or 0) <= square_root
    # states of no bytes: the slots are not what limits
    assert (choose(None, Sizes(0, 80, 0), budget_bytes=2200).slots or 0) >= 1
    with pytest.raises(BudgetError):
        choose(None, Sizes(0, 80, 0), budget_bytes=10)
    with pytest.raises(BudgetError, match="the smallest"):
        choose(100, Sizes(8, 80, 0), budget_bytes=900, method="all")
    for wrong in (
        {"method": "best"},
        {"checkpoints": 2, "budget_bytes": 9},
        {"checkpoints": 0},
        {"checkpoints": 2, "method": "all"},
    ):
        with pytest.raises(ValueError):
            choose(10, Sizes(8, 80, 0), **wrong)  # type: ignore[arg-type]
    assert schedules.least_repeats(7, 1) == 6 and schedules.least_repeats(0, 1) == 0


# -- what a loop is given ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("xs", "length", "message"),
    [
        (jnp.float32(1), None, "leading axis"),
        ((jnp.ones(3), jnp.ones(4)), None, r"different leading sizes: \[3, 4\]"),
        (jnp.ones(3), 4, "length=4 does not agree"),
        (None, -1, "length=-1 does not agree"),
    ],
)
def test_lengths_that_contradict(xs: Any, length: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recoup.scan(lambda c, x: (c, None), STATE, xs, length, checkpoints=2)
    if length is None:
        with pytest.raises(ValueError, match="give xs or length"):
            recoup.scan(lambda c, x: (c, None), STATE, None, None, checkpoints=2)


def test_bodies_that_return_something_else() -> None:
    with pytest.raises(TypeError, match=r"must return \(carry, y\)"):
        recoup.scan(lambda c, x: c, (STATE, STATE, STATE), None, 3, checkpoints=2)
    with pytest.raises(TypeError, match="bounds must be integers"):
        recoup.fori_loop(0.5, 3, lambda i, c: c, STATE, checkpoints=2)
    with pytest.raises(ValueError, match="needs bounds known before the program runs"):
        jax.jit(lambda n: recoup.fori_loop(0, n, lambda i, c: c, STATE, method="levels"))(3)
    with pytest.raises(ValueError, match="segments must be at least 1"):
        from recoup._loops.api import segment_scan

        segment_scan(body, STATE, jnp.zeros(4), 4, segments=0)


def test_an_initial_value_without_a_type_of_its_own_takes_the_bodys() -> None:
    grow = lambda c, x: (c * x, c)
    for init in (1.0, (1.0, jnp.float32(2.0))):
        step = (
            (lambda c, x: grow(c, x)) if not isinstance(init, tuple) else (lambda c, x: ((c[1], c[0] * x), x))
        )
        got = recoup.scan(step, init, jnp.linspace(1, 2, 5), checkpoints=2)
        want = jax.lax.scan(step, init, jnp.linspace(1, 2, 5))
        assert jax.tree.map(jnp.result_type, got) == jax.tree.map(jnp.result_type, want)
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_body_that_asks_its_host_is_refused_and_one_that_prints_is_not() -> None:
    def asks(c: Any, x: Any) -> Any:
        seen = jax.experimental.io_callback(lambda v: v, jax.ShapeDtypeStruct((), jnp.float32), c.sum())
        return c * seen, None

    with pytest.raises(EffectError):
        jax.grad(lambda c: recoup.scan(asks, c, jnp.zeros(4), checkpoints=2)[0].sum())(STATE)

    def prints(c: Any, x: Any) -> Any:
        def inner(c: Any) -> Any:
            jax.debug.callback(lambda _: None, c[0, 0])
            return jnp.sin(c)

        return jax.lax.cond(x > 0, inner, jnp.cos, c), None

    xs = jnp.linspace(-1, 1, 6)
    got = jax.grad(lambda c: recoup.scan(prints, c, xs, checkpoints=2)[0].sum())(STATE)
    want = jax.grad(lambda c: jax.lax.scan(prints, c, xs)[0].sum())(STATE)
    np.testing.assert_allclose(got, want, rtol=1e-6)


# -- derivatives that are zero -----------------------------------------------------------------------------


def run(options: dict[str, Any], c: Any, w: Any, xs: Any) -> Any:
    scan = (lambda *a: recoup.scan(*a, **options)) if options else jax.lax.scan
    return scan(lambda c, x: (jnp.tanh(c @ w + x), c.sum()), c, xs)


@pytest.mark.parametrize("of", ["carry", "outputs", "neither"])
def test_cotangents_and_tangents_that_are_zero(of: str) -> None:
    xs = jnp.linspace(0, 1, 6)

    def loss(options: dict[str, Any], c: Any, w: Any) -> Any:
        last, ys = run(options, c, w, xs)
        return {"carry": last.sum(), "outputs": ys[2], "neither": jnp.float32(3) + 0 * w[0, 0]}[of]

    for fun in (
        lambda o: jax.grad(loss, (1, 2))(o, STATE, W),
        lambda o: jax.jacfwd(lambda w: jax.grad(loss, 1)(o, STATE, w)[0, 0])(W),
        lambda o: jax.grad(lambda w: jnp.sum(jax.grad(loss, 2)(o, STATE, w) ** 2))(W),
    ):
        got, want = fun({"checkpoints": 2}), fun({})
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), got, want)


def test_nothing_moves() -> None:
    """Tangents that are symbolic zeros all the way, and a linear function that is transposed."""
    xs = jnp.linspace(0, 1, 6)
    still = lambda t: run({"checkpoints": 2}, STATE, W, xs)[0].sum() * t
    assert float(jax.grad(still)(2.0)) == pytest.approx(float(run({}, STATE, W, xs)[0].sum()), rel=1e-6)
    straight = lambda c: recoup.scan(lambda c, x: (c @ W, None), c, xs, checkpoints=2)[0]
    plain = lambda c: jax.lax.scan(lambda c, x: (c @ W, None), c, xs)[0]
    _, push = jax.linearize(straight, STATE)
    _, pushed = jax.linearize(plain, STATE)
    np.testing.assert_allclose(push(STATE), pushed(STATE), rtol=1e-5)
    back, other = jax.vjp(straight, STATE)[1], jax.vjp(plain, STATE)[1]
    np.testing.assert_allclose(back(STATE)[0], other(STATE)[0], rtol=1e-5)
    again = jax.grad(lambda ct: jnp.sum(back(ct)[0]))(STATE)
    np.testing.assert_allclose(again, jax.grad(lambda ct: jnp.sum(other(ct)[0]))(STATE), rtol=1e-5)


def test_collectives_in_a_mapped_body_find_their_axis() -> None:
    def mean(scan: Any) -> Any:
        def one(c: Any) -> Any:
            return scan(lambda c, x: (c - jax.lax.pmean(c, "members") * x, None), c, jnp.linspace(0, 1, 5))[0]

        return jax.vmap(jax.grad(lambda c: (one(c) ** 2).sum()), axis_name="members")(
            jnp.arange(6.0).reshape(3, 2)
        )

    got = mean(lambda f, c, xs: recoup.scan(f, c, xs, checkpoints=2))
    np.testing.assert_allclose(got, mean(jax.lax.scan), rtol=1e-5, atol=1e-6)


# -- pairs of loops ----------------------------------------------------------------------------------------

ROWS = jax.random.normal(jax.random.key(1), (12, 16), jnp.float32)


def twice(w: Any, xs: Any) -> Any:
    """The same row under two positions, a row that is a constant, and one that is the loop's own data."""

    def forward(c: Any, x: Any) -> Any:
        t = jnp.tanh(jnp.tanh(c @ w) + x)
        return t, (t, t, jnp.float32(2.0), x, jnp.sin(t))

    c, rows = lax.scan(forward, jnp.ones(16, jnp.float32), xs)

    def back(g: Any, r: Any) -> Any:
        a, b, k, x, s = r
        return g * k * jnp.cos(a) + s * b + x, g.sum()

    return lax.scan(back, c, rows, reverse=True)


def three(w: Any, xs: Any) -> Any:
    """The second loop reads the first one's rows, and the third the second's."""

    def first(c: Any, x: Any) -> Any:
        t = jnp.tanh(jnp.tanh(jnp.tanh(c @ w) @ w) + x)
        return t, jnp.sin(t) * c

    def second(c: Any, r: Any) -> Any:
        t = jnp.tanh(jnp.tanh(c @ w) * r)
        return t, jnp.cos(t) * c

    a, rows = lax.scan(first, xs[0], xs)
    b, more = lax.scan(second, a, rows, reverse=True)
    return lax.scan(lambda c, r: (jnp.sin(c * r), None), b, more)[0]


def unread(w: Any, xs: Any) -> Any:
    """Nobody reads the first loop's carry, nor one of its rows; its constant operand is a number."""
    scale = jnp.float32(0.5)

    def forward(c: Any, x: Any) -> Any:
        t = jnp.tanh(jnp.tanh(c @ w) * scale + x)
        return t, (jnp.sin(t), jnp.cos(t), t.sum())

    _, (rows, _, _) = lax.scan(forward, xs[0], xs)
    return lax.scan(lambda g, r: (g * r + scale, None), xs[1], rows, reverse=True)[0]


def sorted_rows(w: Any, xs: Any) -> Any:
    """An operation of the body has two results: one is stacked for the second loop, one for the caller."""

    def forward(c: Any, x: Any) -> Any:
        a, b = lax.sort((jnp.tanh(c @ w) + x, c), num_keys=1)
        return jnp.tanh(a + b), (a, jnp.sin(b), b)

    c, (a, s, b) = lax.scan(forward, xs[0], xs)
    g, out = lax.scan(lambda g, r: (g * r[0] + r[1], g), c, (a, s), reverse=True)
    return g, out, b


def squared_gradient(w: Any, xs: Any) -> Any:
    """A derivative of a derivative: loops in a row that read each other's rows."""

    def loss(w: Any) -> Any:
        return jnp.sum(lax.scan(lambda c, x: (jnp.tanh(jnp.tanh(c @ w) + x), None), xs[0], xs)[0] ** 2)

    return jax.grad(lambda w: jnp.sum(jax.grad(loss)(w) ** 2))(w)


@pytest.mark.parametrize("step", [twice, three, unread, sorted_rows], ids=lambda f: f.__name__)
def test_every_trade_between_loops_written_by_hand(step: Any) -> None:
    """All choices of all pairs: the numbers of plain."""
    traced = trace(step, (W, ROWS))
    pairs = _loop_pairs.find_pairs(traced.flat)
    plain = jax.jit(step)(W, ROWS)
    choices = list(itertools.product(*[range(-1, len(pair.cuts)) for pair in pairs]))
    assert len(choices) > 1
    for choice in choices:
        flat = _loop_pairs.apply(traced.flat, pairs, choice)
        found = jax.jit(to_function(flat, traced, "step"))(W, ROWS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, found)


@pytest.mark.parametrize("step", [three, squared_gradient], ids=lambda f: f.__name__)
def test_a_loop_is_traded_with_one_other_at_a_time(step: Any) -> None:
    """A loop in two pairs was rebuilt for one of them, and the other one's trade no longer fitted it."""
    traced = trace(step, (W, jnp.concatenate([ROWS] * 4)))
    pairs = _loop_pairs.find_pairs(traced.flat)
    loops = [at for pair in pairs for at in (pair.forward, pair.backward)]
    assert pairs and len(set(loops)) == len(loops)
    assert len(_ladder.build(traced).steps) > 1
