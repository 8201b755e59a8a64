"""Predicted against compiled, on small whole models: the acceptance test of a memory model."""

import jax
import pytest

from recoup._memory import predict

from .programs import MODELS, compiled, gradient, mixed_precision, training_step


def error(truth, predicted, slack_bytes=8192):
    """Relative error of the temporaries; a few KiB of small buffers are no error."""
    got, want = predicted.estimate.temporaries_bytes, truth.temp_size_in_bytes
    return max(0, abs(got - want) - slack_bytes) / want


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "checkpoint"])
@pytest.mark.parametrize("name", MODELS)
def test_gradient(name, remat):
    step, args = gradient(name, remat)
    truth = compiled(step, *args)
    got = predict(jax.make_jaxpr(step)(*args))
    assert error(truth, got) <= 0.07
    assert got.high.temporaries_bytes >= 0.98 * truth.temp_size_in_bytes
    assert got.estimate.arguments_bytes == truth.argument_size_in_bytes
    assert got.estimate.outputs_bytes == truth.output_size_in_bytes
    assert not got.opaque


@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize("name", ["mlp", "attention", "recurrent"])
def test_training_step(name, donate):
    step, args = training_step(name)
    donated = [donate] * (len(jax.tree.leaves(args)) - 1) + [False]
    truth = compiled(step, *args, donate=(0, 1, 2) if donate else ())
    got = predict(jax.make_jaxpr(step)(*args), donated=donated)
    assert error(truth, got) <= 0.07
    assert got.estimate.aliased_bytes == truth.alias_size_in_bytes


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision(name):
    step, args = mixed_precision(name)
    truth = compiled(step, *args)
    assert error(truth, predict(jax.make_jaxpr(step)(*args))) <= 0.11


def test_regions_cost_less_and_the_model_sees_it():
    plain, args = gradient("mlp")
    saved, _ = gradient("mlp", remat=True)
    a, b = (predict(jax.make_jaxpr(f)(*args)).estimate.temporaries_bytes for f in (plain, saved))
    assert b <= 0.6 * a


def test_barriers_that_vanish_save_nothing():
    plain, args = gradient("mlp")
    saved, _ = gradient("mlp", remat=True)
    a = predict(jax.make_jaxpr(plain)(*args)).estimate.temporaries_bytes
    b = predict(jax.make_jaxpr(saved)(*args), barriers_hold=False).estimate.temporaries_bytes
    assert b == pytest.approx(a, rel=0.01)
