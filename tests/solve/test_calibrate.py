"""The roofline: its cache survives damage, and its prices tell products from moving memory."""

import json
import threading

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import _calibrate
from recoup._calibrate import CacheWarning, Roofline, predicted_seconds
from recoup._cli import main
from recoup._objective import minimizing
from recoup._trace import trace

ROOFLINE = Roofline("slow", "0", 1e9, 5e8, 1e9, 1e10, 1e8, 1e8, 1e9)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(recoup.config, "_cache_dir", tmp_path / "cache")
    monkeypatch.setattr(_calibrate, "REPEATS", 1)
    monkeypatch.setattr(_calibrate, "DOUBLINGS", 1)
    return tmp_path / "cache"


def test_measured_once(cache, monkeypatch):
    found = recoup.calibrate()
    assert min(found.product_flops, found.memory_bytes, found.transcendentals) > 1e6
    monkeypatch.setattr(_calibrate, "_measure", lambda device: pytest.fail("measured again"))
    assert recoup.calibrate() == found
    (file,) = cache.iterdir()
    monkeypatch.setattr(_calibrate, "_measure", lambda device: ROOFLINE)
    assert recoup.calibrate(force=True) == ROOFLINE
    assert list(cache.iterdir()) == [file]
    assert "GFLOP/s" in str(found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1]",
        lambda text: text.replace("1000000000.0", "2000000000.0"),
        lambda text: text.replace('"format": 3', '"format": 0'),
        lambda text: json.dumps({"format": 3, "roofline": [], "checksum": _calibrate._checksum([])}),
    ],
)
def test_damaged_cache_is_measured_again(cache, monkeypatch, damage):
    monkeypatch.setattr(_calibrate, "_measure", lambda device: ROOFLINE)
    recoup.calibrate()
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()))
    with pytest.warns(CacheWarning, match="measured again"):
        assert recoup.calibrate() == ROOFLINE
    assert recoup.calibrate() == ROOFLINE


def test_a_rate_of_zero_is_damage(cache, monkeypatch):
    monkeypatch.setattr(
        _calibrate, "_measure", lambda device: Roofline("slow", "0", 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    )
    recoup.calibrate()
    with pytest.warns(CacheWarning, match="not positive"):
        recoup.calibrate()


def test_no_place_to_write(cache, monkeypatch):
    cache.write_text("a file where the directory should be")
    monkeypatch.setattr(_calibrate, "_measure", lambda device: ROOFLINE)
    with pytest.warns(CacheWarning, match="cannot be kept"):
        assert recoup.calibrate() == ROOFLINE


def test_writers_at_once_leave_one_whole_file(cache, monkeypatch):
    path = cache / "calibration-x.json"
    writers = [threading.Thread(target=_calibrate._write, args=(path, ROOFLINE)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert _calibrate._read(path) == ROOFLINE
    assert list(cache.iterdir()) == [path]


def cost_of(fun, *shapes):
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = trace(fun, structs)
    total = predicted_seconds(traced.flat, traced.program, ROOFLINE)
    with minimizing(ROOFLINE):
        priced = trace(fun, structs)
    for op, eqn in zip(priced.program.ops, priced.flat.eqns, strict=True):
        assert op.cost == ROOFLINE.price(eqn, op.fusible and not op.dear)
    assert [op.flops for op in priced.program.ops] == [op.flops for op in traced.program.ops]
    return total


def test_prices():
    # by hand: 2 * 256**3 FLOPs at 1 GFLOP/s; a gigabyte a second; a hundred million functions a second
    assert cost_of(lambda a, b: a @ b, (256, 256), (256, 256)) == pytest.approx(2 * 256**3 / 1e9)
    assert cost_of(lambda a: jnp.tanh(a), (1000,)) == pytest.approx(0.25 * 4000 / 1e9 + 1000 / 1e8)
    assert cost_of(lambda a: a * a, (1000,)) == pytest.approx(max(0.25 * 4000 / 1e9, 1000 / 1e9))
    assert cost_of(lambda a: a.T, (100, 10)) == pytest.approx(8000 / 1e9)
    # a product with one column moves more than it computes
    thin = cost_of(lambda a, b: a @ b, (1000, 1000), (1000, 1))
    assert thin == pytest.approx((4e6 + 8000) / 1e9)


def test_loops_count_their_iterations():
    def run(length):
        def fun(a):
            return jax.lax.scan(lambda x, _: (x @ a, None), a, None, length=length)[0]

        return cost_of(fun, (64, 64))

    assert run(10) == pytest.approx(10 * run(1))


def test_command(cache, monkeypatch, capsys):
    monkeypatch.setattr(_calibrate, "_measure", lambda device: ROOFLINE)
    assert main(["calibrate"]) == 0
    assert "convolutions" in capsys.readouterr().out
    assert main(["calibrate", "--json", "--again"]) == 0
    assert json.loads(capsys.readouterr().out)["product_flops"] == 1e9
