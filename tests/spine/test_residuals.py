"""`recoup.residuals` and `recoup.timeline`: what is kept, by line and bytes, and the predicted memory."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import recoup
from recoup._compat import JAX_VERSION

from .helpers import compiled, dropout, mlp, normal, sgd, temporaries

# The versions differentiate tanh and the square by other rules: 0.12 keeps one array fewer.
NEWER = JAX_VERSION >= (0, 12)
ARRAY = 512 * 1024


def tanh_layers(count):
    """`count` layers of tanh(x @ w), 128 rows of 1024 floats: 512 KiB an activation."""

    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    return loss, ([shape(1024, 1024)] * count, shape(128, 1024))


@pytest.mark.parametrize(("layers", "old", "new"), [(4, 9, 8), (16, 33, 32)])
def test_arrays_kept_of_tanh_layers(layers, old, new):
    loss, args = tanh_layers(layers)
    found = recoup.residuals(loss, *args)
    computed = [item for item in found.items if item.kind == "computed"]
    assert len(computed) == (new if NEWER else old)
    assert {item.bytes for item in computed} == {ARRAY}
    assert found.total_bytes == len(computed) * ARRAY
    # The first input and the weights after the first are arguments: there anyway.
    assert found.argument_bytes == sum(i.bytes for i in found.items if i.kind == "argument") > 0
    assert all("test_residuals.py" in item.source for item in computed)
    assert all(item.value == "f32[128,1024]" and item.iterations == 0 for item in computed)


def test_a_step_with_a_gradient_is_not_differentiated_again():
    loss, args = tanh_layers(4)
    direct = recoup.residuals(loss, *args)
    for step in (jax.grad(loss), sgd(loss), jax.jit(jax.value_and_grad(loss))):
        found = recoup.residuals(step, *args)
        assert abs(found.total_bytes - direct.total_bytes) <= ARRAY
        assert len(found.items) <= len(direct.items) + 1


def scanned(params, xs):
    def cell(h, x):
        z = x + h @ params
        return jnp.tanh(z) * jnp.cos(z), None

    h, _ = lax.scan(cell, jnp.zeros((4, 16)), xs)
    return jnp.sum(h * h)


def test_rows_of_a_scan_by_name_line_and_iteration():
    found = recoup.residuals(scanned, normal(0, 16, 16), normal(1, 50, 4, 16))
    rows = [item for item in found.items if item.iterations]
    assert rows and all(item.iterations == 50 for item in rows)
    for item in rows:
        assert item.per_iteration_bytes == 4 * 16 * 4 and item.bytes == 50 * item.per_iteration_bytes
        assert item.value == "f32[4,16]"
    assert {"tanh", "cos"} <= {item.op for item in rows}
    assert all("cell)" in item.source for item in rows if item.op in ("tanh", "cos"))
    assert all("test_residuals.py" in item.source for item in rows)
    text = str(found)
    assert "x 50 steps" in text and "test_residuals.py" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_name_given_by_the_user_is_shown():
    def loss(w, x):
        y = checkpoint_name(jnp.sin(x @ w), "middle")
        return jnp.sum(jnp.sin(y) * y)

    found = recoup.residuals(loss, normal(0, 16, 16), normal(1, 8, 16))
    assert "middle" in {item.name for item in found.items}


def test_a_region_keeps_less_and_diff_says_what():
    def loss(wrap):
        def block(w, x):
            return jnp.tanh(jnp.tanh(x @ w) @ w)

        def total(w, x):
            for _ in range(3):
                x = wrap(block)(w, x)
            return jnp.sum(x)

        return total

    args = (normal(0, 16, 16), normal(1, 64, 16))
    plain = recoup.residuals(loss(lambda f: f), *args)
    region = recoup.residuals(loss(jax.checkpoint), *args)
    assert region.total_bytes < plain.total_bytes
    difference = plain.diff(region)
    assert (difference.first_total_bytes, difference.second_total_bytes) == (
        plain.total_bytes,
        region.total_bytes,
    )
    assert "tanh" in {item.op for item in difference.only_first}
    assert "Only the first keeps" in str(difference)
    nothing = plain.diff(plain)
    assert not nothing.only_first and not nothing.only_second


def test_lines_add_up_and_json_is_plain():
    loss, args = tanh_layers(4)
    found = recoup.residuals(loss, *args)
    lines = found.by_source()
    assert sum(lines.values()) == found.total_bytes
    assert list(lines.values()) == sorted(lines.values(), reverse=True)
    data = json.loads(found.to_json())
    assert data["total_bytes"] == found.total_bytes and len(data["items"]) == len(found.items)
    assert data["instrument"].startswith("jaxpr") and data["instrument"] in str(found).replace("\n", " ")


def test_arrays_closed_over_are_named_constants():
    held = normal(0, 16, 16)
    found = recoup.residuals(lambda x: jnp.sum(jnp.sin(x @ held) @ held), normal(1, 8, 16))
    assert [i.bytes for i in found.items if i.kind == "constant"] == [held.nbytes]


def test_integers_and_keys_beside_floats():
    def loss(w, count, key):
        return jnp.sum(dropout(key, jnp.tanh(w)) * count.astype(jnp.float32))

    found = recoup.residuals(loss, normal(0, 8, 8), jnp.int32(2), jax.random.key(0))
    assert any(item.value.startswith("bool") or item.op == "select_n" for item in found.items)


def test_keyword_and_static_arguments():
    def loss(x, power, *, scale):
        return jnp.sum(jnp.sin(x) ** power) * scale

    found = recoup.residuals(loss, normal(0, 8, 8), 3, kwargs={"scale": jnp.float32(1.0)}, static_argnums=1)
    assert found.total_bytes >= 8 * 8 * 4


def test_timeline_holds_the_compilers_number():
    step, args = mlp()
    found = recoup.timeline(step, *args)
    low, mid, high = found.predicted.low, found.predicted.estimate, found.predicted.high
    for field in ("arguments", "outputs", "aliased", "temporaries", "constants", "total"):
        sizes = [getattr(part, f"{field}_bytes") for part in (low, mid, high)]
        assert sizes == sorted(sizes) and all(isinstance(size, int) for size in sizes)
    program = compiled(step, *args)
    assert low.arguments_bytes == program.memory_analysis().argument_size_in_bytes
    assert low.outputs_bytes == pytest.approx(program.memory_analysis().output_size_in_bytes, abs=256)
    assert 0.95 * low.temporaries_bytes <= temporaries(program) <= 1.05 * high.temporaries_bytes
    assert found.peak_bytes == mid.total_bytes
    assert "predicted" in found.instrument


def test_timeline_points_and_the_peak():
    step, args = mlp()
    found = recoup.timeline(step, *args)
    assert len(found.points) > 10 and found.peak and not found.opaque
    sizes = [live.nbytes for live in found.peak]
    assert sizes == sorted(sizes, reverse=True)
    assert any("helpers.py" in live.source for live in found.peak)
    data = json.loads(found.to_json())
    assert data["peak_bytes"] == found.peak_bytes
    assert data["predicted"]["high"]["total_bytes"] == found.predicted.high.total_bytes


def test_timeline_as_text():
    step, args = mlp()
    text = str(recoup.timeline(step, *args))
    assert max(map(len, text.splitlines())) <= 80
    assert "temporaries" in text and "helpers.py" in text and "predicted" in text


def test_timeline_counts_donation_and_constants():
    held = normal(3, 64, 64)
    step = sgd(lambda w, x: jnp.sum(jnp.tanh(x @ w @ held)))
    args = (normal(0, 32, 64), normal(1, 16, 32))
    found = recoup.timeline(step, *args, donate_argnums=0).predicted.estimate
    assert found.aliased_bytes == args[0].nbytes
    assert found.constants_bytes == held.nbytes
