"""TARGET on the command line: `path/file.py:name` or `package.module:name`; `name()` returns `(step, args)`.

The file's directory (or the working directory, for a module) goes first on `sys.path`, as when Python runs
it.
"""

import argparse
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from recoup.errors import TargetError

HELP = "path/file.py:name or package.module:name; name() returns (step, args)"


def add_target(parser: argparse.ArgumentParser) -> None:
    """The positional argument TARGET."""
    parser.add_argument("target", metavar="TARGET", help=HELP)


def load_target(target: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Import the module, call `name()`, and check that it returned a step and its arguments.

    Raises:
        TargetError: Any of this failed; the message says which part and why.
    """
    make, name, place = _find(target)
    what = f"{name}() of {place}"
    return _checked(_guarded(make, what), what)


def load_maker(target: str) -> Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Import the module; the result calls `name(size)` and checks that it returned a step and its arguments.

    Raises:
        TargetError: Any of this failed, here or in a call; the message says which part and why.
    """
    make, name, place = _find(target)

    def sized(size: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        what = f"{name}({size}) of {place}"
        return _checked(_guarded(lambda: make(size), what), what)

    return sized


def _find(target: str) -> tuple[Callable[..., Any], str, str]:
    """The function that a target names, its name and its place."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise TargetError(f"target {target!r} must be {HELP}")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    make = getattr(module, name, None)
    if make is None:
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TargetError(f"{place} has no {name!r}{hint}")
    if not callable(make):
        raise TargetError(
            f"{target} is of type {type(make).__name__}, not a function that returns (step, args)"
        )
    return make, name, place


def _checked(made: Any, what: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if not isinstance(made, tuple) or len(made) != 2:
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise TargetError(f"{what} returned a {type(made).__name__}{size}, not a pair (step, args)")
    step, args = made
    if not callable(step):
        raise TargetError(f"{what} returned a {type(step).__name__} as the step, which cannot be called")
    if not isinstance(args, tuple | list):
        raise TargetError(f"{what} returned a {type(args).__name__} as args; a tuple of arguments is needed")
    return step, tuple(args)


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise TargetError(f"no file {path!r}")
    path = os.path.abspath(path)
    name = os.path.basename(path)[: -len(".py")]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    # dataclasses and pickling look a module up by its name; a library of that name keeps it
    sys.modules.setdefault(name, module)
    loader = spec.loader
    _guarded(lambda: loader.exec_module(module), path)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    module: ModuleType = _guarded(lambda: importlib.import_module(name), f"module {name}")
    return module


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """Run the user's code; whatever it raises becomes one error that says where."""
    from recoup._cli.failure import raised

    try:
        return call()
    except SystemExit as error:
        raise TargetError(f"{what} ended the process with {error.code!r} when it was loaded") from error
    except Exception as error:
        raise TargetError(f"{what} failed: {raised(error)}") from error
