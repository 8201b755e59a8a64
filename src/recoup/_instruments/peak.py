"""The peak of this process's resident memory from now on. No JAX.

Linux keeps a high-water mark that can be reset (`/proc/self/clear_refs`), so that what compiling took is not
counted. Elsewhere `getrusage` has one mark for the whole life of the process, and the reading says so.
"""

import ctypes
import gc
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Bytes held when the watch began, the peak since (or ever, as `instrument` says)."""

    before_bytes: int
    peak_bytes: int
    instrument: str


class PeakWatch:
    """Begins a watch: frees what can be freed, and resets the mark where the system lets us.

    Attributes:
      resettable: whether the mark could be reset; if not, the peak is that of the whole process so far.
      before_bytes: resident when the watch began.
    """

    def __init__(self) -> None:
        gc.collect()
        _trim()
        self.resettable = _reset()
        self.before_bytes = _status_bytes("VmRSS") if self.resettable else _rusage_bytes()

    def read(self) -> Peak:
        """The peak since the watch began."""
        if self.resettable:
            return Peak(self.before_bytes, _status_bytes("VmHWM"), "resident peak while running (VmHWM)")
        return Peak(self.before_bytes, _rusage_bytes(), "resident peak with compiling (ru_maxrss)")


def _trim() -> None:
    """Have glibc give freed memory back, or what compiling freed would hide a small step's peak."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library: the reading is right, only less sharp


def _reset() -> bool:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _rusage_bytes() -> int:
    if os.name != "posix":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
