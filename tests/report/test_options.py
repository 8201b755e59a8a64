"""--html, --perfetto and --advise on the command line."""

import json

import pytest

from recoup._cli import main

TARGET = """
import jax, jax.numpy as jnp

def block(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w.T)

def step(ws, x):
    def loss(ws):
        h = x
        for w in ws:
            h = block(w, h)
        return jnp.sum(h ** 2)
    return jax.grad(loss)(ws)

def make():
    a = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    return step, ([a(32, 256)] * 6, a(256, 32))
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    (tmp_path / "target_for_report.py").write_text(TARGET, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "target_for_report.py:make"


def test_plan_writes_reports_and_refuses_to_overwrite(target, tmp_path, capsys):
    words = ["plan", target, "-b", "60%", "--advise", "--html", "p.html", "--perfetto", "p.json"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "recoup: wrote p.html" in shown.err and "recoup: wrote p.json" in shown.err
    assert "block = recoup.checkpoint(block)" in shown.out and "\x1b" not in shown.out
    assert (tmp_path / "p.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["traceEvents"]
    assert main(words) == 5
    assert main([*words, "--force"]) == 0


def test_json_has_the_same_data(target, capsys):
    assert main(["plan", target, "-b", "60%", "--advise", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["advice"]["wraps"] and data["decisions"]
    assert [s["title"] for s in data["report"]["strips"]] == ["As it is", "Planned"]
    assert any(rung["chosen"] for rung in data["report"]["curve"])


def test_fit_reports_the_arena(target, tmp_path, capsys):
    assert main(["fit", target, "-b", "70%", "--html", "f.html", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (arena,) = data["report"]["arenas"].values()
    assert arena["temporaries_bytes"] == data["memory"]["temporaries_bytes"]
    assert "Compiled arena" in (tmp_path / "f.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["timeline", "residuals"])
def test_instruments_that_trace_write_pages(command, target, tmp_path):
    assert main([command, target, "--html", "x.html"]) == 0
    assert "<title>" in (tmp_path / "x.html").read_text(encoding="utf-8")
