"""A plan file that does not belong to a step says what changed."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup.errors import PlanError

W, X = jax.ShapeDtypeStruct((6, 32, 32), jnp.float32), jax.ShapeDtypeStruct((512, 32), jnp.float32)


def step(w: Any, x: Any) -> Any:
    def loss(w):
        h = x
        for p in w:
            h = h + jnp.tanh(jnp.sin(h @ p))
        return jnp.mean(h * h)

    return jax.value_and_grad(loss)(w)


def other_code(w: Any, x: Any) -> Any:
    return step(w, jnp.exp(x))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    recoup.plan(step, W, X, budget="75%").save(path)
    return path


def test_it_applies_to_its_own_step(path: Path) -> None:
    fitted = recoup.fit(step, W, X, plan=path, budget="85%")  # its own size is a prediction
    assert not fitted.plan.changes_nothing and fitted.compiles == 1


@pytest.mark.parametrize(
    ("fun", "args", "options", "words"),
    [
        (step, (W, jax.ShapeDtypeStruct((256, 32), jnp.float32)), {},
         r"arguments: args\[1\] f32\[512,32\] became args\[1\] f32\[256,32\]"),
        (step, (W, jax.ShapeDtypeStruct((512, 32), jnp.bfloat16)), {}, r"args\[1\] bf16\[512,32\]"),
        (step, (W, X), {"donate_argnums": 0}, r"became args\[0\] f32\[6,32,32\] donated"),
        (other_code, (W, X), {}, "operations: now also exp x1"),
    ],
)  # fmt: skip
def test_a_mismatch_says_what_changed(path: Path, fun: Any, args: Any, options: Any, words: str) -> None:
    with jax.numpy_dtype_promotion("standard"), pytest.raises(PlanError, match=words):
        recoup.fit(fun, *args, plan=path, **options)
