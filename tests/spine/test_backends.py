"""What is different on a backend other than the CPU, as far as a CPU can show it."""

from dataclasses import replace

import jax
import pytest

import recoup
from recoup import _fit, _memory
from recoup._budget import HEADROOM_MIN_BYTES
from recoup._instruments.child import _same_backend
from recoup.errors import BudgetError

from .helpers import mlp, same


def test_a_memory_model_of_another_compiler_is_scaled_by_the_compiled_plain_step(monkeypatch):
    step, args = mlp()
    plain = jax.jit(step).lower(*args).compile().memory_analysis()
    fixed = plain.argument_size_in_bytes + plain.output_size_in_bytes
    budget = fixed + plain.temp_size_in_bytes * 6 // 10
    predict = _memory.predict

    def larger(*args, **options):
        """Twice what this compiler takes."""
        found = predict(*args, **options)
        ends = {
            end: replace(size, temporaries_bytes=2 * size.temporaries_bytes)
            for end in ("low", "estimate", "high")
            if (size := getattr(found, end))
        }
        return replace(found, peak=tuple(replace(x, nbytes=2 * x.nbytes) for x in found.peak), **ends)

    monkeypatch.setattr(_memory, "predict", larger)
    with pytest.raises(BudgetError):
        recoup.fit(step, *args, budget=budget)  # the model is trusted: nothing seems to fit
    monkeypatch.setattr(_fit, "predictions_are_verified", lambda: False)
    measuring = recoup.fit(step, *args, budget=budget)
    assert measuring.memory.total_bytes <= budget
    same(measuring(*args), jax.jit(step)(*args))
    assert measuring.unplanned_memory.total_bytes == measuring.plan.unplanned_bytes
    assert measuring.plan.peak_bytes == pytest.approx(measuring.memory.total_bytes, rel=0.25)


def test_arguments_that_are_on_the_device_are_not_counted_twice(monkeypatch):
    step, args = mlp()
    free_bytes = HEADROOM_MIN_BYTES + 2**20
    monkeypatch.setattr(_fit, "device_free_bytes", lambda: free_bytes)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(args))
    found = recoup.plan(step, *args, budget="device")
    assert found.budget_bytes == 2**20 + held
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    assert recoup.plan(step, *args[:1], shapes[1], budget="device").budget_bytes < found.budget_bytes


@pytest.mark.parametrize(
    ("backend", "chosen", "expected"),
    [
        ("cpu", None, {"JAX_PLATFORMS": "cpu"}),
        ("gpu", None, {}),
        ("gpu", "cuda,cpu", {"JAX_PLATFORMS": "cuda,cpu"}),
    ],
)
def test_a_measuring_process_runs_on_the_same_backend(monkeypatch, backend, chosen, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", chosen)
    try:
        assert _same_backend() == expected
    finally:
        jax.config.update("jax_platforms", before)
