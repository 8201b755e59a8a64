"""Plan files from anywhere: damage gives a `PlanError` or the same plan, quickly and in little memory."""

import copy
import errno
import functools
import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recoup
from recoup import _plan_file
from recoup.errors import BudgetError, PlanError

WEIGHTS = [0.2 * jax.random.normal(jax.random.key(i), (32, 32)) for i in range(4)]
X = jax.random.normal(jax.random.key(9), (256, 32))


def step(weights: Any, stack: Any, x: Any) -> Any:
    def loss(weights: Any, stack: Any) -> Any:
        h = jax.lax.scan(lambda h, w: (h + jnp.tanh(jnp.tanh(h @ w) @ w), None), x, stack)[0]
        for w in weights:
            h = jnp.tanh(jnp.tanh(h @ w) * 2.0)
        return jnp.mean(h * h)

    return jax.grad(loss, (0, 1))(weights, stack)


ARGS = (WEIGHTS * 2, jnp.stack(WEIGHTS), X)


@functools.cache
def text() -> str:
    plan = recoup.plan(step, *ARGS, budget="75%")
    assert plan.repeats and plan.loops
    return plan.to_json()


def read(content: str | bytes, directory: Path) -> recoup.Plan | None:
    """The plan, or None for the one error that is allowed."""
    path = directory / "plan.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        return recoup.Plan.load(path)
    except PlanError as error:
        assert str(path) in str(error)
        return None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_truncated(directory: Path, data: Any) -> None:
    cut = data.draw(st.integers(0, len(text()) - 2))
    assert read(text()[:cut], directory) is None


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bits(directory: Path, data: Any) -> None:
    content = bytearray(text().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    plan = read(bytes(content), directory)
    if plan is not None:  # a digit or a letter of a label: still a plan, printable
        assert str(plan) and recoup.Plan.from_dict(plan.to_dict()) == plan


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just([1, "x"]), st.just(10**400), st.just(-1), st.just(2**70), st.just([[[]]]), st.just({"a": 1}),
)  # fmt: skip


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = data.items() if isinstance(data, dict) else enumerate(data[:3]) if isinstance(data, list) else ()
    for key, value in items:
        found += paths(value, (*at, key))
    return found


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_other_types_in_any_place(directory: Path, data: Any) -> None:
    whole = json.loads(text())
    *parents, last = data.draw(st.sampled_from(paths(whole)))
    inner = functools.reduce(lambda part, key: part[key], parents, whole)
    if data.draw(st.booleans()):
        inner[last] = data.draw(VALUES)
    elif isinstance(inner, dict):
        del inner[last]
    else:
        inner.append(inner[last])
    plan = read(json.dumps(whole), directory)
    if plan is not None:
        assert str(plan) and recoup.Plan.from_dict(json.loads(plan.to_json())) == plan


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_changed_plan_is_refused_or_computes_the_same(data: Any) -> None:
    """Right types, any numbers: the machines, the value numbering and the compiler have the last word."""
    whole = copy.deepcopy(json.loads(text()))
    ops = st.one_of(st.integers(0, 300), st.just(2**31))
    part = data.draw(st.sampled_from(["loops", "repeats", "before", "segment", "kept", "recomputed"]))
    if part == "loops":
        whole["loops"] = []
    elif part == "repeats":
        for repeat in whole["repeats"]:
            repeat["ops"] = data.draw(st.lists(ops, max_size=4)) + repeat["ops"]
    elif part == "before":
        whole["repeats"][0]["before"] = data.draw(ops)
    elif part == "segment":
        whole["loops"][0]["segment"] = data.draw(ops)
    else:
        whole["loops"][0][part] = data.draw(st.lists(ops, max_size=4))
    try:
        plan = recoup.Plan.from_dict(whole)
        fitted = recoup.fit(step, *ARGS, plan=plan, budget="1GiB")
    except PlanError:
        return
    assert recoup.check(step, fitted, *ARGS)


HUGE = {
    "nested lists": lambda: "[" * 100_000,
    "nested and closed": lambda: "[" * 100_000 + "]" * 100_000,
    "nested objects": lambda: '{"a":' * 100_000 + "1" + "}" * 100_000,
    "many parts": lambda: "[" + "{}," * 3_000_000 + "{}]",
    "many parts in place": lambda: text()[:-2] + ', "x": [' + "[]," * 3_000_000 + "[]]}",
    "a number of a million digits": lambda: text().replace('"flops": ', '"flops": ' + "9" * 1_000_000, 1),
    "no text": lambda: b"\xff\xfe\x00\x80" * 1000,
    "nothing": lambda: "",
    "other JSON": lambda: "[1, 2, 3]",
    "another format": lambda: text().replace('"format": 1', '"format": 2'),
    "NaN": lambda: text().replace('"flops": ', '"flops": NaN, "was": ', 1),
}


@pytest.mark.parametrize("kind", HUGE)
def test_huge_and_odd_files_are_refused_quickly(kind: str, directory: Path) -> None:
    content = HUGE[kind]()
    path = directory / "huge.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    size = path.stat().st_size
    del content
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(PlanError):
            recoup.Plan.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - start < 30
    assert peak < 40 * 2**20 + 8 * size


def test_a_file_over_the_limit_is_not_read(directory: Path) -> None:
    path = directory / "sparse.json"
    with open(path, "wb") as file:
        file.truncate(_plan_file.MAX_FILE_BYTES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(PlanError, match="larger than"):
            recoup.Plan.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_plan_that_repeats_without_end_is_refused() -> None:
    whole = json.loads(text())
    whole["loops"], whole["repeats"] = [], [{"before": 50, "ops": [5] * 100_000}]
    with pytest.raises(PlanError, match="100"):
        recoup.fit(step, *ARGS, plan=recoup.Plan.from_dict(whole), budget="1GiB")


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    for place in (tmp_path / "none.json", tmp_path):
        with pytest.raises(OSError, match=str(tmp_path)):
            recoup.Plan.load(place)


# -- writing ----------------------------------------------------------------------------------------------


@pytest.fixture
def plan() -> recoup.Plan:
    return recoup.Plan.from_dict(json.loads(text()))


def test_an_unwritable_directory(tmp_path: Path, plan: recoup.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        plan.save(tmp_path / "missing" / "plan.json")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setattr("tempfile.mkstemp", refuse)  # tests may run as root, whom no mode stops
    with pytest.raises(PermissionError, match=str(tmp_path)):
        plan.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["write", "sync", "rename"])
def test_a_full_disk_keeps_what_was_there(
    stage: str, tmp_path: Path, plan: recoup.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    if stage == "write":
        monkeypatch.setattr(_plan_file, "open", lambda *a, **k: Full(a[0]), raising=False)
    else:
        monkeypatch.setattr(os, "fsync" if stage == "sync" else "replace", full)
    with pytest.raises(OSError, match="No space left"):
        plan.save(path, force=True)
    monkeypatch.undo()
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    plan.save(path, force=True)
    assert recoup.Plan.load(path) == plan


class Full:
    def __init__(self, handle: int):
        self.handle = handle

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self.handle)

    def write(self, _: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_exists_is_kept(tmp_path: Path, plan: recoup.Plan) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    with pytest.raises(FileExistsError, match="force"):
        plan.save(path)
    assert path.read_text() == "old"


def test_a_stored_plan_within_no_budget_is_an_error(plan: recoup.Plan) -> None:
    with pytest.raises(BudgetError):
        recoup.fit(step, *ARGS, plan=plan, budget=1000)
