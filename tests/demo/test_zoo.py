"""The zoo: entries agree with themselves by hand and in float64, and the comparison sees what it should."""

import jax
import numpy as np
import pytest

from benchmarks.agreement import distance, to_numpy
from benchmarks.zoo import POLICIES, ZOO


@pytest.mark.parametrize("name", ZOO)
def test_every_model_traces_and_by_hand_has_the_same_results(name: str) -> None:
    step, args = ZOO[name].make("small")
    plain = jax.eval_shape(step, *args)
    for policy in POLICIES:
        by_hand, _ = ZOO[name].by_hand(policy, "small")
        assert jax.eval_shape(by_hand, *args) == plain
        assert "remat" in str(jax.make_jaxpr(by_hand)(*args))


@pytest.mark.parametrize("name", ["mlp", "lstm", "pde"])
def test_a_regions_gradient_and_float64_agree_with_plain(name: str) -> None:
    step, args = ZOO[name].make("small")
    plain = to_numpy(jax.jit(step)(*args))
    by_hand, _ = ZOO[name].by_hand("nothing_saveable", "small")
    with jax.enable_x64(True):
        step, wide = ZOO[name].float64("small")
        exact = to_numpy(jax.jit(step)(*wide))
    assert all(x.dtype == np.float64 for _, x in exact if np.issubdtype(x.dtype, np.floating))
    found = distance(plain, to_numpy(jax.jit(by_hand)(*args)), exact)
    assert found.equal or (found.ratio is not None and found.ratio <= 2)


def test_float64_needs_float64() -> None:
    with pytest.raises(RuntimeError, match="enable_x64"):
        ZOO["mlp"].float64("small")


def test_distance_is_in_units_of_plains_own() -> None:
    exact = [("x", np.array([1.0, 2.0]))]
    plain = [("x", np.array([1.0, 2.0 + 4e-6], np.float32))]
    other = [("x", np.array([1.0, 2.0 - 12e-6], np.float32))]
    assert distance(plain, plain, exact).equal
    found = distance(plain, other, exact)
    assert not found.equal
    assert found.ratio == pytest.approx(3, rel=0.1)
    assert found.ulps == pytest.approx(16e-6 / 2.4e-7, rel=0.1)
    assert found.worst == "x"


def test_distance_never_overlooks_nan_integers_or_shapes() -> None:
    plain = [("x", np.ones(3, np.float32)), ("n", np.arange(2))]
    broken = [("x", np.array([1, np.nan, 1], np.float32)), ("n", np.arange(2))]
    exact = [("x", np.ones(3)), ("n", np.arange(2))]
    assert distance(plain, broken, exact).ratio == np.inf
    assert distance(plain, [plain[0], ("n", np.arange(2) + 1)], exact).ulps == np.inf
    with pytest.raises(ValueError, match="different paths"):
        distance(plain, plain[:1], None)


def test_scales_and_policies_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="no scale"):
        ZOO["mlp"].make("deep")
    with pytest.raises(ValueError, match="none of"):
        ZOO["mlp"].by_hand("nothing", "small")
