"""The garbage collector: paused together, on again afterwards, left off where the user turned it off."""

import gc

import pytest

from recoup._collector import paused


def test_it_is_off_inside_and_on_after():
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_after_an_error():
    with pytest.raises(ZeroDivisionError), paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_where_the_user_turned_it_off():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
