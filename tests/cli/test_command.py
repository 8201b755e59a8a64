"""The `recoup` command: help is quick, results go where they should, errors are one line with a code.

What the commands call is replaced by small stand-ins here; `test_end_to_end.py` runs the real thing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recoup
from recoup import errors
from recoup._cli import COMMANDS, main

TARGET = "target_for_command.py:make"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target_for_command.py").write_text("def make():\n    return (lambda x: x), (1.0,)\n")
    return tmp_path


class Found:
    """A result that prints and turns into data."""

    def __init__(self, **data: Any) -> None:
        self.data = data
        self.plan = self
        self.memory = SimpleNamespace(
            arguments_bytes=1024,
            outputs_bytes=1024,
            aliased_bytes=512,
            temporaries_bytes=2048,
            constants_bytes=0,
            total_bytes=3584,
            instrument="compiler",
        )
        self.unplanned_memory = None
        self.compiles = 1
        self.lever = ""

    def __str__(self) -> str:
        return "  a table"

    def to_json(self) -> str:
        return json.dumps(self.data)

    def save(self, path: str, *, force: bool = False) -> None:
        with open(path, "w" if force else "x") as file:
            file.write("saved")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []

    def stand_in(name: str) -> Any:
        def call(step: Any, *args: Any, **options: Any) -> Found:
            made.append((name, options))
            return Found(command=name)

        return call

    for name in ("residuals", "timeline", "plan", "fit"):
        monkeypatch.setattr(recoup, name, stand_in(name), raising=False)
    return made


@pytest.mark.parametrize("name", ["residuals", "timeline"])
def test_text_and_json(name: str, calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, TARGET]) == 0
    assert capsys.readouterr().out == "  a table\n"
    assert main([name, TARGET, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"command": name}
    assert calls == [(name, {})] * 2


def test_plan_and_fit_take_a_budget(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", TARGET, "--budget", "60%"]) == 0
    assert main(["fit", TARGET, "-b", "4GiB", "--donate", "0,1"]) == 0
    assert main(["plan", TARGET, "-b", "1GiB", "--minimize", "seconds"]) == 0
    options = {"donate_argnums": (), "regions": "respect", "offload": False, "minimize": "flops"}
    assert calls.pop() == ("plan", {"budget": "1GiB", **options, "minimize": "seconds"})
    assert calls[0] == ("plan", {"budget": "60%", **options})
    assert calls[1] == ("fit", {"budget": "4GiB", **options, "donate_argnums": (0, 1)})
    shown = capsys.readouterr().out
    assert "Certified by the compiler, one compilation" in shown
    assert "temporaries  2.00 KiB" in shown
    assert "aliased        -512 B" in shown
    assert "constants" not in shown
    assert main(["fit", TARGET, "-b", "4GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["total_bytes"] == 3584


def test_files_are_overwritten_only_with_force(
    directory: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["residuals", TARGET, "-o", "out.txt"]) == 0
    assert (directory / "out.txt").read_text() == "  a table\n"
    (directory / "out.txt").write_text("precious")
    assert main(["residuals", TARGET, "-o", "out.txt"]) == 5
    assert (directory / "out.txt").read_text() == "precious"
    assert "[E-CLI-002]" in capsys.readouterr().err
    assert main(["residuals", TARGET, "-o", "out.txt", "--json", "--force"]) == 0
    assert json.loads((directory / "out.txt").read_text()) == {"command": "residuals"}
    assert len(calls) == 2  # a file in the way is found before the work begins
    assert main(["residuals", TARGET, "-o", "nowhere/out.txt"]) == 5
    assert sorted(p.name for p in directory.iterdir() if p.name.startswith(".recoup")) == []


def test_a_plan_is_saved_once(directory: Path, calls: list[Any]) -> None:
    command = ["plan", TARGET, "-b", "1GiB", "--save", "plan.json"]
    assert main(command) == 0
    assert (directory / "plan.json").read_text() == "saved"
    assert main(command) == 5
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", TARGET, "-b", "4G"], 2, "[E-BUDGET-002]"),
        (["plan", "nowhere.py:make", "-b", "4GiB"], 2, "[E-CLI-001]"),
        (["residuals", "nothing"], 2, "[E-CLI-001]"),
        (["demo", "--budget", "lots"], 2, "[E-BUDGET-002]"),
    ],
)
def test_wrong_words(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (errors.BudgetError("smallest\npeak 3 MiB"), 3, "recoup: [E-BUDGET-001] smallest peak 3 MiB\n"),
        (errors.PlanError("not legal"), 1, "recoup: [E-PLAN-001] not legal\n"),
        (KeyError("w"), 1, "recoup: [E-STEP-001] KeyError: 'w' ("),
        (KeyboardInterrupt(), 130, "recoup: interrupted\n"),
    ],
)
def test_failures_are_one_line(
    error: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(recoup, "residuals", fail, raising=False)
    assert main(["residuals", TARGET]) == code
    shown = capsys.readouterr().err
    assert shown.startswith(says)
    assert shown.count("\n") == 1


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("w")

    monkeypatch.setattr(recoup, "residuals", fail, raising=False)
    for arguments in (["--traceback", "residuals", TARGET], ["residuals", TARGET, "--traceback"]):
        with pytest.raises(KeyError):
            main(arguments)


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["plan", TARGET], ["fit", TARGET, "-b", "1GiB", "--donate", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert "--json" in shown and "--force" in shown and "Exit codes" in shown


def test_help_imports_no_jax_and_is_quick() -> None:
    program = (
        "import sys\nfrom recoup._cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'jax', 'numpy'} & set(sys.modules), 'imported'"
    )
    seconds = []
    for _ in range(3):
        # processor time: what a quiet machine would take on its clock
        before = os.times()
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        after = os.times()
        user, system = (
            after.children_user - before.children_user,
            after.children_system - before.children_system,
        )
        seconds.append(user + system)
    assert min(seconds) < 0.3


def test_a_closed_pipe_is_no_error(directory: Path) -> None:
    program = (
        "import recoup, sys\nfrom recoup._cli import main\n"
        "class Long:\n    def __str__(self):\n        return 'x' * 10**6\n"
        f"recoup.residuals = lambda *_: Long()\nsys.exit(main(['residuals', {TARGET!r}]))"
    )
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert ended.returncode == 0
    assert ended.stderr == b""
