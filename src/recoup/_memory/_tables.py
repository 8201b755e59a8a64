"""What the compiler's passes know by name and number, per version: lists of operations and thresholds.

`tests/memory/test_probes.py` compiles a tiny program for each and notices when one moves.
"""

from dataclasses import dataclass

ELEMENTWISE = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "and", "or", "xor",
    "not", "negate", "exponential", "log", "exp2", "log1p", "expm1", "tanh", "sine", "cosine", "tan",
    "sqrt", "rsqrt", "cbrt", "erf", "abs", "sign", "floor", "ceil", "round", "is-finite", "atan2", "clamp",
    "popcnt", "clz", "shift-left", "shift-right", "threefry", "nextafter", "reduce-precision", "real", "imag",
    "complex", "conj", "compare", "select", "convert", "copy", "polynomial", "bitcast-convert", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf_inv", "erfc",
    "lgamma", "digamma", "bessel", "igamma", "betainc",
})  # fmt: skip
"""Operations that read, for each element of the result, the same element of each operand."""

LOOP_FUSIBLE = ELEMENTWISE | {
    "reshape", "broadcast", "concatenate", "dynamic-slice", "dynamic-update-slice", "gather", "iota", "pad",
    "reduce", "reverse", "slice", "transpose",
}  # fmt: skip
"""Operations that a loop fusion may contain."""

EXPENSIVE = frozenset({
    "divide", "remainder", "tanh", "power", "rsqrt", "sqrt", "cbrt", "exponential", "exp2", "expm1", "log",
    "log1p", "erf", "atan2", "gather", "reduce", "dot", "convolution", "scatter", "sort", "reduce-window",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf_inv", "erfc", "lgamma",
    "digamma", "bessel", "igamma", "betainc", "nextafter",
})  # fmt: skip
"""Operations never computed twice."""

REUSES = frozenset(
    {"broadcast", "dot", "convolution", "gather", "scatter", "sort", "reduce-window", "custom-call"}
)
"""Operations that read elements of an operand more than once."""


SLACK = 0.01
"""What small buffers and gaps not modelled may add or take: both ends of the interval move by this share."""


@dataclass(frozen=True)
class Tables:
    """One compiler's numbers."""

    library_ops: frozenset[str]
    native_half: bool = False  # bfloat16 is moved and multiplied as it is
    merges_constants: bool = False  # x * 2.0 * 3.0 becomes x * 6.0; sums and constant arrays alike
    barriers_stay: bool = False  # barriers are there still when buffers are assigned
    library_min_elements: int = 4096  # in the result or an operand
    library_min_dot: int = 8  # the largest of m, k, n
    code_duplication: int = 15  # times one producer may be emitted inside a fusion
    concatenate_arguments: int = 8  # more operands than this are not fused
    # along the last dimension it is not fused, from this size on (elements, bytes of a row, bytes in all)
    concatenate_columns: int = 128
    concatenate_row_bytes: int = 0
    concatenate_bytes: int = 0
    reductions_in_fusion: int = 5
    transposes_operands: bool = False  # what a loop takes transposed is written before it is copied
    transposes_convolutions: bool = False  # a transposed result of a convolution is written, not renamed


LIBRARY_UNARY = frozenset({
    "abs", "ceil", "convert", "erf", "exponential", "expm1", "floor", "log", "log1p", "negate", "round",
    "rsqrt", "sign", "sqrt", "tanh",
})  # fmt: skip
LIBRARY_BINARY = frozenset({"add", "divide", "maximum", "minimum", "multiply", "power", "subtract"})
LIBRARY_TRIGONOMETRIC = frozenset({"cosine", "sine", "tan"})  # from JAX 0.12 on

_OLD = Tables(library_ops=LIBRARY_UNARY | LIBRARY_BINARY, merges_constants=True, barriers_stay=True)
_NEW = Tables(
    library_ops=LIBRARY_UNARY | LIBRARY_BINARY | LIBRARY_TRIGONOMETRIC,
    native_half=True,
    transposes_operands=True,
    transposes_convolutions=True,
    concatenate_columns=0,
    concatenate_row_bytes=64,
    concatenate_bytes=2048,
)


def tables(version: tuple[int, ...]) -> Tables:
    """The tables of a JAX version. Measured on 0.10.2 and 0.12.0.1; those between follow the older."""
    return _NEW if version >= (0, 12) else _OLD
