"""What the public loops share: flat operands, a traced body of fixed types, sizes in bytes, a plan."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recoup import _compat
from recoup._budget import parse_budget
from recoup._loops import capture as cap
from recoup._loops.choose import choose
from recoup._loops.loop_plan import LoopPlan, Sizes, Trade
from recoup._loops.spec import Loop, ShapeDtype, call, differentiable, trace
from recoup.errors import BudgetSyntaxError

INDEX = ShapeDtype((), np.int32)

# ----------------------------------------------------------------------------------------------------


class Traced:
    """A scan's body as a jaxpr, with its flat operands."""

    def __init__(self, body: cap.Captured, init: list[Any], xs: list[Any], tree: Any) -> None:
        self.body, self.init, self.xs, self.tree = body, init, xs, tree

    def init_tree(self) -> Any:
        return jax.tree.unflatten(self.tree, self.init)


def flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return [
        x if isinstance(x, jax.ShapeDtypeStruct | jax.Array) else jnp.asarray(x) for x in leaves
    ], structure


def aval_of(x: Any) -> Any:
    return x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)


def length_of(xs: Any, length: int | None) -> int:
    sizes = {x.shape[0] if getattr(x, "ndim", 0) else None for x in flat(xs)[0]}
    if None in sizes:
        raise ValueError("scan: every leaf of xs needs a leading axis to step over")
    if len(sizes) > 1:
        raise ValueError(f"scan: the leaves of xs have different leading sizes: {sorted(map(int, sizes))}")  # type: ignore[arg-type]
    if length is None:
        if not sizes:
            raise ValueError("scan: give xs or length")
        return int(sizes.pop())  # type: ignore[arg-type]
    n = int(length)
    if n < 0 or (sizes and sizes != {n}):
        raise ValueError(f"scan: length={n} does not agree with xs of {sizes or 'no'} steps")
    return n


def fixed_point(
    what: str,
    body: Callable[..., Any],
    head: list[Any],
    init: list[Any],
    init_tree: Any,
    tree: Any,
    leading: int,
    tail: list[Any] | None = None,
    with_ys: bool = False,
) -> tuple[list[Any], cap.Captured]:
    """Trace the body; a weakly typed initial value takes the type the body gives it."""
    tail = tail or []
    for _ in range(2):
        avals = [aval_of(a) for a in init]
        captured = cap.capture(body, [*head, *[_strong(a) for a in avals], *tail], leading)
        out_tree = captured.out_tree
        if with_ys:
            parts = out_tree.children()
            if len(parts) != 2:
                raise TypeError(f"{what}: the body must return (carry, y), it returns {out_tree}")
            out_tree = parts[0]
        outs = captured.out_avals[: len(init)]
        if out_tree == tree and not any(isinstance(a, jax.ShapeDtypeStruct) for a in init):
            promoted = cap.promote_weak(init, outs)
            if any(a is not b for a, b in zip(promoted, init, strict=True)):
                init = promoted
                continue
        break
    cap.check_carry(what, init_tree, [aval_of(a) for a in init], outs, tree, out_tree)
    # a weak type inside the loop would not survive the first step
    strong = [a if isinstance(a, jax.ShapeDtypeStruct) else _strengthen(a) for a in init]
    return strong, captured


def _strong(aval: Any) -> Any:
    """The type without weakness: a weak type would not survive the loop's first step."""
    return aval if isinstance(aval, jax.ShapeDtypeStruct) else aval.strip_weak_type()


def _row(x: Any) -> Any:
    aval = aval_of(x)
    if isinstance(aval, jax.ShapeDtypeStruct):
        return ShapeDtype(aval.shape[1:], aval.dtype)
    return _compat.without_leading(aval)


def _strengthen(a: Any) -> Any:
    return jax.lax.convert_element_type(a, a.dtype) if getattr(jax.typeof(a), "weak_type", False) else a


def trace_scan(f: Callable[..., Any], init: Any, xs: Any, n: int) -> Traced:
    leaves, tree = flat(init)
    x_leaves, x_tree = flat(xs)
    rows = [_row(x) for x in x_leaves]
    k = len(leaves)

    def body(_: Any, *args: Any) -> Any:
        return f(jax.tree.unflatten(tree, args[:k]), jax.tree.unflatten(x_tree, args[k:]))

    init_flat, captured = fixed_point("scan", body, [INDEX], leaves, init, tree, 1, rows, with_ys=True)
    return Traced(captured, init_flat, x_leaves, tree)


def quiet_body(captured: cap.Captured) -> Any:
    return cap.quiet(captured.jaxpr) if cap.has_debug(captured.jaxpr) else None


