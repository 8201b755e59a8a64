"""The barrier is the identity to the bit, under every transformation, and orders what reads its results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from recoup import _compat
from recoup._barrier import FENCE_OPTIONS, barrier, barrier_p, barrier_params, hitting_set

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "uint32",
    "bool",
    "complex64",
    "float8_e5m2",
    "int4",
]
MODES = ["auto", "fence"]


def specials(dtype, shape):
    size = int(np.prod(shape))
    if dtype == "bool":
        return (jnp.arange(size) % 2 == 0).reshape(shape)
    if dtype.startswith(("int", "uint")):
        return jnp.arange(size).astype(dtype).reshape(shape)
    row = np.array([np.nan, np.inf, -np.inf, -0.0, 1.5, 0.0, -2.0], np.float32)
    x = jnp.asarray(np.resize(row, shape))
    if dtype == "complex64":
        return jax.lax.complex(x, x[::-1] if x.ndim else x)
    return x.astype(dtype)


def bits(x):
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (1, 4, 1), (0, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_identity_to_the_bit(dtype, shape, mode):
    x = specials(dtype, shape)
    trigger = jnp.full((2, 2), jnp.nan)
    (y,), (t,) = jax.jit(lambda a, b: barrier([a], [b], mode=mode))(x, trigger)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert bits(y) == bits(x)
    assert bits(t) == bits(trigger)


@pytest.mark.parametrize("trigger", [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -7.0])
def test_any_trigger_gives_the_identity(trigger):
    x = jnp.arange(12.0).reshape(3, 4)
    (y,), _ = jax.jit(lambda a, b: barrier([a], [b]))(x, jnp.float32(trigger))
    assert bits(y) == bits(x)


def test_keys_and_double_precision():
    key = jax.random.key(3)
    (k,), _ = jax.jit(lambda k, t: barrier([k], [t]))(key, jnp.ones(3))
    assert bits(jax.random.key_data(k)) == bits(jax.random.key_data(key))
    keys = jax.random.split(key, 4)
    (k, _), _ = jax.jit(lambda k, t: barrier([k, t], [k]))(keys, jnp.ones(3))
    assert bits(jax.random.key_data(k)) == bits(jax.random.key_data(keys))
    with jax.enable_x64(True):
        x = jnp.array([1.0, np.nan, 3.0], jnp.float64)
        (y,), _ = jax.jit(lambda a: barrier([a], [a]))(x)
        assert bits(y) == bits(x)


def test_outside_jit_and_without_operands():
    (y,), ts = barrier([jnp.arange(3.0)])
    assert bits(y) == bits(jnp.arange(3.0)) and ts == []
    assert barrier([], []) == ([], [])


def test_vmap_scan_and_jvp():
    x = jnp.arange(24.0).reshape(4, 6)

    def f(a, b):
        (a,), (b,) = barrier([a], [b])
        return a * b

    plain = lambda a, b: a * b
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(f, (0, None)))(x, x[0]), jax.vmap(plain, (0, None))(x, x[0])
    )
    np.testing.assert_array_equal(jax.jit(jax.vmap(f, (1, 1)))(x, x), jax.vmap(plain, (1, 1))(x, x))

    def body(carry, row):
        carry = f(carry, row)
        return carry, carry

    out = jax.jit(lambda x: jax.lax.scan(body, x[0], x))(x)
    want = jax.lax.scan(lambda c, r: (c * r, c * r), x[0], x)
    jax.tree.map(np.testing.assert_array_equal, out, want)
    tangent = jax.jit(lambda x: jax.jvp(f, (x, x), (x, x)))(x)
    jax.tree.map(np.testing.assert_array_equal, tangent, jax.jvp(plain, (x, x), (x, x)))


def test_derivatives_to_third_order():
    def f(x):
        (y,), (x,) = barrier([jnp.sin(x)], [x])
        return (y * x).sum()

    plain = lambda x: (jnp.sin(x) * x).sum()
    x = jnp.arange(1.0, 4.0)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(x), jax.grad(plain)(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.hessian(f))(x), jax.hessian(plain)(x), rtol=1e-6)
    third, want = (jax.jit(jax.jacfwd(jax.jacrev(jax.jacrev(g))))(x) for g in (f, plain))
    np.testing.assert_allclose(third, want, rtol=1e-6)


def test_shard_map_and_automatic_partitioning():
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("d",))
    n = 4 * len(devices)
    x, w = jnp.arange(8.0 * n).reshape(n, 8), jnp.arange(8.0)

    def f(x, w):
        (x, w), _ = barrier([x, w], [x * 2.0])
        return x * w

    mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
    np.testing.assert_array_equal(mapped(x, w), x * w)
    sharded = jax.device_put(x, NamedSharding(mesh, P("d")))
    out = jax.jit(f)(sharded, w)
    np.testing.assert_array_equal(out, x * w)


@pytest.mark.parametrize("mode", MODES)
def test_the_compiler_neither_merges_nor_drops(mode):
    w = jnp.eye(64) * 0.5

    def f(x, w):
        y = jnp.tanh(x @ w)
        z = jnp.tanh(y @ w)  # the trigger
        (again,), _ = barrier([x], [z], mode=mode)
        return z @ jnp.tanh(again @ w)

    options = FENCE_OPTIONS if mode == "fence" else None
    text = jax.jit(f).lower(jnp.ones((64, 64)), w).compile(compiler_options=options).as_text()
    assert products(text) == 4  # three of the function, one computed again


def products(text):
    return text.count(" dot(") + text.count("__onednn$matmul")


def test_dead_values_leave_and_triggers_stay():
    def f(a, b, t):
        (a, b), _ = barrier([a, b], [t])
        return a

    closed = jax.make_jaxpr(f)(jnp.ones(2), jnp.ones(3), jnp.ones(4))
    eqns = _compat.open_jaxpr(_compat.dce_jaxpr(closed, [True]))[0].eqns
    (eqn,) = (e for e in eqns if e.primitive is barrier_p)
    assert [v.aval.shape for v in eqn.invars] == [(2,), (4,)]
    assert eqn.params["triggers"] == 1


def test_equations_can_be_built_without_tracing():
    hash(tuple(sorted(barrier_params(1, groups=((0, 1),), captured=(1,)).items())))
    with pytest.raises(ValueError, match="fence"):
        barrier_params(1, mode="fast")


def test_groups_order_one_value_each():
    assert hitting_set([(0, 1), (1, 2)], set(), [9, 5, 1]) == {1}
    assert hitting_set([(0, 1), (2,)], set(), [9, 5, 1]) == {1, 2}
    assert hitting_set([(0, 1), (1,)], set(), [1, 5]) == {1}
    assert hitting_set([(0, 1)], {0}, [9, 1]) == {0}

    def f(x, w):
        h = jnp.sin(x)
        h, w = barrier_p.bind(h, w, **barrier_params(0, mode="fence", groups=((0, 1),)))
        return h * w

    text = jax.jit(f).lower(jnp.ones(4), jnp.ones(4)).as_text()
    (line,) = (line for line in text.splitlines() if "optimization_barrier" in line)
    assert "sine" not in line and "," not in line.split(":")[0]  # the computed value alone
