"""Settings of the whole library: `recoup.config`. No JAX.

Idea: two settings, each readable from the environment when first asked for, so that importing recoup does
nothing.
Limits: settings are per process, not per thread.
"""

import os
from pathlib import Path

_TRUE = frozenset(["1", "true", "yes", "on"])
_FALSE = frozenset(["", "0", "false", "no", "off"])


class Config:
    """Settings; assign to change them.

    Attributes:
      strict: a region evaluated outside any traced computation is an error (E-FLOW-003) instead of just
        computing.
        Environment: `RECOUP_STRICT`.
      cache_dir: where calibrations are cached. Environment: `RECOUP_CACHE_DIR`; else
        `$XDG_CACHE_HOME/recoup` or `~/.cache/recoup`.
    """

    def __init__(self) -> None:
        self._strict: bool | None = None
        self._cache_dir: Path | None = None

    @property
    def strict(self) -> bool:
        return _flag("RECOUP_STRICT") if self._strict is None else self._strict

    @strict.setter
    def strict(self, value: bool | None) -> None:
        self._strict = None if value is None else bool(value)

    @property
    def cache_dir(self) -> Path:
        if self._cache_dir is not None:
            return self._cache_dir
        named = os.environ.get("RECOUP_CACHE_DIR")
        if named:
            return Path(named).expanduser()
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "recoup"

    @cache_dir.setter
    def cache_dir(self, value: str | os.PathLike[str] | None) -> None:
        self._cache_dir = None if value is None else Path(value).expanduser()

    def __repr__(self) -> str:
        return f"Config(strict={self.strict}, cache_dir={str(self.cache_dir)!r})"


def _flag(variable: str) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(
            f"{variable}={text!r} is neither true (1, true, yes, on) nor false (0, false, no, off)"
        )
    return text in _TRUE


config = Config()
