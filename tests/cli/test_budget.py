"""A budget as a user writes it: what is accepted, what is refused, and that the message helps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup._budget import HEADROOM_MIN_BYTES, Budget, headroom_bytes, host_free_bytes, parse_budget
from recoup.errors import BudgetSyntaxError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (1, 1),
        (np.int64(4096), 4096),
        ("1048576", 2**20),
        ("1_000", 1000),
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        (" 1.5MiB ", 3 * 2**19),
        (".5KiB", 512),
        ("500MB", 500 * 10**6),
        ("2TB", 2 * 10**12),
        ("1PiB", 2**50),
        ("64 B", 64),
        ("64 bytes", 64),
    ],
)
def test_sizes(text: int | str, size_bytes: int) -> None:
    parsed = parse_budget(text)
    assert (parsed.kind, parsed.resolve()) == ("bytes", size_bytes)


@given(st.integers(min_value=1, max_value=2**62))
def test_whole_bytes_are_exact(size_bytes: int) -> None:
    # a float in between would lose bits above 2**53
    assert parse_budget(str(size_bytes)).resolve() == size_bytes
    assert parse_budget(size_bytes).resolve() == size_bytes


def test_share_is_of_the_unplanned_step() -> None:
    assert parse_budget("60%").resolve(unplanned_bytes=1000) == 600
    assert parse_budget("12.5 %").resolve(unplanned_bytes=1000) == 125
    with pytest.raises(BudgetSyntaxError, match="unplanned"):
        parse_budget("60%").resolve()


def test_device_leaves_a_headroom() -> None:
    free_bytes = 10 * 2**30
    assert parse_budget("device").resolve(free_bytes=free_bytes) == free_bytes - headroom_bytes(free_bytes)
    assert headroom_bytes(2**20) == HEADROOM_MIN_BYTES
    with pytest.raises(BudgetSyntaxError, match="does not"):
        parse_budget("device").resolve()
    with pytest.raises(BudgetSyntaxError, match="headroom"):
        parse_budget("device").resolve(free_bytes=1000)


def test_a_parsed_budget_passes_through() -> None:
    budget = Budget("bytes", "1KiB", size_bytes=1024)
    assert parse_budget(budget) is budget


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("", "4GiB"),
        ("lots", "4GiB"),
        ("4GiBs", "unknown unit"),
        ("4X", "unknown unit"),
        ("-4GiB", "4GiB"),
        ("1e9", "4GiB"),
        ("4G", '"4GiB"'),
        ("16m", '"16MB"'),
        ("0", "at least one byte"),
        ("0.1B", "at least one byte"),
        ("0%", "more than 0%"),
        (0, "more than 0 bytes"),
        (-5, "more than 0 bytes"),
        (0.6, '"60%"'),
        (1e9, "whole numbers"),
        (True, "not understood"),
        (None, "not understood"),
        ([1], "not understood"),
    ],
)
def test_refused(wrong: object, hint: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=hint) as caught:
        parse_budget(wrong)  # type: ignore[arg-type]
    assert caught.value.code == "E-BUDGET-002"
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_host_free_bytes_is_plausible() -> None:
    free_bytes = host_free_bytes()
    assert free_bytes is None or 2**20 < free_bytes < 2**50
