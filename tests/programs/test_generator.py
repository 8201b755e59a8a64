"""The generator of random programs: deterministic, printable, varied, and what fails shrinks."""

import hashlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks import programs
from benchmarks.programs.choices import shrink


def test_a_seed_gives_the_same_program_on_every_version() -> None:
    texts = "".join(programs.draw(seed, "tiny").description for seed in range(10))
    assert hashlib.sha256(texts.encode()).hexdigest()[:12] == "f4559cfce0f3"


def test_the_text_is_the_program() -> None:
    case = programs.draw(3, "tiny")
    scope: dict[str, object] = {}
    exec(case.description, scope)
    names = case.step.__code__.co_varnames[: case.step.__code__.co_argcount]
    want, got = case.step(*case.args), scope["step"](*[scope[n] for n in names])  # type: ignore[operator]
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_decisions_make_the_same_case_again() -> None:
    case = programs.draw(5, "tiny")
    assert programs.again(case.made, "tiny").description == case.description


def test_programs_cover_what_they_should() -> None:
    found: set[str] = set()
    donated = 0
    for seed in range(60):
        case = programs.draw(seed, "tiny")
        found |= case.primitives
        donated += bool(case.donate)
    missing = {
        "scan", "while", "cond", "dot_general", "conv_general_dilated", "sort", "gather", "scatter-add",
        "random_bits", "recoup_region", "recoup_barrier", "dynamic_slice", "complex", "select_n",
        "cumsum", "reduce_max",
        "convert_element_type", "concatenate", "custom_vjp_call", "custom_jvp_call", "argmax",
    } - found  # fmt: skip
    assert not missing and donated


def test_a_failure_shrinks_to_a_few_lines() -> None:
    case = next(c for c in (programs.draw(s, "tiny") for s in range(100)) if "sort" in c.primitives)
    small = programs.smallest(case, lambda c: "sort" in c.primitives, attempts=150)
    assert "sort" in small.primitives
    assert len(small.description.split("def step")[1].splitlines()) < 20


def test_shrinking_deletes_and_lowers() -> None:
    small = shrink([5, 9, 3, 7, 1, 8], lambda made: sum(made) >= 8 and len(made) > 1)
    assert (len(small), sum(small)) == (2, 8)


@settings(max_examples=20, deadline=None)
@given(programs.cases("tiny"))
def test_hypothesis_draws_programs_that_run(case: programs.Case) -> None:
    assert jax.tree.leaves(jax.jit(case.step)(*case.args))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_every_program_can_be_traced(size: str) -> None:
    for seed in range(1000, 1200):
        assert programs.draw(seed, size).jaxpr
