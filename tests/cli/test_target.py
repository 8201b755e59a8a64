"""TARGET: both forms load, and each way to get it wrong gives one line that says what."""

import sys
from pathlib import Path

import pytest

from recoup._cli.target import load_target
from recoup.errors import TargetError

GOOD = """
from dataclasses import dataclass

@dataclass
class Config:
    size: int = 3

def step(x):
    return x + Config().size

def make():
    return step, (1.0,)

def listed():
    return step, [1.0, 2.0]

three = 3

def single():
    return step

def uncallable():
    return 3, (1.0,)

def loose():
    return step, 1.0

def raises():
    raise KeyError("no such weight")

def leaves():
    raise SystemExit(7)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "target_example.py"
    path.write_text(GOOD)
    return path


def test_a_file(file: Path) -> None:
    step, args = load_target(f"{file}:make")
    assert (step(*args), args) == (4.0, (1.0,))
    assert load_target("target_example.py:listed")[1] == (1.0, 2.0)


def test_a_module(file: Path) -> None:
    package = file.parent / "target_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text(GOOD)
    step, args = load_target("target_package.steps:make")
    assert step(*args) == 4.0


def test_a_file_finds_its_neighbours(file: Path) -> None:
    (file.parent / "target_neighbour.py").write_text("offset = 10")
    (file.parent / "other_target.py").write_text(
        "from target_neighbour import offset\ndef make():\n    return (lambda x: x + offset), (1,)"
    )
    step, args = load_target("other_target.py:make")
    assert step(*args) == 11


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "must be path/file.py:name"),
        ("target_example.py", "must be path/file.py:name"),
        (":make", "must be path/file.py:name"),
        ("nowhere.py:make", "no file 'nowhere.py'"),
        ("target_nowhere.steps:make", "ModuleNotFoundError"),
        ("target_example.py:mak", "did you mean 'make'"),
        ("target_example.py:nothing_like_it", "has no 'nothing_like_it'"),
        ("target_example.py:three", "is of type int, not a function"),
        ("target_example.py:single", "returned a function, not a pair"),
        ("target_example.py:uncallable", "returned a int as the step"),
        ("target_example.py:loose", "returned a float as args"),
        ("target_example.py:raises", "no such weight"),
        ("target_example.py:leaves", "ended the process with 7"),
    ],
)
def test_wrong(file: Path, target: str, says: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.code == "E-CLI-001"


def test_the_line_that_raised_is_named(file: Path) -> None:
    broken = file.parent / "target_broken.py"
    broken.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(TargetError, match=r"ZeroDivisionError: division by zero \(.*target_broken.py:2\)"):
        load_target("target_broken.py:make")
    broken.write_text("def make(:\n")
    with pytest.raises(TargetError, match="SyntaxError"):
        load_target("target_broken.py:make")
