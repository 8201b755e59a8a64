"""`scan`, `fori_loop`, `while_loop`: the signatures and results of `jax.lax`, with a bounded reverse pass;
`loop_plan`.

Idea: hold few states of the loop and run steps again from them. Which mechanism runs is decided in `choose`,
explained by `loop_plan`, and described in docs/loops.md with its measurements.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from recoup._loops import capture as cap
from recoup._loops.capture import has_debug
from recoup._loops.compute import run_p
from recoup._loops.disk import DiskStore, disk_scan
from recoup._loops.loop_plan import LoopPlan
from recoup._loops.nested import segment_scan
from recoup._loops.offload import choose_interval, offloaded_scan
from recoup._loops.prepare import (
    INDEX,
    as_chosen,
    concrete,
    fixed_point,
    flat,
    index_type,
    length_of,
    plan_of,
    plan_scan,
    quiet_body,
    trace_scan,
    with_condition,
)
from recoup._loops.primitives import register
from recoup._loops.spec import Loop

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")

NO_LIMIT = 2**31 - 1

register()


def scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    *,
    checkpoints: int | None = None,
    budget: int | str | None = None,
    method: str = "auto",
    store: "DiskStore | Literal['host'] | None" = None,
    store_every: int | None = None,
) -> tuple[Carry, Any]:
    """`jax.lax.scan` whose reverse pass holds few states.

    Args:
        f: `(carry, x) -> (carry, y)`; what it captures gets its gradient.
        init: tree of arrays. xs: tree of arrays with a leading axis of the length, or None.
        length, reverse, unroll: as in `jax.lax.scan`.
        checkpoints: states to hold, the initial one included; the binomial engine then makes the fewest
            evaluations possible for that number.
        budget: bytes, or a size such as "16MiB", that the loop's temporaries may take; the cheapest mechanism
            that is predicted to fit is used.
        method: "auto", or "all" (plain), "levels" (nested scans), "binomial" to insist.
        store: where states beyond `checkpoints` may go: "host" (host memory, for accelerators) or a
            `recoup.DiskStore` (a directory, for CPUs; reverse mode of first order only). Needs `checkpoints`.
        store_every: steps between states in that store; by default where predicted cheapest from the cost of
            moving a state, in which case a short loop may not use the store at all.

    Returns:
        (carry, ys), equal to the bit to `jax.lax.scan`'s.

    Raises:
        BudgetError: nothing fits the budget; the message has the smallest.
        TypeError: the body does not return the carry's type. ValueError: lengths or arguments disagree.
        EffectError: the body has an effect that running it again would repeat.
    """
    n = length_of(xs, length)
    traced = trace_scan(f, init, xs, n)
    if store is not None or store_every is not None:
        out: tuple[Carry, Any] = _scan_in_pieces(
            f, traced, xs, n, reverse, unroll, checkpoints, store, store_every
        )
        return out
    plan = plan_scan(traced, n, checkpoints, budget, method)
    if plan.method == "levels" and has_debug(traced.body.jaxpr):
        plan = plan_scan(traced, n, None, None, "binomial")  # its forward pass alone prints
    if plan.method == "all" or n == 0:
        return jax.lax.scan(f, traced.init_tree(), xs, length=n, reverse=reverse, unroll=unroll)
    if plan.method == "levels":
        levels = plan.chosen
        return segment_scan(
            f, traced.init_tree(), xs, n, levels.levels[:-1], tape=levels.tape, reverse=reverse, unroll=unroll
        )
    loop = Loop(
        traced.body.jaxpr,
        len(traced.body.consts),
        len(traced.init),
        len(traced.xs),
        len(traced.body.out_avals) - len(traced.init),
        plan.slots or 1,
        length=n,
        reverse=reverse,
        unroll=max(int(unroll), 1),
        quiet_body=quiet_body(traced.body),
    )
    loop = as_chosen(loop, plan)
    out = run_p.bind(jnp.int32(n), *traced.body.consts, *traced.init, *traced.xs, loop=loop, save=False)
    return jax.tree.unflatten(traced.body.out_tree, out)  # type: ignore[no-any-return]


def _scan_in_pieces(
    f: Any, traced: Any, xs: Any, n: int, reverse: bool, unroll: int, slots: Any, store: Any, every: Any
) -> Any:
    """`scan` with a second store."""
    if store is None or slots is None:
        raise ValueError("scan: store= goes with checkpoints=, and store_every= with store=")
    if store != "host" and not isinstance(store, DiskStore):
        raise ValueError(f"scan: store must be 'host' or a recoup.DiskStore, got {store!r}")
    if every is not None and every < 1:
        raise ValueError(f"scan: store_every must be at least 1, got {every}")
    cost = 1.0 if store == "host" else store.transfer_cost
    interval = choose_interval(n, slots, cost) if every is None else every

    def inner(c: Any, x: Any, m: int) -> Any:
        return scan(f, c, x, m, reverse, unroll, checkpoints=slots)

    if interval >= n:
        return inner(traced.init_tree(), xs, n)
    if store == "host":
        return offloaded_scan(inner, traced.init_tree(), xs, n, interval, reverse)
    return disk_scan(store, traced, xs, n, interval, reverse, slots, inner, max(int(unroll), 1))


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Carry], Carry],
    init_val: Carry,
    *,
    unroll: int = 1,
    checkpoints: int | None = None,
    budget: int | str | None = None,
    method: str = "auto",
) -> Carry:
    """`jax.lax.fori_loop` that can be differentiated in reverse, also where its bounds are data.

    Args:
        lower, upper: integers, or integer scalars that only the running program knows.
        body_fun: `(i, value) -> value`.
        init_val, unroll: as in `jax.lax.fori_loop`.
        checkpoints, budget, method: as in `scan`. Bounds that are data exclude "all" and "levels"; the number
        of states is then 64 unless one is given.

    Returns:
        The last value.

    Raises:
        As `scan`; TypeError where a bound is not an integer.
    """
    dtype = index_type(lower, upper)
    known = concrete(lower), concrete(upper)
    if known[0] is not None and known[1] is not None:
        n, first = max(known[1] - known[0], 0), known[0]

        def step(carry: tuple[Any, Carry], _: None) -> tuple[tuple[Any, Carry], None]:
            i, value = carry
            return (i + jnp.ones((), i.dtype), body_fun(i, value)), None

        start = jnp.asarray(first, dtype)
        (_, out), _ = scan(
            step,
            (start, init_val),
            None,
            n,
            unroll=unroll,
            checkpoints=checkpoints,
            budget=budget,
            method=method,
        )
        return out
    if method not in ("auto", "binomial"):
        raise ValueError(f"fori_loop: method={method!r} needs bounds known before the program runs")
    first_index, last = jnp.asarray(lower, dtype), jnp.asarray(upper, dtype)
    leaves, tree = flat(init_val)

    def body(k: Any, *values: Any) -> Any:
        return body_fun(first_index + k.astype(dtype), jax.tree.unflatten(tree, values))

    init, captured = fixed_point("fori_loop", body, [INDEX], leaves, init_val, tree, leading=1)
    plan = plan_of(captured, init, [], None, checkpoints, budget, "auto")
    count = jnp.maximum(last - first_index, 0).astype(jnp.int32)
    loop = Loop(
        captured.jaxpr, len(captured.consts), len(init), 0, 0, plan.slots or 1,
        unroll=max(int(unroll), 1), quiet_body=quiet_body(captured),
    )  # fmt: skip
    loop = as_chosen(loop, plan)
    out_flat = run_p.bind(count, *captured.consts, *init, loop=loop, save=False)
    return jax.tree.unflatten(tree, out_flat)  # type: ignore[no-any-return]


def while_loop(
    cond_fun: Callable[[Carry], Any],
    body_fun: Callable[[Carry], Carry],
    init_val: Carry,
    *,
    checkpoints: int | None = None,
    budget: int | str | None = None,
    max_steps: int | None = None,
) -> Carry:
    """`jax.lax.while_loop` that can be differentiated in reverse, in bounded memory.

    Args:
        cond_fun: `value -> bool scalar`. body_fun: `value -> value`. init_val: tree of arrays.
        checkpoints: states to hold, the initial one included (64 if neither this nor `budget` is given).
        budget: bytes, or a size such as "16MiB", for the loop's temporaries.
        max_steps: stop after so many steps even where the condition still holds; whoever sets it can tell the
            two apart by calling `cond_fun` on the result. None: no limit below 2**31 - 1.

    Returns:
        The last value.

    Raises:
        As `scan`; ValueError for a negative `max_steps`.
    """
    if max_steps is not None and max_steps < 0:
        raise ValueError(f"while_loop: max_steps must not be negative, got {max_steps}")
    leaves, tree = flat(init_val)
    body = lambda _, *values: body_fun(jax.tree.unflatten(tree, values))
    init, captured = fixed_point("while_loop", body, [INDEX], leaves, init_val, tree, leading=1)
    avals = [jax.typeof(a) for a in init]
    test = cap.capture(lambda *values: cond_fun(jax.tree.unflatten(tree, values)), avals)
    if len(test.out_avals) != 1 or test.out_avals[0].shape != () or test.out_avals[0].dtype != np.bool_:
        raise TypeError(f"while_loop: the condition must return one bool scalar, it returns {test.out_avals}")
    plan = plan_of(captured, init, [], None, checkpoints, budget, "auto")
    slots = plan.slots or 1
    if max_steps is not None:
        slots = max(1, min(slots, max_steps))
    loop = as_chosen(with_condition(captured, test, len(init), slots), plan)
    limit = jnp.int32(NO_LIMIT if max_steps is None else min(max_steps, NO_LIMIT))
    out = run_p.bind(limit, *captured.consts, *test.consts, *init, loop=loop, save=False)
    return jax.tree.unflatten(tree, out)  # type: ignore[no-any-return]


def loop_plan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    checkpoints: int | None = None,
    budget: int | str | None = None,
    method: str = "auto",
) -> LoopPlan:
    """How `scan` with these arguments would run its reverse pass: states held, steps recomputed, bytes.
    Nothing runs.

    With neither `xs` nor `length` the plan is that of a loop of unknown length (`while_loop`, or `fori_loop`
    with bounds that are data); `f` is `(carry, x) -> (carry, y)` there too. Arguments may be arrays or
    `jax.ShapeDtypeStruct`.

    Args:
        f, init, xs, length: the loop, as for `scan`.
        checkpoints, budget, method: as for `scan`: how many states may be held, or bytes for them, and how.

    Returns:
        A `LoopPlan`; it prints as a table.

    Raises:
        As `scan`.
    """
    unknown = length is None and not jax.tree.leaves(xs)
    n = None if unknown else length_of(xs, length)
    traced = trace_scan(f, init, xs, n or 0)
    return plan_scan(traced, n, checkpoints, budget, method)


__all__ = ["LoopPlan", "fori_loop", "loop_plan", "scan", "segment_scan", "while_loop"]