def with_condition(body: cap.Captured, test: cap.Captured, carry: int, slots: int) -> Loop:
    """One loop whose consts are the body's, then the condition's."""
    nb, nt = len(body.consts), len(test.consts)
    consts = [jax.typeof(c) for c in [*body.consts, *test.consts]]
    values = [_strong(a) for a in list(body.jaxpr.in_avals)[1 + nb :]]
    whole_body = trace(lambda i, *a: call(body.jaxpr, i, *a[:nb], *a[nb + nt :]), [INDEX, *consts, *values])
    whole_test = trace(lambda *a: call(test.jaxpr, *a[nb:]), [*consts, *values])
    quiet = cap.quiet(whole_body) if cap.has_debug(whole_body) else None
    cond = cap.quiet(whole_test)
    return Loop(whole_body, nb + nt, carry, 0, 0, slots, cond=cond, quiet_body=quiet)


def as_chosen(loop: Loop, plan: LoopPlan) -> Loop:
    """The loop with the tape and the plan of a step that were chosen."""
    chosen = plan.chosen
    plan_bytes = 0 if chosen.trade is None else chosen.trade.bytes
    return replace(loop, tape=chosen.tape_steps, plan=plan.step_plan, plan_bytes=plan_bytes)


def trades_of(captured: cap.Captured, init: list[Any], xs: list[Any]) -> Callable[[int], list[Trade]]:
    """Asks the planner what differentiating so many steps together can be made to take."""
    one = Loop(
        captured.jaxpr, len(captured.consts), len(init), len(xs), len(captured.out_avals) - len(init), 1,
        quiet_body=quiet_body(captured),
    ).silent()  # fmt: skip

    @cache
    def trades(steps: int) -> list[Trade]:
        from recoup._loops import planned  # the planner, which few loops need

        return planned.trades(replace(one, tape=steps), steps)

    return trades


def plan_scan(traced: Traced, n: int | None, checkpoints: Any, budget: Any, method: str) -> LoopPlan:
    return plan_of(traced.body, traced.init, traced.xs, n, checkpoints, budget, method)


def plan_of(
    captured: cap.Captured,
    init: list[Any],
    xs: list[Any],
    n: int | None,
    checkpoints: Any,
    budget: Any,
    method: str,
) -> LoopPlan:
    budget_bytes = None
    if budget is not None:
        parsed = parse_budget(budget)
        if parsed.kind != "bytes":
            raise BudgetSyntaxError(
                f"a loop's budget is bytes or a size such as '16MiB', not {parsed.text!r}"
            )
        budget_bytes = parsed.size_bytes

    return choose(
        n, sizes_of(captured, init, xs), checkpoints, budget_bytes, method, trades_of(captured, init, xs)
    )


def sizes_of(captured: cap.Captured, init: list[Any], xs: list[Any]) -> Sizes:
    state = sum(_bytes(a) for a in init)
    weights = [c for c in captured.consts if differentiable(c)]
    body, nc = captured.jaxpr, len(captured.consts)
    avals = [_compat.as_struct(a) for a in body.in_avals]
    floats = [differentiable(a) for a in avals]

    def kept(*args: Any) -> Any:
        moving = [a for a, m in zip(args, floats, strict=True) if m]

        def fun(*moving: Any) -> list[Any]:
            it = iter(moving)
            full = [next(it) if m else a for a, m in zip(args, floats, strict=True)]
            out = list(jax.core.eval_jaxpr(_compat.open_jaxpr(body)[0], _compat.open_jaxpr(body)[1], *full))
            return [o for o in out if differentiable(o)]

        return jax.tree.leaves(jax.vjp(fun, *moving)[1])

    total = sum(_bytes(a) for a in jax.eval_shape(kept, *avals))
    consts = sum(_bytes(a) for a in avals[1 : 1 + nc])
    # captured tensors are kept once, whatever the number of steps
    residual = max(total - consts, state)
    return Sizes(state, residual, sum(_bytes(c) for c in weights), sum(_bytes(x) for x in xs))


def _bytes(a: Any) -> int:
    return _compat.aval_bytes(aval_of(a))


def concrete(x: Any) -> int | None:
    if isinstance(x, jax.core.Tracer):
        return None
    if not jnp.issubdtype(jnp.asarray(x).dtype, np.integer):
        raise TypeError(f"fori_loop: bounds must be integers, got {x!r}")
    return int(x)


def index_type(lower: Any, upper: Any) -> Any:
    for x in (lower, upper):
        if not jnp.issubdtype(jax.dtypes.result_type(x), np.integer):
            raise TypeError(f"fori_loop: bounds must be integers, got {x!r}")
    strong = [
        x.dtype
        for x in (lower, upper)
        if hasattr(x, "dtype") and not getattr(jax.typeof(x), "weak_type", False)
    ]
    return strong[0] if strong else jax.dtypes.result_type(lower, upper)
