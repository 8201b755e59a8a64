"""The pytest plugin: a project's tests notice when its training step grows.

    def test_the_step_fits(assert_peak_below):
        assert_peak_below("2GiB", train_step, params, opt_state, batch)

    def test_the_step_has_not_grown(peak_unchanged):
        peak_unchanged("train_step", train_step, params, opt_state, batch)

Figures of `peak_unchanged` are stored beside the test file, in `recoup_peaks.json`; `--recoup-update` writes
them. Bytes are totals per device: the memory model's estimate, or with `compiled=True` the compiler's number.
Limits: a stored figure belongs to one kind of device, and a compiled one to one version of JAX; a
figure of another device is an error, of another version it is compared all the same and named in the failure.

Idea: nothing is imported until a fixture is used, since pytest loads plugins in every project that has recoup
installed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

FILE = "recoup_peaks.json"


class AssertPeakBelow(Protocol):
    """The fixture `assert_peak_below`."""

    def __call__(self, limit: int | str, step: Callable[..., Any], *args: Any, **options: Any) -> int: ...


class PeakUnchanged(Protocol):
    """The fixture `peak_unchanged`."""

    def __call__(
        self, name: str, step: Callable[..., Any], *args: Any, tolerance: float = 0.02, **options: Any
    ) -> int: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option --recoup-update."""
    group = parser.getgroup("recoup")
    group.addoption("--recoup-update", action="store_true", help="store the peaks of peak_unchanged anew")


@pytest.fixture
def assert_peak_below() -> AssertPeakBelow:
    """`assert_peak_below(limit, step, *args, compiled=False, **options)`.

    Fails if the step needs more than `limit` per device, and says who holds the peak. `limit` is bytes, as an
    int or "2GiB". `options` are those of `recoup.timeline` (donate_argnums, kwargs, ...). Returns the bytes.
    """

    def check(limit: int | str, step: Callable[..., Any], *args: Any, **options: Any) -> int:
        __tracebackhide__ = True
        found, instrument, holders = _peak(step, args, options)
        allowed = _limit(limit)
        if found > allowed:
            from recoup._report.text import format_bytes

            pytest.fail(
                f"{_name(step)} needs {format_bytes(found)} by the {instrument}, over "
                f"{format_bytes(allowed)}. At the peak, largest first:\n{holders}"
            )
        return found

    return check


@pytest.fixture
def peak_unchanged(request: pytest.FixtureRequest) -> PeakUnchanged:
    """`peak_unchanged(name, step, *args, tolerance=0.02, compiled=False, **options)`.

    Compares the step's bytes per device with the figure stored under `name`; fails where they are more than
    `tolerance` apart, in either direction: a step that shrank is stored again, so that it cannot grow back.
    """
    path = request.path.parent / FILE

    def check(
        name: str, step: Callable[..., Any], *args: Any, tolerance: float = 0.02, **options: Any
    ) -> int:
        __tracebackhide__ = True
        found, instrument, holders = _peak(step, args, options)
        import jax

        entry = {
            "bytes": found,
            "instrument": instrument,
            "jax": jax.__version__,
            "platform": jax.default_backend(),
        }
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if request.config.getoption("--recoup-update"):
            _store(path, stored | {name: entry})
            return found
        if name not in stored:
            pytest.fail(
                f"no peak of {name!r} is stored in {path}; pytest --recoup-update stores {found} bytes"
            )
        _compare(stored[name], entry, name, tolerance, holders)
        return found

    return check


def _compare(before: dict[str, Any], now: dict[str, Any], name: str, tolerance: float, holders: str) -> None:
    __tracebackhide__ = True
    from recoup._report.text import format_bytes, format_percent

    for key in ("instrument", "platform"):
        if before[key] != now[key]:
            pytest.fail(f"the stored peak of {name!r} is of {key} {before[key]!r}, this one of {now[key]!r}")
    change = now["bytes"] / before["bytes"] - 1
    if abs(change) <= tolerance:
        return
    versions = "" if before["jax"] == now["jax"] else f" (JAX {before['jax']} then, {now['jax']} now)"
    grew = f"grew by {format_percent(change)}" if change > 0 else f"shrank by {format_percent(-change)}"
    advice = "" if change > 0 else "; keep the gain with pytest --recoup-update"
    pytest.fail(
        f"{name!r} {grew}: {format_bytes(before['bytes'])} stored, {format_bytes(now['bytes'])} now by the "
        f"{now['instrument']}{versions}{advice}. At the peak, largest first:\n{holders}"
    )


def _peak(step: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, str, str]:
    """Bytes, the instrument they are from, and the largest holders of the predicted peak as text."""
    import recoup

    options = dict(options)
    compiled = options.pop("compiled", False)
    timeline = recoup.timeline(step, *args, **options)
    rows = [f"  {h.nbytes:>12} bytes  {h.op}  {h.source or 'no user line'}" for h in timeline.peak[:8]]
    holders = "\n".join(rows)
    if not compiled:
        return timeline.peak_bytes, "memory model (predicted, estimate)", holders
    # No budget binds: `fit` compiles the step as it is and reads the compiler's number.
    fitted = recoup.fit(step, *args, budget=1 << 62, **options)
    return fitted.memory.total_bytes, fitted.memory.instrument, holders


def _limit(limit: int | str) -> int:
    if isinstance(limit, int):
        return limit
    from recoup._budget import parse_budget
    from recoup.errors import BudgetSyntaxError

    budget = parse_budget(limit)
    if budget.kind != "bytes":
        raise BudgetSyntaxError(f'a limit is bytes, such as "2GiB": {limit!r} is not')
    return budget.size_bytes


def _name(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__name__", "the step"))


def _store(path: Path, figures: dict[str, Any]) -> None:
    text = json.dumps(figures, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
