"""Every derivative of every form against plain `jax.lax.scan` in the same precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from tests.loops.taped import taped

N, D = 13, 4
KEY = jax.random.key(0)


def inputs():
    k = jax.random.split(KEY, 3)
    return (
        jax.random.normal(k[0], (D,)),
        jax.random.normal(k[1], (D,)),
        0.1 * jax.random.normal(k[2], (N, D)),
    )


def step(w, u, x):
    u = u + jnp.float32(0.1) * jnp.sin(w * jnp.roll(u, 1)) + x
    return u, jnp.sum(u * w)


def plain(w, u, xs):
    u, ys = jax.lax.scan(lambda u, x: step(w, u, x), u, xs)
    return jnp.sum(u**2) + jnp.sum(jnp.cos(ys))


def scan_with(**options):
    def loop(w, u, xs):
        u, ys = recoup.scan(lambda u, x: step(w, u, x), u, xs, **options)
        return jnp.sum(u**2) + jnp.sum(jnp.cos(ys))

    return loop


def tape(w, u, xs):
    """Pieces of 3 steps differentiated together, the last of 1, from 2 slots."""
    with taped(2, 3):
        return scan_with()(w, u, xs)


def reversed_plain(w, u, xs):
    u, ys = jax.lax.scan(lambda u, x: step(w, u, x), u, xs, reverse=True)
    return jnp.sum(u**2) + jnp.sum(jnp.cos(ys))


def reversed_tape(w, u, xs):
    with taped(2, 3):
        return scan_with(reverse=True, unroll=2)(w, u, xs)


def dynamic(w, u, xs):
    """The same through `fori_loop` with bounds that only the running program knows; xs is captured."""

    def body(i, c):
        u, total = c
        u, y = step(w, u, jax.lax.dynamic_index_in_dim(xs, i, keepdims=False))
        return u, total + jnp.cos(y)

    n = jnp.argmax(jnp.zeros(3)) + N  # N, but not to the tracer
    u, total = recoup.fori_loop(0, n, body, (u, jnp.float32(0.0)), checkpoints=3)
    return jnp.sum(u**2) + total


def unknown(w, u, xs):
    """The same through `while_loop`."""

    def body(c):
        i, u, total = c
        u, y = step(w, u, jax.lax.dynamic_index_in_dim(xs, i, keepdims=False))
        return i + 1, u, total + jnp.cos(y)

    _, u, total = recoup.while_loop(
        lambda c: c[0] < N, body, (jnp.int32(0), u, jnp.float32(0.0)), checkpoints=3
    )
    return jnp.sum(u**2) + total


FORMS = {
    "binomial": scan_with(checkpoints=3),
    "one slot": scan_with(checkpoints=1),
    "tape": tape,
    "reversed tape": reversed_tape,
    "levels": scan_with(method="levels"),
    "default": scan_with(),
    "dynamic": dynamic,
    "unknown": unknown,
}


def tangents():
    w, u, xs = inputs()
    return jnp.cos(w), jnp.sin(u), xs * jnp.float32(2)


def hvp(f, *args):
    return jax.jvp(jax.grad(f, (0, 1, 2)), args, tangents())[1]


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(a, b, strict=True))


TRANSFORMS = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(f, (0, 1, 2)),
    "grad of the weight alone": lambda f: jax.grad(f, 0),
    "grad of xs alone": lambda f: jax.grad(f, 2),
    "jvp": lambda f: lambda *a: jax.jvp(f, a, tangents()),
    "linearize": lambda f: lambda *a: jax.linearize(f, *a)[1](*tangents()),
    "forward over reverse": lambda f: lambda *a: hvp(f, *a),
    "reverse over forward": lambda f: jax.grad(lambda *a: jax.jvp(f, a, tangents())[1], (0, 1, 2)),
    "reverse over reverse": lambda f: jax.grad(
        lambda *a: dot(jax.grad(f, (0, 1, 2))(*a), tangents()), (0, 1, 2)
    ),
    "third order": lambda f: jax.grad(lambda *a: dot(hvp(f, *a), tangents()), (0, 1, 2)),
    "hessian": lambda f: jax.hessian(f, (0, 1)),
    "jacrev twice": lambda f: jax.jacrev(jax.jacrev(f, 0), 1),
    "under remat": lambda f: jax.grad(jax.checkpoint(f), (0, 1, 2)),
    "vmap of grad": lambda f: (
        lambda w, u, xs: jax.vmap(jax.grad(f, (0, 1, 2)), (None, 0, None))(
            w, jnp.stack([u, jnp.float32(2) * u]), xs
        )
    ),
    "vmap of xs and w": lambda f: (
        lambda w, u, xs: jax.vmap(jax.grad(f, (0, 1, 2)), (0, None, 1))(
            jnp.stack([w, -w]), u, jnp.stack([xs, xs * jnp.float32(3)], 1)
        )
    ),
    "grad of vmap": lambda f: jax.grad(
        lambda w, u, xs: jnp.sum(jax.vmap(f, (None, 0, None))(w, jnp.stack([u, jnp.float32(2) * u]), xs)),
        (0, 1, 2),
    ),
    "vmap of forward over reverse": lambda f: (
        lambda w, u, xs: jax.vmap(lambda u: hvp(f, w, u, xs))(jnp.stack([u, jnp.float32(2) * u]))
    ),
    "vmap of pullbacks": lambda f: lambda *a: jax.vmap(jax.vjp(f, *a)[1])(jnp.arange(3.0)),
    "vmapped pullbacks": lambda f: (
        lambda w, u, xs: jax.vmap(lambda p: p(jnp.float32(2)))(
            jax.vmap(lambda u: jax.vjp(f, w, u, xs)[1])(jnp.stack([u, -u]))
        )
    ),
}

# The CI suite; the wide suite has every form under every transformation.
ALWAYS = {("binomial", t) for t in TRANSFORMS} | {
    ("unknown", t)
    for t in (
        "grad",
        "jvp",
        "forward over reverse",
        "reverse over reverse",
        "vmap of grad",
        "vmapped pullbacks",
    )
}
ALWAYS |= {(form, t) for form in FORMS for t in ("grad", "forward over reverse") if form != "one slot"}
ALWAYS |= {
    ("tape", t)
    for t in ("linearize", "reverse over reverse", "third order", "vmap of xs and w", "vmapped pullbacks")
}


@pytest.mark.parametrize(
    ("form", "transform"),
    [
        pytest.param(f, t, marks=[] if (f, t) in ALWAYS else [pytest.mark.slow])
        for f in FORMS
        for t in TRANSFORMS
    ],
)
def test_agrees_with_plain(form, transform):
    take = TRANSFORMS[transform]
    got = jax.jit(lambda *a: take(FORMS[form])(*a))(*inputs())
    like = reversed_plain if form == "reversed tape" else plain
    expected = jax.jit(lambda *a: take(like)(*a))(*inputs())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(b).max())),
        got,
        expected,
    )


def test_pulling_back_twice_gives_the_same():
    _, pull = jax.vjp(FORMS["binomial"], *inputs())
    jax.tree.map(np.testing.assert_array_equal, pull(jnp.float32(1)), pull(jnp.float32(1)))


@pytest.mark.parametrize("form", ["binomial", "unknown"])
def test_without_jit(form):
    got = jax.grad(FORMS[form], (0, 1))(*inputs())
    expected = jax.grad(plain, (0, 1))(*inputs())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


def test_gradients_equal_plains_to_the_bit():
    """One contribution of a step to each gradient: nothing for the compiler to add in another order."""

    def run(scan):
        def loss(w, u, xs):
            u, _ = scan(lambda u, x: (u + jnp.float32(0.1) * jnp.tanh(w * u) + x, None), u, xs)
            return jnp.sum(u**2)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*inputs())

    expected = run(jax.lax.scan)
    for options in ({"checkpoints": 3}, {"checkpoints": 1}, {"checkpoints": 50}):
        got = run(lambda *a, o=options: recoup.scan(*a, **o))
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    with taped(2, 5):
        got = run(recoup.scan)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_members_that_stop_at_different_times():
    def body(c):
        u, t, n = c
        h = jnp.float32(0.05) + jnp.float32(0.1) * jnp.abs(jnp.sin(u[0]))
        return u + h * jnp.tanh(u), t + h, n + 1

    def loop(u, limit):
        u, t, n = recoup.while_loop(
            lambda c: c[1] < limit, body, (u, jnp.float32(0), jnp.int32(0)), checkpoints=3
        )
        return jnp.sum(u**2) + t, n

    def masked(u, limit):
        def one(c, _):
            going = c[1] < limit
            return jax.tree.map(lambda a, b: jnp.where(going, a, b), body(c), c), None

        (u, t, n), _ = jax.lax.scan(one, (u, jnp.float32(0), jnp.int32(0)), None, 60)
        return jnp.sum(u**2) + t, n

    u = jnp.linspace(-1, 1, 3 * D).reshape(3, D)
    limits = jnp.float32([0.3, 2.0, 1.0])
    for f, g in [
        (lambda f: jax.value_and_grad(f, has_aux=True), "grad"),
        (lambda f: lambda u, t: jax.jvp(jax.grad(lambda u: f(u, t)[0]), (u,), (u,)), "hvp"),
        (lambda f: jax.grad(lambda u, t: jnp.sum(jax.grad(lambda u: f(u, t)[0])(u) ** 2)), "grad of grad"),
        (lambda f: jax.grad(lambda u, t: jax.jvp(lambda u: f(u, t)[0], (u,), (u,))[1]), "grad of jvp"),
    ]:
        got = jax.jit(jax.vmap(f(loop)))(u, limits)
        expected = jax.jit(jax.vmap(f(masked)))(u, limits)
        jax.tree.map(
            lambda a, b, g=g: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5, err_msg=g), got, expected
        )
    counts = jax.vmap(loop)(u, limits)[1]
    assert len(set(counts.tolist())) == 3


def test_no_derivative_where_a_member_stopped():
    """The step size is 0 at the end and the body takes its root: 0 * inf must not reach the gradient."""

    def loop(u):
        def body(c):
            u, t = c
            h = jnp.minimum(jnp.float32(0.3), 1 - t)
            return u * (1 + jnp.sqrt(h) * u), t + h * jnp.where(u > 1, 0.5, 1.0)

        return recoup.while_loop(lambda c: c[1] < 1 - 1e-6, body, (u, jnp.float32(0)), checkpoints=3)[0]

    u = jnp.float32([0.1, 0.5, 0.9])
    got = jax.vmap(jax.grad(loop))(u)
    np.testing.assert_allclose(got, [jax.grad(loop)(x) for x in u], rtol=1e-5)
    second = jax.vmap(jax.grad(jax.grad(loop)))(u)
    np.testing.assert_allclose(second, [jax.grad(jax.grad(loop))(x) for x in u], rtol=1e-4)


def test_members_with_bounds_of_their_own():
    u = jnp.linspace(-1, 1, 3 * D).reshape(3, D)
    n = jnp.int32([0, 5, 9])

    def loop(u, n):
        body = lambda i, u: u + jnp.float32(0.1) * jnp.sin(u) * i.astype(jnp.float32)
        return jnp.sum(recoup.fori_loop(0, n, body, u, checkpoints=3) ** 2)

    got = jax.vmap(jax.grad(loop))(u, n)
    for k in range(3):
        np.testing.assert_allclose(got[k], jax.grad(loop)(u[k], n[k]), rtol=1e-5)
    got = jax.vmap(lambda u, n: jax.grad(lambda u: jnp.sum(jax.grad(loop)(u, n) ** 2))(u))(u, n)
    for k in range(3):
        one = jax.grad(lambda u, n: jnp.sum(jax.grad(loop)(u, n) ** 2))(u[k], n[k])
        np.testing.assert_allclose(got[k], one, rtol=1e-4, atol=1e-6)
