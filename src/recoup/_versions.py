"""Which versions of JAX recoup is tested with, and what it says about another one.

Idea: recoup reads JAX's private names in one file, `_compat`. Outside the tested range there is one warning;
where a name is gone there is one error, at import, that names the range, instead of an AttributeError from
the middle of a training run.
"""

import warnings
from collections.abc import Iterable
from typing import Any

from recoup.errors import VersionError, VersionWarning

OLDEST, NEWEST = (0, 10, 2), (0, 12)
TESTED = "JAX 0.10.2 to 0.12"
_INSTALL = "pip install 'jax>=0.10.2,<0.13'"


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.12.0.1" and "0.12.0rc1" give (0, 12, 0)."""
    found = []
    for part in version.split(".")[:3]:
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def check_version(version: str) -> None:
    """Warns once if recoup is not tested with this version of JAX."""
    found = numbers(version)
    if found < OLDEST or found[: len(NEWEST)] > NEWEST:
        warnings.warn(
            f"recoup is tested with {TESTED}; this is JAX {version}. Results are still compared by "
            f"recoup.check and certified by the compiler; for a tested version: {_INSTALL}",
            VersionWarning,
            stacklevel=2,
        )


def check_names(version: str, wanted: Iterable[tuple[Any, str]]) -> None:
    """Looks for private names that recoup reads later.

    Raises:
      VersionError: one is gone.
    """
    for module, name in wanted:
        if not hasattr(module, name):
            raise moved(version, f"{getattr(module, '__name__', module)} has no {name!r}")


def moved(version: str, what: object) -> VersionError:
    """The error about a private name of JAX that is not where it was."""
    return VersionError(
        f"recoup works with {TESTED}, and this is JAX {version}, where a name that it needs has moved: "
        f"{what}. Install a version of JAX that is supported: {_INSTALL}"
    )
