"""What a plan remembers of its step besides a fingerprint, so that a mismatch says what changed. No JAX.

Limits: two steps may differ in operands alone; then only the fingerprints do, and the message says so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from recoup._program import Program

KINDS = ("arguments", "constants", "results", "operations")
_SHOWN = 4


def describe(program: Program) -> dict[str, str]:
    """The step's arguments, constants, results and operations as text, one entry a line."""
    donated = program.donated
    values = program.values
    arguments = [
        f"{values[v].name} {values[v].text}{' donated' if v in donated else ''}" for v in program.inputs
    ]
    counts = Counter(op.name for op in program.ops)
    return {
        "arguments": "\n".join(arguments),
        "constants": "\n".join(sorted(values[v].text for v in program.constants)),
        "results": "\n".join(values[v].text for v in program.outputs),
        "operations": "\n".join(f"{name} x{count}" for name, count in sorted(counts.items())),
    }


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What changed, a short clause for each kind of thing; empty where the descriptions are the same."""
    found = []
    for kind in KINDS:
        if kind not in before or before[kind] == now[kind]:
            continue
        old, new = before[kind].splitlines(), now[kind].splitlines()
        gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
        was, is_ = _some(list(gone.elements())), _some(list(come.elements()))
        if was and is_:
            found.append(f"{kind}: {was} became {is_}")
        elif was or is_:
            found.append(f"{kind}: {'no longer' if was else 'now also'} {was or is_}")
        else:
            found.append(f"{kind}: another order")
    return found


def _some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return ", ".join(lines[:_SHOWN]) + more
