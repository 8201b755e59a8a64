"""What an equation costs: floating-point operations counted from the jaxpr, loops times their length.

Idea: the compiler's own count takes a loop body once, whatever its length, so the count is made on the jaxpr.
Products count 2·m·n·k, convolutions 2 per multiply-add, elementwise operations and reductions one per
element; moving data counts nothing. `price` is what the planner minimises: FLOPs, plus what reading and
writing the arrays costs on a machine that does `FLOPS_PER_BYTE` operations in the time of one byte, so that a
recomputation that only moves memory is not free.
Limits: a branch costs its dearest arm, a `while` one turn of its body (its length is data); transcendental
functions count one.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from recoup import _compat
from recoup._compat import Literal

FLOPS_PER_BYTE = 2.0  # a desktop CPU: about 50-100 GFLOP/s against 20-40 GB/s
LINK_FLOPS_PER_BYTE = 20.0  # devices exchange a tenth of what memory moves: NVLink beside HBM, a TPU's links
FUSED_SHARE = 0.25  # of a fused chain's bytes that are written
RANDOM_BITS_FLOPS = 100  # one block of threefry is about a hundred integer operations for two words

MOVES_DATA = frozenset(
    [
        "broadcast_in_dim", "reshape", "transpose", "convert_element_type", "bitcast_convert_type",
        "squeeze", "expand_dims", "slice", "dynamic_slice", "dynamic_update_slice", "concatenate",
        "pad", "rev", "gather", "copy", "copy_p", "iota", "stop_gradient", "split", "stack", "select_n",
        "device_put", "optimization_barrier", "recoup_barrier", "recoup_keep",
        "recoup_diagnostic", "name", "random_wrap", "random_unwrap",
        "random_seed", "pjit", "real", "imag", "all_gather", "all_gather_invariant", "all_gather_reduced",
        "all_to_all", "ppermute", "pvary", "pcast", "axis_index", "sharding_constraint", "reshard"
    ]
)  # fmt: skip
GATHERS = frozenset(["all_gather", "all_gather_invariant", "all_gather_reduced"])
_REDUCTIONS = frozenset(
    [
        "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
        "reduce_xor", "argmax", "argmin", "reduce_precision", "cumsum", "cumprod", "cummax", "cummin",
        "cumlogsumexp", "reduce"
    ]
)  # fmt: skip


def flops(jaxpr: Any) -> float:
    """Floating-point operations of a (closed) jaxpr, loops times their length."""
    inner, _ = _compat.open_jaxpr(jaxpr)
    return sum(eqn_flops(eqn) for eqn in inner.eqns)


def eqn_flops(eqn: Any) -> float:
    """Floating-point operations of one equation."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        lhs = eqn.invars[0].aval.shape
        return float(2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs[d] for d in contract))
    if name == "conv_general_dilated":
        return _conv_flops(eqn)
    if name == "scan":
        scan = _compat.scan_parts(eqn)
        return scan.length * flops(scan.body)
    if name == "while":
        return flops(params["body_jaxpr"]) + flops(params["cond_jaxpr"])
    if name == "cond":
        return max((flops(branch) for branch in params["branches"]), default=0.0)
    bodies = sub_jaxprs(eqn)
    if bodies:
        return sum(flops(body) for body in bodies)
    if name in MOVES_DATA:
        return 0.0
    if name in ("random_bits", "threefry2x32", "random_split", "random_fold_in"):
        return float(RANDOM_BITS_FLOPS * max(_elements(v) for v in eqn.outvars))
    if name in _REDUCTIONS or name.startswith(("reduce_window", "select_and", "scatter")):
        return float(max((_elements(v) for v in [*eqn.invars, *eqn.outvars]), default=0))
    if name == "sort":
        size = _elements(eqn.invars[0])
        return float(
            size * max(1, math.ceil(math.log2(max(2, eqn.invars[0].aval.shape[params["dimension"]]))))
        )
    if name in (
        "cholesky",
        "lu",
        "qr",
        "householder_product",
        "eigh",
        "svd",
        "triangular_solve",
        "geqrf",
        "schur",
    ):
        shape = eqn.invars[0].aval.shape
        return float(2.0 * math.prod(shape) * (shape[-1] if shape else 1))
    if name == "fft":
        size = _elements(eqn.outvars[0])
        return 5.0 * size * max(1.0, math.log2(max(2, math.prod(params["fft_lengths"]))))
    return float(sum(_elements(v) for v in eqn.outvars))


_PRICE: ContextVar[Callable[[Any, bool], float] | None] = ContextVar("price", default=None)


@contextmanager
def priced(by: Callable[[Any, bool], float]) -> Iterator[None]:
    """Lets `price` be another function while it is open, for all that plans: loops and their bodies too."""
    token = _PRICE.set(by)
    try:
        yield
    finally:
        _PRICE.reset(token)


def price(eqn: Any, fused: bool = False) -> float:
    """The planner's price of running an equation again: FLOPs, and the bytes it writes counted as FLOPs.

    Of what is `fused` into its readers only a part is written: a chain of such operations writes its end.
    """
    measured = _PRICE.get()
    if measured is not None:
        return measured(eqn, fused)
    if eqn.primitive.name == "scan":
        scan = _compat.scan_parts(eqn)
        return scan.length * sum(price(inner) for inner in _compat.open_jaxpr(scan.body)[0].eqns)
    written = sum(_compat.aval_bytes(v.aval) for v in eqn.outvars)
    moved = (FUSED_SHARE if fused else 1.0) * FLOPS_PER_BYTE * written
    return eqn_flops(eqn) + moved + LINK_FLOPS_PER_BYTE * gathered_bytes(eqn)


def gathered_bytes(eqn: Any) -> int:
    """What each device receives from others where an equation surely gathers an array's parts."""
    if eqn.primitive.name not in GATHERS:
        return 0
    own = sum(_compat.aval_bytes(v.aval) for v in eqn.invars)
    return sum(_compat.aval_bytes(v.aval) for v in eqn.outvars) - own


def constraint_bytes(eqn: Any, before: int | None = None) -> tuple[int, int]:
    """For an equation that tells the compiler how to divide an array: what each device may receive, and over
    how many devices the array is spread whole.

    Args:
      eqn: of a jaxpr.
      before: into how many parts the operand is divided; None takes it to be over all devices, as sharded
        weights are.
    """
    found = _compat.resharded(eqn)
    if found is None:
        return 0, 1
    before, after = found[0] if before is None else before, found[1]
    if before <= after:
        return 0, 1
    size = _compat.aval_bytes(eqn.outvars[0].aval)
    return size // after - size // before, found[0] // after


def sub_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs in an equation's parameters."""
    found = []
    for param in eqn.params.values():
        for item in param if isinstance(param, (tuple, list)) else (param,):
            if hasattr(item, "eqns"):
                found.append(item)
    return found


def _conv_flops(eqn: Any) -> float:
    numbers = eqn.params["dimension_numbers"]
    kernel = eqn.invars[1].aval.shape
    out = eqn.outvars[0].aval.shape
    spatial = math.prod(kernel[d] for d in numbers.rhs_spec[2:])
    in_features = kernel[numbers.rhs_spec[1]]
    # Holes that dilation puts into an operand are skipped by any sensible kernel: count the operand's own
    # elements.
    dilation = math.prod(eqn.params["lhs_dilation"])
    return float(2.0 * math.prod(out) * spatial * in_features / dilation)


def _elements(atom: Any) -> int:
    if isinstance(atom, Literal):
        return 1
    return math.prod(int(d) for d in getattr(atom.aval, "shape", ()))
