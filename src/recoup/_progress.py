"""One line on a terminal that says what a long piece of work is doing; silent anywhere else.

Written to stderr, so that output can be piped; erased when the work is done. No thread: the line changes
when a stage begins, and each stage shows when it began, which is enough for stages of seconds.
"""

import os
import sys
import time
from types import TracebackType
from typing import Self, TextIO

_ERASE = "\r\x1b[K"


class Progress:
    """Stages of long work, shown on a terminal: `with Progress() as progress: progress.stage("...")`.

    Args:
        enabled: Show the line; None shows it where the stream is a terminal that is not dumb.
        stream: Where to write; stderr by default.
    """

    def __init__(self, enabled: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = is_terminal(self._stream) if enabled is None else enabled
        self._began = time.perf_counter()
        self._shown = False

    def stage(self, text: str) -> None:
        """Replace the line by `text` and the seconds since the work began."""
        if not self._enabled:
            return
        seconds = time.perf_counter() - self._began
        columns = _columns(self._stream)
        line = f"recoup {seconds:5.1f} s  {text}"
        self._stream.write(_ERASE + line[: columns - 1])
        self._stream.flush()
        self._shown = True

    def close(self) -> None:
        """Erase the line."""
        if self._shown:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands control codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
