"""Products in the compiler's canonical form, with the transposes and reshapes that this takes."""

import math
from collections.abc import Sequence

from recoup._memory._graph import Graph, Node, Shape
from recoup._memory._rules import HALF, broadcast, convert, elementwise, reshape, transpose, widen


def dot(
    g: Graph, lhs: Node, rhs: Node, contract: tuple[Shape, Shape], batch_dims: tuple[Shape, Shape], dtype: str
) -> Node:
    """A dot_general in the compiler's canonical form.

    Operands become [batch..., free, contract] and [batch..., contract, free] (or the one swap of the last
    two, which the dot can read), by transposes and reshapes; the result is reshaped back to [batch..., lhs
    free..., rhs free...]. The node's attrs are (number of batch dimensions, lhs contracts last, rhs contracts
    last, None).
    """
    (lc, rc), (lb, rb) = contract, batch_dims
    half = lhs.dtype in HALF or rhs.dtype in HALF
    native = g.native_half and lhs.dtype == rhs.dtype == "bfloat16"
    if half and not native:
        return convert(g, dot(g, widen(g, lhs), widen(g, rhs), contract, batch_dims, "float32"), dtype)
    plain = _canonical(lhs, lb, lc) and _canonical(rhs, rb, rc)
    left, l_last = _side(g, lhs, lb, lc, contract_last=True, plain=plain)
    right, r_last = _side(g, rhs, rb, rc, contract_last=False, plain=plain)
    if half and not (l_last and len(left.shape) == len(right.shape) == len(lb) + 2):
        return convert(g, dot(g, widen(g, lhs), widen(g, rhs), contract, batch_dims, "float32"), dtype)
    batch = tuple([lhs.shape[d] for d in lb])
    l_free = tuple([s for d, s in enumerate(lhs.shape) if d not in lb and d not in lc])
    r_free = tuple([s for d, s in enumerate(rhs.shape) if d not in rb and d not in rc])
    shape = batch + ((math.prod(l_free),) if l_free else ()) + ((math.prod(r_free),) if r_free else ())
    if not lc:  # an outer product is a product of broadcasts
        nb, nl = len(batch), len(l_free)
        full = batch + l_free + r_free
        a = broadcast(g, transpose(g, lhs, _order(lhs, lb, lc)), full, range(nb + nl))
        b = broadcast(
            g, transpose(g, rhs, _order(rhs, rb, rc)), full, [*range(nb), *range(nb + nl, len(full))]
        )
        return elementwise(g, "multiply", dtype, (a, b))
    node = g.add("dot", shape, dtype, (left, right), (len(batch), l_last, r_last, None))
    return reshape(g, node, batch + l_free + r_free)


def _order(x: Node, batch: Sequence[int], contract: Sequence[int]) -> list[int]:
    free = [d for d in range(len(x.shape)) if d not in batch and d not in contract]
    return [*batch, *free, *contract]


def _canonical(x: Node, batch: Sequence[int], contract: Sequence[int]) -> bool:
    """Whether a dot can read this operand as it is. If it cannot read one, both are rearranged."""
    leading = list(batch) == list(range(len(batch)))
    return leading and len(contract) <= 1 and len(x.shape) - len(batch) - len(contract) <= 1


def _side(
    g: Graph, x: Node, batch: Sequence[int], contract: Sequence[int], *, contract_last: bool, plain: bool
) -> tuple[Node, bool]:
    """One operand in canonical form, and whether its contracting dimension is the last."""
    nb = len(batch)
    free = [d for d in range(len(x.shape)) if d not in batch and d not in contract]
    if not plain:
        order = [*batch, *free, *contract] if contract_last else [*batch, *contract, *free]
        x = transpose(g, x, order)
        shape = x.shape[:nb]
        sizes = [x.shape[i] for i in range(nb, len(x.shape))]
        if contract_last:
            nf = len(free)
            f, c = math.prod(sizes[:nf]), math.prod(sizes[nf:])
            tail = ((f,) if free else ()) + ((c,) if contract else ())
        else:
            nc = len(contract)
            c, f = math.prod(sizes[:nc]), math.prod(sizes[nc:])
            tail = ((c,) if contract else ()) + ((f,) if free else ())
        x = reshape(g, x, shape + tail)
        last = contract_last or not free
    else:
        last = not free or not contract or contract[0] > free[0]
    # the dot can read the swap of the last two dimensions: fold such a transpose
    if x.op == "transpose" and free and contract:
        perm = x.attrs
        n = len(perm)
        if perm == (*range(n - 2), n - 1, n - 2):
            x, last = x.operands[0], not last
    return x, last
