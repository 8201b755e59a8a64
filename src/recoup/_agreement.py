"""How two results of one step differ: to the bit, in units in the last place, in NaN and infinities. No JAX.

Idea: floats of one type, read as sign and magnitude, are integers in the same order; the difference of the
two integers is the number of representable numbers between them (Dawson 2012, "Comparing floating point
numbers"). That counts every ulp of an element that cancelled to almost nothing, so the difference is also
given in units in the last place of the output's largest value, and it is the latter that is judged.
Limits: two NaN are equal whatever their payloads; a signed zero differs from the other by 0 ulps, yet not to
the bit.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from recoup._report.text import format_bytes, format_percent, heading, table

# An output may move by this many ulps of its largest value, or by this many times what the compiler alone
# moves it by when it fuses nothing. A wrong gradient is wrong in its leading digits: millions of ulps.
FLOOR_ULPS = 16.0
SPREAD = 8.0


@dataclass(frozen=True)
class Difference:
    """One output of the fitted step beside plain's.

    Attributes:
      path: where it is in the result, such as "[0]['w']".
      type: shape and dtype.
      different: elements whose bits differ (two NaN are equal).
      ulps: the largest number of representable values between two elements; inf where one is finite and the
        other is not.
      ulps_of_largest: the largest difference in units in the last place of the output's largest finite value.
      rounding_ulps: the same for plain compiled without fusion: how far this output moves by rounding alone.
        None where it was not needed.
      index, plain, fitted: the element that differs most, in both results.
      nonfinite: NaN and infinities in plain's output.
    """

    path: str
    type: str
    different: int
    ulps: float
    ulps_of_largest: float
    rounding_ulps: float | None = None
    index: tuple[int, ...] = ()
    plain: str = ""
    fitted: str = ""
    nonfinite: int = 0

    @property
    def equal(self) -> bool:
        """Whether every element is equal to the bit."""
        return self.different == 0

    @property
    def agrees(self) -> bool:
        """Whether it is equal, or differs by no more than rounding explains."""
        allowed = max(FLOOR_ULPS, SPREAD * (self.rounding_ulps or 0.0))
        return self.equal or self.ulps_of_largest <= allowed


@dataclass(frozen=True)
class Agreement:
    """What `recoup.check` found. Prints as a table; `bool(agreement)` is `agrees`.

    Attributes:
      outputs: one `Difference` for each array of the result, and for each reference argument.
      inputs: "given", or how they were drawn.
      recomputed: how many values the plan recomputes, of how many `recomputed_bytes`.
      recomputed_operations: operations of the compiled program that carry the mark of a recomputation: none,
        although the plan has some, would mean that the compiler merged them away.
      overhead: extra floating-point operations, as a share of the step's own.
      certified_bytes: the compiled total per device, as `instrument` read it; 0 without a certificate.
      budget_bytes: what the plan was made for; 0 for none.
    """

    outputs: tuple[Difference, ...]
    inputs: str = "given"
    recomputed: int = 0
    recomputed_bytes: int = 0
    recomputed_operations: int = 0
    overhead: float = 0.0
    certified_bytes: int = 0
    budget_bytes: int = 0
    instrument: str = ""

    @property
    def equal(self) -> bool:
        """Whether every output is equal to the bit."""
        return all(output.equal for output in self.outputs)

    @property
    def agrees(self) -> bool:
        """Whether every output is equal, or differs by no more than rounding explains."""
        return all(output.agrees for output in self.outputs)

    @property
    def worst(self) -> Difference | None:
        """The output that differs most (in ulps of its largest value); None if all are equal."""
        found = [output for output in self.outputs if not output.equal]
        return max(found, key=lambda output: (not output.agrees, output.ulps_of_largest), default=None)

    @property
    def ulps(self) -> float:
        """The largest difference of any output, in units in the last place of that output's largest value."""
        return max((output.ulps_of_largest for output in self.outputs), default=0.0)

    def __bool__(self) -> bool:
        return self.agrees

    def to_dict(self) -> dict[str, Any]:
        """Plain data; infinite differences as the text "inf"."""
        outputs = [
            {key: _finite(value) for key, value in asdict(output).items()} | {"agrees": output.agrees}
            for output in self.outputs
        ]
        return asdict(self) | {
            "outputs": outputs, "equal": self.equal, "agrees": self.agrees, "ulps": _finite(self.ulps)
        }  # fmt: skip

    def to_json(self) -> str:
        """The agreement as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        return render(self)


def compare(path: str, text: str, plain: np.ndarray, fitted: np.ndarray) -> Difference:
    """Compares two arrays of one shape and dtype; complex ones by their parts."""
    nonfinite = int(np.sum(~_isfinite(plain)))
    a, b = np.atleast_1d(_parts(plain)), np.atleast_1d(_parts(fitted))
    wrong = _bits(a) != _bits(b)
    real = _finfo(a.dtype)
    if real is not None:
        wrong &= ~(_isnan(a) & _isnan(b))
    if not wrong.any():
        return Difference(path, text, 0, 0.0, 0.0, nonfinite=nonfinite)
    count = int(wrong.any(-1).sum()) if np.iscomplexobj(plain) else int(wrong.sum())
    if real is None:
        apart = np.where(wrong, np.abs(_wide(a) - _wide(b)), 0)
        scaled = np.where(wrong, math.inf, 0.0)  # an integer or a flag is right or wrong
    else:
        bad = _isfinite(a) != _isfinite(b)
        bad |= ~_isfinite(a) & wrong  # an infinity of the other sign
        apart = np.where(bad, math.inf, np.where(wrong, _distance(a, b), 0.0))
        finite = np.abs(np.where(_isfinite(a), _wide(a), 0.0))
        unit = float(real.eps) * max(float(finite.max()), float(real.tiny))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.where(bad, math.inf, np.where(wrong, np.abs(_wide(a) - _wide(b)) / unit, 0.0))
    at = np.unravel_index(int(np.argmax(np.where(wrong, scaled, -1.0))), wrong.shape)
    return Difference(
        path, text, count, float(apart.max()), float(scaled.max()),
        index=tuple(int(i) for i in at[: plain.ndim]),
        plain=str(plain[at[: plain.ndim]]), fitted=str(fitted[at[: plain.ndim]]), nonfinite=nonfinite,
    )  # fmt: skip


def render(found: Agreement, rows: int = 12) -> str:
    """The agreement as text of at most 80 columns: the verdict, what was done, the outputs that differ."""
    differing = [output for output in found.outputs if not output.equal]
    count = len(found.outputs)
    if not differing:
        verdict = f"Equal to the bit: all {count} outputs"
    elif found.agrees:
        verdict = f"Agrees: {count - len(differing)} of {count} outputs to the bit, the others up to rounding"
    else:
        wrong = sum(not output.agrees for output in differing)
        verdict = f"DIFFERS: {wrong} of {count} outputs by more than rounding explains"
    facts = [["inputs", found.inputs]]
    nonfinite = sum(output.nonfinite for output in found.outputs)
    if nonfinite:
        facts.append(["NaN and infinities in plain's outputs", str(nonfinite)])
    facts.append(["recomputed values", f"{found.recomputed} ({format_bytes(found.recomputed_bytes)})"])
    facts.append(["recomputed operations in the compiled program", str(found.recomputed_operations)])
    facts.append(["extra FLOPs (counted)", format_percent(found.overhead, signed=True)])
    if found.certified_bytes:
        within = f" of {format_bytes(found.budget_bytes)}" if found.budget_bytes else ""
        facts.append([f"total, {found.instrument}", format_bytes(found.certified_bytes) + within])
    lines = [heading(verdict), table(["", ""], facts)]
    if differing:
        differing.sort(key=lambda output: (output.agrees, -output.ulps_of_largest))
        body = [
            [
                output.path, output.type, str(output.different), _number(output.ulps_of_largest),
                "" if output.rounding_ulps is None else _number(output.rounding_ulps),
                "" if output.agrees else "differs",
            ]
            for output in differing[:rows]
        ]  # fmt: skip
        lines += ["", "Differences, in units in the last place of the output's largest value;"]
        lines.append("rounding: how far plain itself moves when the compiler fuses nothing")
        lines.append(table(["output", "type", "elements", "ulps", "rounding", ""], body, right=(2, 3, 4)))
        if len(differing) > rows:
            lines.append(f"... and {len(differing) - rows} more outputs")
        worst = differing[0]
        place = ", ".join(str(i) for i in worst.index)
        lines.append(f"Worst: result{worst.path} at [{place}]: plain {worst.plain}, fitted {worst.fitted}")
    return "\n".join(lines)


def _number(ulps: float) -> str:
    return f"{ulps:.1f}" if ulps < 1e4 else f"{ulps:.1e}"


def _finite(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _finfo(dtype: np.dtype) -> Any:
    """What is known of a float type, NumPy's or an extension such as bfloat16; None for other types."""
    try:
        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return None


def _parts(x: np.ndarray) -> np.ndarray:
    """Complex numbers as pairs of reals along a new last axis."""
    if not np.iscomplexobj(x):
        return x
    return np.stack([x.real, x.imag], -1)


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _isnan(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.isnan(x))


def _isfinite(x: np.ndarray) -> np.ndarray:
    if _finfo(x.dtype) is None and not np.iscomplexobj(x):
        return np.ones(x.shape, bool)
    return np.asarray(np.isfinite(x))


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between the elements, as float64."""

    def ordered(x: np.ndarray) -> np.ndarray:
        width = 8 * x.dtype.itemsize
        sign = np.uint64(1) << np.uint64(width - 1)
        bits = _bits(x).astype(np.uint64)
        # The two zeros are one place: negative numbers count down from it, the others up.
        magnitude = bits & ~sign
        return np.where(bits & sign, sign - magnitude, sign + magnitude)

    p, q = ordered(a), ordered(b)
    return np.asarray(np.maximum(p, q) - np.minimum(p, q), np.float64)
