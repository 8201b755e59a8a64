"""`recoup.check`: equal steps, steps that round differently, wrong steps, and every kind of output."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recoup
from recoup._agreement import compare
from recoup._cli import main
from recoup.errors import AgreementError

WEIGHTS = [0.2 * jax.random.normal(jax.random.key(i), (32, 32), jnp.float32) for i in range(6)]
X = jax.random.normal(jax.random.key(9), (512, 32), jnp.float32)


def loss(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(jnp.tanh(x @ w) * 2.0)
    return jnp.mean(x * x)


def step(weights: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(weights, x)
    return {"new": [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], "loss": value}


def wrong(weights: Any, x: Any) -> Any:
    out = step(weights, x)
    return out | {"new": [out["new"][0], out["new"][1] * 1.001, *out["new"][2:]]}


@functools.cache
def fitted_step() -> recoup.Fitted:
    return recoup.fit(step, WEIGHTS, X, budget="85%")


def test_a_fitted_step_agrees_to_the_bit() -> None:
    found = recoup.check(step, fitted_step(), WEIGHTS, X)
    assert found and found.equal and found.worst is None and found.ulps == 0.0
    assert found.certified_bytes == fitted_step().memory.total_bytes <= found.budget_bytes
    assert found.recomputed > 0 and found.recomputed_bytes > 0 and found.overhead > 0
    assert found.recomputed_operations > 0, "the compiler merged the recomputation away"
    assert [output.path for output in found.outputs] == ["['loss']", *(f"['new'][{i}]" for i in range(6))]
    text = str(found)
    assert text.startswith("Equal to the bit: all 7 outputs") and "given" in text
    assert max(map(len, text.splitlines())) <= 80
    data = json.loads(found.to_json())
    assert data["equal"] and data["agrees"] and len(data["outputs"]) == 7


def test_a_wrong_step_is_caught_and_the_output_named() -> None:
    found = recoup.check(wrong, fitted_step(), WEIGHTS, X)
    assert not found and not found.equal and not found.agrees
    assert found.worst is not None and found.worst.path == "['new'][1]"
    assert 1e3 < found.worst.ulps_of_largest < 1e5 and found.worst.rounding_ulps is not None
    text = str(found)
    assert "DIFFERS: 1 of 7 outputs" in text and "result['new'][1] at [" in text
    assert max(map(len, text.splitlines())) <= 80
    index = found.worst.index
    assert found.worst.fitted == str(np.asarray(fitted_step()(WEIGHTS, X)["new"][1])[index])
    assert json.loads(found.to_json())["agrees"] is False


def test_rounding_is_told_from_being_wrong() -> None:
    def centred(x: Any) -> Any:
        mean = jnp.mean(x, -1, keepdims=True)
        return jnp.sum((x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True)), 0)

    other = jax.random.permutation(jax.random.key(0), X.shape[0])
    found = recoup.check(centred, jax.jit(lambda x: centred(x[other])), X)  # summed in another order
    assert found and not found.equal
    assert found.worst is not None and found.worst.ulps_of_largest > 0
    assert "Agrees: 0 of 1 outputs to the bit" in str(found)


def test_arguments_are_drawn_from_shapes_or_from_the_fitted_step() -> None:
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (WEIGHTS, X))
    for found in (recoup.check(step, fitted_step()), recoup.check(step, fitted_step(), *structs, seed=3)):
        assert found.equal and "drawn" in found.inputs
    assert "seed 3" in found.inputs
    assert not recoup.check(wrong, fitted_step())


def test_drawn_arguments_avoid_needless_nan() -> None:
    def root(x: Any) -> Any:
        return jnp.sqrt(x)

    fitted = recoup.fit(root, jax.ShapeDtypeStruct((64,), jnp.float32), budget="100%")
    found = recoup.check(root, fitted)
    assert found.equal and "without signs" in found.inputs
    assert found.outputs[0].nonfinite == 0


def test_nan_and_infinities_in_the_data() -> None:
    x = X.at[0, 0].set(jnp.nan).at[1, 1].set(jnp.inf).at[2, 2].set(-jnp.inf)

    def rows(weights: Any, x: Any) -> Any:
        return jax.grad(lambda x: loss(weights, x))(x) + 0.0 * x, x

    fitted = recoup.fit(rows, WEIGHTS, x, budget="85%")
    found = recoup.check(rows, fitted, WEIGHTS, x)
    assert found.equal and sum(output.nonfinite for output in found.outputs) >= 6
    assert "NaN and infinities" in str(found)
    lost = recoup.check(rows, lambda w, x: (rows(w, x)[0], jnp.nan_to_num(x, nan=0.0)), WEIGHTS, x)
    assert not lost and lost.worst is not None and lost.worst.ulps == float("inf")
    assert json.loads(lost.to_json())["outputs"][1]["ulps"] == "inf"


def test_results_of_other_types_are_refused() -> None:
    with pytest.raises(AgreementError, match=r"\['loss'\] is float32\[\] .* and bfloat16\[\]"):
        cast = lambda w, x: step(w, x) | {"loss": step(w, x)["loss"].astype(jnp.bfloat16)}
        recoup.check(step, cast, WEIGHTS, X)
    with pytest.raises(AgreementError, match="nothing"):
        recoup.check(step, lambda w, x: {"new": step(w, x)["new"]}, WEIGHTS, X)


def test_donated_arguments_survive_a_check() -> None:
    weights = jax.tree.map(jnp.copy, WEIGHTS)
    fitted = recoup.fit(step, weights, X, budget="80%", donate_argnums=0)
    assert recoup.check(step, fitted, weights, X).equal
    assert not any(w.is_deleted() for w in weights)


def test_references_are_left_alone_and_compared() -> None:
    def counted(weights: Any, x: Any, total: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        total[...] += value
        return grads

    total = jax.new_ref(jnp.float32(2.0))
    fitted = recoup.fit(counted, WEIGHTS, X, total, budget="80%")
    found = recoup.check(counted, fitted, WEIGHTS, X, total)
    assert found.equal and float(total[...]) == 2.0
    assert "argument" in found.outputs[-1].path

    def twice(weights: Any, x: Any, total: Any) -> Any:
        total[...] += 0.5
        return counted(weights, x, total)

    found = recoup.check(counted, twice, WEIGHTS, X, total)
    assert not found and found.worst is not None and "afterwards" in found.worst.path


def test_static_and_keyword_arguments_and_keys() -> None:
    def drawn(weights: Any, key: Any, depth: int, *, scale: Any) -> Any:
        x = jax.random.normal(key, (256, 32), jnp.float32) * scale
        return jax.grad(loss)(weights[:depth], x), key, jax.random.key_data(key)

    args = (WEIGHTS, jax.random.key(1), 3)
    kwargs = {"scale": jnp.float32(2.0)}
    fitted = recoup.fit(drawn, *args, budget="90%", kwargs=kwargs, static_argnums=2)
    assert recoup.check(drawn, fitted, *args, kwargs=kwargs).equal
    with pytest.raises(TypeError, match="static"):
        recoup.check(drawn, fitted)
    key_only = recoup.fit(lambda k: jax.random.normal(k, (8,)), jax.random.key(0), budget="100%")
    assert recoup.check(lambda k: jax.random.normal(k, (8,)), key_only).equal


def test_fit_checks_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recoup.fit(step, WEIGHTS, X, budget="80%", check=True).memory.total_bytes > 0
    # A step that gives other numbers at each trace stands for a rewriting that is wrong.
    factors = iter(range(1, 100))

    def unsteady(weights: Any, x: Any) -> Any:
        return jax.grad(loss)(weights, x * float(next(factors)))

    with pytest.raises(AgreementError, match=r"\[E-CHECK-001\] unsteady.*result\[0\].*bug in recoup"):
        recoup.fit(unsteady, WEIGHTS, X, budget="80%", check=True)
    assert issubclass(AgreementError, ArithmeticError)


TYPES = ["float32", "float16", "bfloat16", "float64", "complex64", "int32", "uint8", "int8", "bool"]


@pytest.mark.parametrize("name", TYPES)
def test_compare_counts_places(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)
    a = np.array([[1, 0, 1], [0, 1, 0]]).astype(dtype)
    same = compare("p", "t", a, a.copy())
    assert same.equal and same.agrees and same.ulps == 0
    b = a.copy()
    if a.dtype.kind in "biu":
        b[1, 0] = 1
        found = compare("p", "t", a, b)
        assert not found.agrees and found.ulps == 1 and found.different == 1 and found.index == (1, 0)
        return
    real = b.real if a.dtype.kind == "c" else b
    real[0, 2] = np.nextafter(real[0, 2], np.asarray(2, real.dtype))
    found = compare("p", "t", a, b)
    assert found.different == 1 and found.index == (0, 2) and found.agrees
    assert (found.ulps, found.ulps_of_largest) == (1.0, 1.0)
    real[0, 2] = np.nan
    assert not compare("p", "t", a, b).agrees and compare("p", "t", b, b.copy()).equal
    assert compare("p", "t", b, b.copy()).nonfinite == 1


def test_compare_zeros_infinities_and_empty_arrays() -> None:
    zero = np.zeros(2, np.float32)
    signed = compare("p", "t", zero, -zero)
    assert not signed.equal and signed.agrees and signed.ulps == 0 and signed.different == 2
    inf = np.array([np.inf, 1], np.float32)
    assert compare("p", "t", inf, inf.copy()).equal
    for other in (-inf, np.array([np.finfo(np.float32).max, 1], np.float32)):
        assert compare("p", "t", inf, other).ulps == float("inf")
    assert compare("p", "t", np.zeros((0, 3)), np.zeros((0, 3))).equal
    scalar = compare("p", "t", np.float32(1).reshape(()), np.float32(1.5).reshape(()))
    assert scalar.index == () and not scalar.agrees


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 50))
def test_places_are_counted_across_zero(start: float, steps: int) -> None:
    a = np.float32(start)
    b = a
    with np.errstate(over="ignore"):
        for _ in range(steps):
            b = np.nextafter(b, np.float32(np.inf))
    if np.isfinite(b):
        found = compare("p", "t", np.array([a]), np.array([b]))
        assert found.ulps == steps
        assert compare("p", "t", np.array([b]), np.array([a])).ulps == steps


STEP = """
import jax, jax.numpy as jnp

def train_step(params, x):
    def loss_fn(params):
        h = x
        for w in params:
            h = jnp.tanh(jnp.tanh(h @ w) * 2.0)
        return jnp.mean(h * h)
    loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads)], loss

def make():
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return train_step, ([struct(32, 32)] * 6, struct(512, 32))

traces = []

def make_unsteady():
    def unsteady(params, x):
        traces.append(0)
        return train_step(params, x * len(traces))
    return unsteady, make()[1]
"""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_step.py").write_text(STEP)
    assert main(["check", "checked_step.py:make", "--budget", "80%"]) == 0
    shown = capsys.readouterr().out
    assert "Equal to the bit" in shown and "compiler (memory analysis)" in shown
    assert main(["check", "checked_step.py:make", "-b", "80%", "--json", "--seed", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == "drawn, seed 2"
    assert main(["check", "checked_step.py:make_unsteady", "-b", "80%"]) == 4
    assert "DIFFERS" in capsys.readouterr().out
    assert main(["check", "checked_step.py:make", "-b", "1KiB"]) == 3
    assert main(["check", "checked_step.py:missing", "-b", "80%"]) == 2
