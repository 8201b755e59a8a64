"""The engine with a tape of a given length, whatever the budget would have chosen."""

from contextlib import contextmanager
from unittest import mock

from recoup._loops import api, prepare
from recoup._loops.choose import LoopPlan, with_tape, with_trade


@contextmanager
def taped(slots, steps):
    """`recoup.scan` holds `slots` states and differentiates `steps` steps together."""

    def plan(traced, n, *_):
        sizes = prepare.sizes_of(traced.body, traced.init, traced.xs)
        return LoopPlan(n, with_tape(n, slots, steps, sizes), "a test asked for it", sizes)

    with mock.patch.object(api, "plan_scan", plan):
        yield


@contextmanager
def planned_tape(traced, slots, steps):
    """The same with the smallest plan of such a piece; yields the loop's plan."""
    sizes = prepare.sizes_of(traced.body, traced.init, traced.xs)
    offers = prepare.trades_of(traced.body, traced.init, traced.xs)(steps)
    n = traced.xs[0].shape[0]
    chosen = with_trade(n, slots, min(offers, key=lambda trade: trade.bytes), sizes)
    plan = LoopPlan(n, chosen, "a test asked for it", sizes)
    with mock.patch.object(api, "plan_scan", lambda *_: plan):
        yield plan
