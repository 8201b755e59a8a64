"""A piece of a loop as a small step of its own: planned by the planner that `fit` uses.

Differentiating one step, or several with their residuals on a tape, is a program with a forward and a
backward part. Where its temporaries are large beside the state, which of them to keep and which to compute
again is decided together with how many states the loop holds: `choose` gets the ladder of the piece (bytes
against extra work) and pays for the one with what the other frees.

The plan is made with every floating-point operand differentiated, and applied when the reverse pass is
lowered; where fewer operands are differentiated, or more (a derivative of higher order, a batch), the piece
is planned again, within as many times the bytes. Limits: planning takes as long as it does in `fit`, so it is
asked for only where a budget is given and residuals are large.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recoup import _barrier, _compat, _memory
from recoup._explain import apply_plan, fingerprint, to_plan
from recoup._inline import flatten
from recoup._ladder import Ladder, Step, build
from recoup._loops import adjoint
from recoup._loops.choose import binomial_bytes
from recoup._loops.compute import run_p
from recoup._loops.loop_plan import Sizes, Trade
from recoup._loops.spec import Loop, ShapeDtype, activity, differentiable, merge, pick, trace
from recoup._plan import Plan
from recoup._trace import Traced, to_program

MOST = 12  # rungs of a ladder that are offered
MARGIN = (
    1.08  # predictions of loops with barriers in their bodies were up to 7 % below the compiler's numbers
)


def planned(
    fun: Callable[..., Any], operands: Sequence[Any], plan: Plan, limit_bytes: int
) -> Callable[..., Any]:
    """`fun` of these operands by its plan; if the plan is of another program, by its cheapest plan that takes
    at most so many temporaries, or the smallest."""
    leaves, tree = jax.tree.flatten(operands)
    out_tree = None

    def flat(*args: Any) -> list[Any]:
        nonlocal out_tree
        outs, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, args)))
        return outs

    traced = _traced(trace(flat, [jax.typeof(a) for a in leaves]))
    if fingerprint(traced.program) == plan.fingerprint:
        closed = _in_any_jit(apply_plan(traced, plan).closed())
    else:
        offers = [(size, closed) for _, size, closed in _rungs(build(traced))]
        smallest = min(offers, key=lambda offer: offer[0])
        _, closed = next((offer for offer in offers if offer[0] <= limit_bytes), smallest)

    def run(*args: Any) -> Any:
        return jax.tree.unflatten(out_tree, _compat.eval_jaxpr(closed, *jax.tree.leaves(args)))

    return run


def trades(loop: Loop, steps: int) -> list[Trade]:
    """What differentiating `steps` steps of the loop can be made to take, from the cheapest down."""
    consts, carry, x, ys = loop.avals()
    active = activity(loop, *([differentiable(a) for a in part] for part in (consts, carry, x)))
    if loop.tape > 1:
        x, ys = ([_compat.with_leading(a, steps) for a in part] for part in (x, ys))
    ct_y = [a if m else None for a, m in zip(ys, active.ys, strict=True)]
    operands = (
        ShapeDtype((), np.int32), consts, carry, x, pick(carry, active.carry), ct_y,
        pick(consts, active.consts),
    )  # fmt: skip
    leaves, tree = jax.tree.flatten(operands)
    undo = adjoint.piece(loop, active, steps)
    ladder = build(_traced(trace(lambda *a: jax.tree.leaves(undo(*jax.tree.unflatten(tree, a))), leaves)))
    whole = steps * sum(op.cost for op in to_program(flatten(loop.body)).ops)
    rungs = [(rung, size) for rung, size, _ in _rungs(ladder)]
    # Inside the engine a piece takes more than alone: its results beside the sums that they are added to, and
    # what the compiler moves out of the loop. The piece as it is may also be run in another order there; all
    # planned ones are alike.
    plain, more = _in_the_engine(loop, steps, None), 0
    if len(rungs) > 1:
        rung, size = rungs[-1]
        more = _in_the_engine(loop, steps, _explained(ladder, rung)()) - size
    found = []
    for k, (rung, size) in enumerate(rungs):
        in_loop = ceil(MARGIN * (size + more if k else plain))
        extra = rung.cost / whole if whole else 0.0
        found.append(Trade(steps, in_loop, extra, _explained(ladder, rung) if k else None))
    return found


def _in_the_engine(loop: Loop, steps: int, plan: Plan | None) -> int:
    """The temporaries of a reverse pass in such pieces, without states and books: the upper end predicted."""
    n = 3 * steps
    loop = replace(loop, length=n, cond=None, slots=1, plan=plan)
    consts, carry, x, _ = loop.avals()
    operands = [*consts, *carry, *[_compat.with_leading(a, n) for a in x]]
    moves = [differentiable(a) for a in operands]
    outs = [differentiable(a) for a in loop.body.out_avals]

    def pull(*args: Any) -> list[Any]:
        values, cts = args[: len(operands)], args[len(operands) :]
        still = [v for v, m in zip(values, moves, strict=True) if not m]

        def run(*moving: Any) -> list[Any]:
            everything = merge(moves, moving, still)
            return pick(run_p.bind(jnp.int32(n), *everything, loop=loop, save=False), outs)

        return list(jax.vjp(run, *pick(values, moves))[1](list(cts)))

    results = [*carry, *[_compat.with_leading(a, n) for a in loop.avals()[3]]]
    closed = flatten(trace(pull, [*operands, *pick(results, outs)])).closed()
    state_bytes = sum(_compat.aval_bytes(a) for a in carry)
    held = binomial_bytes(Sizes(state_bytes, 0, 0), 1)
    return max(0, _memory.predict(closed).high.temporaries_bytes - held)


def _traced(closed: Any) -> Traced:
    flat = flatten(closed)
    return Traced(flat, to_program(flat), None, None, (), (), (False,) * len(flat.invars))


def _rungs(ladder: Ladder) -> Iterator[tuple[Step, int, Any]]:
    """(rung, temporaries at the upper end of the prediction, program), from the piece as it is down."""
    last = len(ladder.steps) - 1
    for k in sorted({round(i * last / (MOST - 1)) for i in range(MOST)}):
        closed = _in_any_jit(ladder.steps[k].flat.closed())
        yield ladder.steps[k], _memory.predict(closed).high.temporaries_bytes, closed


def _explained(ladder: Ladder, rung: Step) -> Callable[[], Plan]:
    return lambda: to_plan(ladder, rung, rung.predicted_bytes, "respect")


def _in_any_jit(closed: Any) -> Any:
    """With barriers that hold under a `jax.jit` that sets no compiler options, as the loop's user has."""
    return _compat.with_open(closed, _ordered)


def _ordered(jaxpr: Any) -> Any:
    eqns = []
    for eqn in jaxpr.eqns:
        params = {
            k: _compat.with_open(p, _ordered) if hasattr(p, "eqns") and hasattr(p, "effects") else p
            for k, p in eqn.params.items()
        }
        if eqn.primitive is _barrier.barrier_p:
            params["mode"] = _barrier.AUTO
        eqns.append(eqn.replace(params=params))
    return jaxpr.replace(eqns=eqns)
