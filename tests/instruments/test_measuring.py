"""Instruments that compile, dump and run: each number beside its instrument, and what they must agree on."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import recoup
from benchmarks.instruments import dump_example, example_row, layers, programs, trace_example, zoo_row
from recoup import instruments
from recoup._cli import main
from recoup._instruments import catalogue
from recoup.errors import InstrumentError

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "policy"),
    [("gpt", "nothing_saveable"), ("resnet", None), ("lstm", "nothing_saveable"), ("pde", None)],
)
def test_the_breakdown_adds_up_to_the_arena(name, policy):
    row = zoo_row(name, "small", policy)
    assert row["occupants_bytes"] == row["temporaries_bytes"] > 0
    assert row["attributed"] >= 0.95
    assert row["alive"] >= 0.95  # the compiler's own packing agrees with the lives that were worked out


def test_roles_and_diff_of_a_fitted_step():
    def step(w, x):
        def loss(w):
            h = x
            for _ in range(6):
                h = jnp.tanh(jnp.tanh(h @ w) @ w)
            return jnp.sum(h**2)

        return w - 0.1 * jax.grad(loss)(w)

    args = jnp.full((64, 64), 0.1), jnp.ones((512, 64))
    plain = instruments.compiled(step, *args)
    fitted = recoup.fit(step, *args, budget="70%")
    found = instruments.compiled(fitted, *args)
    assert found.temporaries_bytes == fitted.memory.temporaries_bytes < plain.temporaries_bytes
    assert found.total_bytes == fitted.memory.total_bytes
    assert sum(o.bytes for o in found.occupants) == found.temporaries_bytes
    assert plain.by_role()["kept"] > 0.5 * plain.temporaries_bytes
    assert max(m.bytes for m in found.moments) == found.moments[found.peak].bytes
    again = instruments.recomputed(fitted, *args)
    assert again.count > 0 and instruments.recomputed(step, *args).count == 0
    difference = plain.diff(found)
    changed = sum(second - first for *_, first, second in difference.rows)
    assert changed == found.temporaries_bytes - plain.temporaries_bytes
    for text in (str(found), str(difference), str(again)):
        assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert json.loads(found.to_json())["by_role"] == found.by_role()


def test_instruments_answer_different_questions():
    """A region around the whole keeps nothing in the residual list; the compiled arena hardly moves."""
    plain = example_row("four layers", layers(4), run=False)
    region = example_row("region", programs()["four in recoup.checkpoint"], run=False)
    assert region.kept_bytes == 0 < plain.kept_bytes
    assert plain.temporaries_bytes == 3.5 * MIB
    assert region.temporaries_bytes >= plain.temporaries_bytes
    assert (plain.recomputed, region.recomputed) == (0, 4)


def test_the_dump_of_one_product():
    found = dump_example()
    parameter = next(a for a in found.module.allocations if a.kind == "parameter")
    assert (parameter.size_bytes, parameter.parameter) == (256 * 1024, 0)
    assert parameter.values[0].shape == "f32[256,256]"
    beside = [a for a in found.module.allocations if a.kind != "parameter"]
    assert {"output"} <= {a.kind for a in beside} and sum(a.size_bytes for a in beside) <= 64
    assert found.module.total_bytes == sum(a.size_bytes for a in found.module.allocations)
    assert any(name.endswith("buffer-assignment.txt") for name, _ in found.module.files)
    assert "f32[256,256]" in str(found)


def test_ten_dispatched_steps_report_the_synchronised_region():
    found = trace_example()
    assert found.steps == 10
    # the work of the region is in it, not only its dispatch
    assert found.wall_seconds >= 0.8 * found.union_seconds > 0
    assert found.region_seconds == pytest.approx(found.wall_seconds, rel=0.2, abs=2e-3)
    assert found.dispatch_seconds <= found.wall_seconds
    products = next(b for b in found.busy if b.op == "dot_general")
    assert products.count == 30 and "instruments.py" in products.source
    assert sum(b.seconds for b in found.busy) == pytest.approx(found.thread_seconds)
    assert found.union_seconds <= found.thread_seconds * (1 + 1e-9) <= found.summed_seconds * (1 + 1e-6)
    assert sum(found.by_source().values()) == pytest.approx(found.thread_seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="the mark can only be reset on Linux")
def test_the_process_holds_what_the_compiler_reserved():
    def step(x):
        return jnp.cumsum(jnp.sin(x), axis=1)[::-1] + x.T

    x = jnp.ones((2048, 2048))
    found = instruments.process(step, x)
    total = instruments.compiled(step, x).total_bytes
    assert found.alone and found.runtime_bytes > 16 * MIB
    assert 0.8 * total <= found.step_bytes <= 1.2 * total + 16 * MIB
    assert "the step's" in str(found)


def test_what_cannot_move_to_a_child_says_so():
    def step(x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((4,), jnp.float32), x)

    with pytest.raises(InstrumentError, match="calls back into Python"):
        instruments.process(step, jnp.ones((4,)))
    found = instruments.measure(step, jnp.ones((4,)), only=("dump", "allocator"))
    assert [name for name, _ in found.skipped] == ["dump"]
    if jax.default_backend() == "cpu":
        assert found["allocator"].readings[0].value is None
        assert "reports no allocator statistics" in str(found["allocator"])


def test_keys_donation_and_unused_arguments_travel(tmp_path: Path):
    def step(key, w, unused):
        return w * jax.random.normal(key, w.shape)

    args = jax.random.key(0), jnp.ones((64, 64)), jnp.ones((128,))
    found = instruments.dump(step, *args, donate_argnums=1, folder=tmp_path / "kept")
    kinds = [(a.kind, a.size_bytes) for a in found.module.allocations if a.parameter >= 0]
    assert ("parameter", 64 * 64 * 4) in kinds and ("parameter", 512) not in kinds
    assert list((tmp_path / "kept").iterdir())
    with pytest.raises(InstrumentError, match="holds files"):
        instruments.dump(step, *args, folder=tmp_path / "kept")


def test_measure_orders_by_cost_and_refuses_unknown_names():
    step = jax.grad(layers(2))
    args = jnp.ones((8, 16)), jnp.ones((16, 16))
    found = instruments.measure(step, *args)
    assert [name for name, _ in found.results] == ["residuals", "timeline", "compiled", "recomputed"]
    assert all(reading.instrument and reading.covers for reading in found.readings)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    for wrong in ({"upto": "everything"}, {"only": ("compile",)}):
        with pytest.raises(ValueError, match="is none of"):
            instruments.measure(step, *args, **wrong)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured_target.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)\n"
        "    return jax.grad(loss), (jnp.ones((16, 16)), jnp.ones((8, 16)))\n"
    )
    assert main(["instruments"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in catalogue.NAMES) and max(map(len, text.splitlines())) <= 80
    assert main(["instruments", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(catalogue.NAMES)
    target = "measured_target.py:make"
    assert main(["measure", target, "--upto", "compile", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["results"]) == {"residuals", "timeline", "compiled", "recomputed"}
    assert main(["measure", target, "--only", "compiled"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Compiled memory") and "\x1b" not in out
