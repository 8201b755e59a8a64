"""The machine that executes schedules: what is legal, and peaks that were worked out by hand."""

import pytest

from recoup._planner.machine import execute, step_windows
from recoup.errors import PlanError

from .helpers import chain

# f, g forward; h reads both: f's result waits over g.
THREE = [("f", [0], 100, {}), ("g", [1], 10, {}), ("h", [1, 2], 1, {})]


def test_a_missing_operation_is_named():
    with pytest.raises(PlanError, match=r"operation 2 \(h\) is never computed"):
        execute(chain(THREE), [0, 1])


def test_first_computations_keep_their_order():
    with pytest.raises(PlanError, match="step 0 runs operation 1 before operation 0"):
        execute(chain(THREE), [1, 0, 2])


def test_an_operation_that_may_run_only_once_is_not_repeated():
    spec = [("io", [0], 100, {"pure": False, "source": "step.py:3 (loss)"}), *THREE[1:]]
    with pytest.raises(PlanError, match=r"step 2 repeats operation 0 \(io, step.py:3 \(loss\)\)"):
        execute(chain(spec), [0, 1, 0, 2])


def test_nothing_is_read_before_it_is_computed():
    spec = [("f", [2], 100, {}), ("g", [0], 10, {})]
    with pytest.raises(PlanError, match="reads a value that is not computed yet"):
        execute(chain(spec), [0, 1])


def test_an_error_has_the_stable_code():
    with pytest.raises(PlanError) as error:
        execute(chain(THREE), [0])
    assert str(error.value).startswith("[E-PLAN-001]")


def test_peak_of_a_chain():
    # While g runs, f and g are alive (110); while h runs too, and h's own byte is a result's memory.
    assert execute(chain(THREE), [0, 1, 2]).live_bytes == (100, 110, 110)


def test_a_repeat_frees_the_value_in_between():
    spec = [
        ("a", [0], 100, {}),
        ("b", [1], 10, {}),
        ("c", [2], 80, {}),
        ("d", [3], 5, {}),
        ("e", [4, 1], 1, {}),
    ]
    plain = execute(chain(spec), range(5))
    assert plain.live_bytes == (100, 110, 190, 185, 105)
    again = execute(chain(spec), [0, 1, 2, 3, 0, 4])
    # a is gone after b; while d runs 80 + 5, then a comes back beside d.
    assert again.live_bytes == (100, 110, 90, 85, 105, 105)
    assert (plain.cost, again.cost, again.flops - plain.flops) == (0.0, 1.0, 1.0)


def test_a_fused_result_has_no_buffer_and_its_operand_lives_on():
    fused = {"fusible": True, "heavy": False}
    spec = [
        ("dot", [0], 100, {}),
        ("add", [1], 100, fused),
        ("sub", [2], 100, fused),
        ("dot", [0], 7, {}),
        ("sum", [3, 4], 1, fused),
    ]
    # add and sub are computed inside sum, which reads dot's buffer: 100 until the end, then 7 more.
    run = execute(chain(spec), range(5))
    assert run.live_bytes[:4] == (100, 100, 100, 107)
    # A heavy reader needs sub written out.
    spec[4] = ("dot", [3, 4], 1, {})
    assert execute(chain(spec), range(5)).live_bytes[3] == 107
    assert (
        execute(chain(spec), range(5)).live_bytes[2] == 100
    )  # sub takes dot's memory: it is the last to read it


def test_a_value_that_waits_for_a_later_window_has_a_buffer():
    fused = {"fusible": True, "heavy": False}
    spec = [("dot", [0], 100, {}), ("tanh", [1], 100, fused), ("dot", [0], 7, {}), ("sum", [2, 3], 1, fused)]
    within = execute(chain(spec), range(4), window=[0, 0, 0, 0])
    across = execute(chain(spec), range(4), window=[0, 0, 0, 1])
    assert within.live_bytes == (100, 100, 107, 107)
    assert across.live_bytes == (100, 100, 107, 107)  # tanh's own buffer, in dot's memory
    spec.insert(2, ("exp", [1], 50, {}))  # reads dot after tanh: now both are there
    spec[4] = ("sum", [2, 4], 1, fused)
    assert execute(chain(spec), range(5), window=[0, 0, 0, 0, 1]).live_bytes[2] == 250


def test_results_take_no_temporaries():
    program = chain([("f", [0], 100, {})])
    assert execute(program, [0]).peak_bytes == 0


def test_workspace_counts_only_while_its_operation_runs():
    spec = [("f", [0], 10, {}), ("scan", [1], 10, {"workspace_bytes": 500}), ("g", [2], 1, {})]
    assert execute(chain(spec), range(3)).live_bytes == (10, 520, 10)


def test_repeats_belong_to_the_window_that_they_precede():
    assert step_windows([0, 1, 0, 2, 3], [0, 0, 1, 2]) == [0, 0, 1, 1, 2]
