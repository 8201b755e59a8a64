"""What a prediction says besides one number."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._memory import buffers, predict
from recoup._memory._heap import Plan, Step, heap_bytes

from .programs import array, gradient


def test_interval_is_ordered():
    step, args = gradient("attention")
    p = predict(jax.make_jaxpr(step)(*args))
    low, mid, high = (m.temporaries_bytes for m in (p.low, p.estimate, p.high))
    assert 0 < low <= mid <= high
    m = p.estimate
    parts = m.arguments_bytes + m.outputs_bytes - m.aliased_bytes + m.temporaries_bytes + m.constants_bytes
    assert m.total_bytes == parts


def test_timeline_and_peak_agree_and_name_lines():
    step, args = gradient("mlp")
    jaxpr = jax.make_jaxpr(step)(*args)
    p = predict(jaxpr)
    top = max(point.live_bytes for point in p.timeline)
    assert sum(live.nbytes for live in p.peak) == top
    assert [point.position for point in p.timeline] == list(range(len(p.timeline)))
    assert all(-1 <= live.eqn < len(jaxpr.jaxpr.eqns) for live in p.peak)
    assert all("programs.py:" in live.source for live in p.peak)


def test_fused_values_have_no_buffer():
    def step(x, w):
        h = jnp.tanh(x @ w)
        return (h * 2 + 1) @ w

    jaxpr = jax.make_jaxpr(step)(array(512, 128), array(128, 128))
    written = {e.primitive.name: b for e, b in zip(jaxpr.jaxpr.eqns, buffers(jaxpr), strict=True)}
    assert written["tanh"] == (False,)
    assert written["mul"] == (False,)
    assert written["add"] == (True,)
    assert written["dot_general"] == (True,)


def test_unknown_operations_are_named():
    def step(x):
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(64)).sum()

    p = predict(jax.make_jaxpr(step)(array(64, 64)))
    assert "cholesky" in p.opaque


def test_other_backends_are_marked():
    p = predict(jax.make_jaxpr(jnp.sin)(array(8)), backend="gpu")
    assert any("gpu" in name for name in p.opaque)


def test_closed_over_arrays_count_once():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(64, 64)), jnp.float32)
    p = predict(jax.make_jaxpr(lambda x: table @ x + table)(array(64, 64)))
    assert p.estimate.constants_bytes == 64 * 64 * 4


def test_loops_do_not_grow_with_their_length():
    def step(x, w, n):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=n)[0]

    sizes = [
        predict(jax.make_jaxpr(lambda x, w, n=n: step(x, w, n))(array(64, 64), array(64, 64)))
        for n in (10, 10_000)
    ]
    assert len(sizes[0].timeline) == len(sizes[1].timeline)
    assert sizes[0].estimate.temporaries_bytes == sizes[1].estimate.temporaries_bytes


@st.composite
def plans(draw):
    """Buffers with random sizes and lives, as a plan."""
    n = draw(st.integers(1, 12))
    length = draw(st.integers(1, 10))
    steps = [Step([], [], [], []) for _ in range(length)]
    sizes, lives = [], []
    for k in range(n):
        a = draw(st.integers(0, length - 1))
        b = draw(st.integers(a, length - 1))
        sizes.append(64 * draw(st.integers(1, 9)))
        lives.append((a, b))
        steps[a].allocate.append((k, -1))
        steps[b].free.append(k)
    return Plan(sizes, list(range(n)), steps), lives


@settings(max_examples=200, deadline=None)
@given(plans())
def test_heap_is_between_the_live_sum_and_no_sharing(drawn):
    plan, lives = drawn
    peak = max(
        sum(s for s, (a, b) in zip(plan.sizes, lives, strict=True) if a <= i <= b)
        for i in range(len(plan.steps))
    )
    best, first = heap_bytes(plan)
    assert peak <= best <= first <= sum(plan.sizes)
