"""What a user installs: a command that starts quickly and without JAX, completes; typed; what is shipped."""

import subprocess
import sys
import time
import tomllib
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def seconds(*command: str) -> float:
    """The quickest of three runs: a busy machine slows some of them."""
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def test_help_and_import_are_quick_beyond_python_itself() -> None:
    python = seconds(sys.executable, "-c", "pass")
    assert seconds(sys.executable, "-m", "recoup._cli", "--help") - python < 0.3
    assert seconds(sys.executable, "-c", "import recoup, recoup._cli") - python < 0.3


def test_neither_help_nor_import_loads_jax() -> None:
    code = "import sys, recoup._cli; recoup._cli.build_parser().format_help(); print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_the_commands(shell: str) -> None:
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "recoup._cli", "--print-completion", shell]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(word in script for word in ("residuals", "timeline", "fit"))


def test_the_package_is_typed_and_its_extras_are_named() -> None:
    assert resources.files("recoup").joinpath("py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"demo", "completion", "frameworks", "examples", "docs", "test"} <= set(
        project["optional-dependencies"]
    )
    assert all(d.split(">")[0] in ("jax", "numpy", "scipy") for d in project["dependencies"])


@pytest.mark.slow
def test_wheel_and_source_distribution_build_and_hold_every_module(tmp_path: Path) -> None:
    """Minutes: both are built in environments of their own."""
    import tarfile
    import zipfile

    subprocess.run([sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    for file in ROOT.glob("src/recoup/**/*"):
        if file.suffix in (".py", ".pxd", ".typed", ".css", ".js", ".html"):
            assert str(file.relative_to(ROOT / "src")) in packed
            assert str(file.relative_to(ROOT)) in names
