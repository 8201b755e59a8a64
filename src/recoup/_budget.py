"""A budget as a user writes it: bytes, "4GiB", "60%" or "device". No JAX.

Sizes use IEC units (KiB = 1024) or SI units (KB = 1000); a bare "4G" could be either and is refused, and so
is a bare fraction such as 0.6, which could mean bytes. A budget is for the whole step and one device:
arguments + outputs - aliased + temporaries + constants.
"""

import operator
import os
import re
from dataclasses import dataclass
from typing import Literal, SupportsIndex

from recoup.errors import BudgetSyntaxError

FORMS = 'bytes (an int), a size such as "4GiB" or "500MB", a share such as "60%", or "device"'

_UNITS = {"": 1, "b": 1, "bytes": 1}
_UNITS |= {f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgtp")}
_UNITS |= {f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgtp")}

_SIZE = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([a-z]*|%)\s*", re.IGNORECASE)

# Of what a device reports as free, this much is left to the runtime: its own workspace, and gaps between
# buffers.
HEADROOM_SHARE = 0.06
HEADROOM_MIN_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Budget:
    """A parsed budget. `kind` says which field counts; `text` is what the user wrote.

    Attributes:
        kind: "bytes", "share" (of the unplanned step's total) or "device" (what the device has free).
        text: The budget as written, for messages.
        size_bytes: For "bytes", the number of bytes.
        share: For "share", the fraction, 0.6 for "60%".
    """

    kind: Literal["bytes", "share", "device"]
    text: str
    size_bytes: int = 0
    share: float = 0.0

    def resolve(self, *, unplanned_bytes: int | None = None, free_bytes: int | None = None) -> int:
        """The budget in bytes.

        Args:
            unplanned_bytes: The unplanned step's total, needed by a share.
            free_bytes: What the device has free, needed by "device"; the headroom is taken off here.

        Raises:
            BudgetSyntaxError: What this kind of budget needs is not known on this device, or no bytes are
            left.
        """
        if self.kind == "bytes":
            return self.size_bytes
        if self.kind == "share":
            if unplanned_bytes is None:
                raise BudgetSyntaxError(f"budget {self.text!r} needs the unplanned step's total")
            return int(self.share * unplanned_bytes)
        if free_bytes is None:
            raise BudgetSyntaxError(
                'budget "device" needs a device that reports its free memory, this one does not; give bytes'
            )
        left = free_bytes - headroom_bytes(free_bytes)
        if left <= 0:
            raise BudgetSyntaxError(
                f'budget "device": only {free_bytes} bytes are free; {HEADROOM_MIN_BYTES} are headroom'
            )
        return left


def parse_budget(budget: SupportsIndex | str | Budget) -> Budget:
    """Parse what a user passes as `budget=`.

    Args:
        budget: An int (bytes), a size ("4GiB", "500 MB", "1048576"), a share ("60%") or "device".

    Raises:
        BudgetSyntaxError: Anything else; the message shows the accepted forms.
    """
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, str):
        return _parse_text(budget)
    if isinstance(budget, float):
        hint = f'; for a share write "{budget:.0%}"' if 0 < budget <= 1 else "; bytes are whole numbers"
        raise BudgetSyntaxError(f"budget {budget!r} is a float{hint}")
    try:
        if isinstance(budget, bool):
            raise TypeError
        size_bytes = operator.index(budget)
    except TypeError:
        raise BudgetSyntaxError(f"budget {budget!r} is not understood; give {FORMS}") from None
    if size_bytes <= 0:
        raise BudgetSyntaxError(f"budget {size_bytes} must be more than 0 bytes")
    return Budget("bytes", str(size_bytes), size_bytes=size_bytes)


def _parse_text(text: str) -> Budget:
    if text.strip().lower() == "device":
        return Budget("device", text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BudgetSyntaxError(f"budget {text!r} is not understood; give {FORMS}")
    number, unit = match[1].replace("_", ""), match[2].lower()
    if unit == "%":
        if float(number) <= 0:
            raise BudgetSyntaxError(f"budget {text!r} must be more than 0%")
        return Budget("share", text, share=float(number) / 100)
    if unit in ("k", "m", "g", "t", "p"):
        letter = unit.upper()
        raise BudgetSyntaxError(
            f'budget {text!r}: write "{number}{letter}iB" (powers of 1024) or "{number}{letter}B" (of 1000)'
        )
    if unit not in _UNITS:
        raise BudgetSyntaxError(f"budget {text!r} has an unknown unit {match[2]!r}; give {FORMS}")
    size_bytes = int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])
    if size_bytes <= 0:
        raise BudgetSyntaxError(f"budget {text!r} must be at least one byte")
    return Budget("bytes", text, size_bytes=size_bytes)


def headroom_bytes(free_bytes: int) -> int:
    """What "device" leaves free of `free_bytes`: 6 %, and at least 64 MiB."""
    return max(int(HEADROOM_SHARE * free_bytes), HEADROOM_MIN_BYTES)


def host_free_bytes() -> int | None:
    """Bytes this machine could still hand out, where the system says so: what "device" means on a CPU.

    Linux counts reclaimable caches as free (MemAvailable). Other systems give None.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
