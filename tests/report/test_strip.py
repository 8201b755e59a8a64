"""Strips say what the memory model said: the same peak, with a line, a layer and a reason for each buffer."""

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import _memory
from recoup._report.picture import ROLES
from recoup._scopes import parts_of, scope_path
from recoup._strip import phases_of, strip
from recoup._trace import trace
from tests.report.samples import mlp_args, mlp_step, scan_args, scan_step, shape


def _strip(step, args):
    traced = trace(step, args)
    prediction = _memory.predict(traced.flat.closed())
    return strip("x", traced.flat, prediction), prediction


@pytest.mark.parametrize(("step", "args"), [(mlp_step, mlp_args()), (scan_step, scan_args())])
def test_the_highest_position_is_the_predicted_peak(step, args):
    found, prediction = _strip(step, args)
    fixed = prediction.estimate.total_bytes - prediction.estimate.temporaries_bytes
    assert max(found.totals()) == fixed + max(p.live_bytes for p in prediction.timeline)
    assert found.totals()[found.peak_position] == max(found.totals())
    assert all(0 <= b.first <= b.last < len(found.ops) and b.role in ROLES for b in found.buffers)


def test_values_that_the_backward_pass_reads_are_kept_and_have_line_and_layer():
    found, _ = _strip(mlp_step, mlp_args())
    kept = [b for b in found.buffers if b.role == "kept" and b.bytes >= 2**17]
    assert len(kept) >= 6
    assert {b.part for b in kept} >= {f"layer_{i}" for i in range(6)}
    assert all("samples.py:" in b.source for b in kept)
    phases = [op.phase for op in found.ops]
    assert {"forward", "backward"} <= set(phases)


def test_a_loops_rows_are_named_after_the_operation_that_makes_them():
    found, _ = _strip(scan_step, scan_args())
    rows = {b.op: b for b in found.buffers if b.role == "kept" and "stacked" in b.op}
    assert "sin (stacked by a loop)" in rows or "cos (stacked by a loop)" in rows
    assert "a = jnp.sin" in _line(
        next(b for name, b in rows.items() if name.startswith(("sin", "cos"))).source
    )
    assert any(b.inside for b in found.buffers)


def _line(source):
    file, _, number = source.split(" (")[0].rpartition(":")
    with open(file, encoding="utf-8") as lines:
        return lines.read().splitlines()[int(number) - 1]


def test_recomputed_values_are_marked(plan):
    planned = plan.picture().strips[1]
    assert {b.role for b in planned.buffers} >= {"kept", "recomputed"}
    assert any(op.phase == "recomputed" for op in planned.ops)


def test_what_follows_the_backward_pass_is_neither():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    traced = trace(step, (shape(8, 8), shape(8, 8)))
    phases = phases_of(traced.program)
    assert phases[-1] == "other"
    assert "backward" in phases


def test_operations_of_jax_functions_have_the_line_of_their_call():
    def step(x):
        return jax.grad(lambda x: jnp.sum(jax.nn.silu(x)))(x)

    jax.nn.silu(jnp.ones((3, 3)))  # traced once already: the cached trace knows another line
    traced = trace(step, (shape(3, 3),))
    assert all(op.source for op in traced.program.ops)


def test_scopes_are_read_through_transformations():
    assert scope_path("transpose(jvp(Block_0))/attention") == ("Block_0", "attention")
    assert scope_path("jvp()/bhqk,bkhd->bqhd") == ()
    assert scope_path("jit(step)/while/body/closed_call/layer") == ("step", "layer")
    scopes = ["jvp(Model)/a", "jvp(Model)/b", "transpose(jvp(Model))/c", ""]
    assert parts_of(scopes, ["", "", "", "f.py:1 (f.<locals>.g)"]) == ["Model/a", "Model/b", "Model/c", "g()"]


def test_a_timeline_and_a_plan_agree():
    line = recoup.timeline(mlp_step, *mlp_args())
    assert max(line.picture().strips[0].totals()) <= line.predicted.high.total_bytes
    assert line.picture().title == "mlp_step"
