"""The cheapest schedule of a tiny graph whose moves take time on a link: best-first search, as `_exact`.

A state is what is done, held and stored, and how far behind the computation each direction of the link is,
and each held value (not there yet, or computed so lately that its store could not have started). From it any
operation may run, any store may have ended, any fetch may begin, after dropping as little as makes room. A
state is left out where one that was expanded before has done the same, holds and has stored no less, and
could wait until it is in every respect at least as far on: all these times are compared with the cost added.

Exact where it finishes; where it gives up, the smallest estimate is a lower bound. Limits: exponential, and
more so than without the link: 8 operations within about a second.
"""

import heapq
import time

from recoup._graph import Graph, Offload
from recoup._solve._exact import LOOK, Exact, _bytes, _maximal, _useful

MOST = 60_000  # states looked at, about a second

Lags = tuple[float, ...]  # relative to the computation: link out, link back, then each value; inf if not held


def brute_force_link(
    graph: Graph,
    budget: int,
    offload: Offload,
    *,
    given: bool,
    deadline: float = float("inf"),
    most: int = MOST,
) -> Exact:
    """The cheapest order (coded as `check` reads it), the proof that there is none, or a bound.

    Args:
        graph: a few operations.
        budget: bytes.
        offload: what moving values costs, with a rate.
        given: first computations keep the graph's order.
        deadline: in `time.monotonic()`.
        most: states to look at before giving up.
    """
    count = len(graph)
    full = (1 << count) - 1
    needs = [sum(1 << u for u in operands) for operands in graph.operand_lists()]
    costs, sizes = graph.costs.tolist(), graph.sizes.tolist()
    stores, fetches = offload.stores.tolist(), offload.fetches.tolist()
    takes = (graph.sizes / offload.bytes_per_cost).tolist()
    movable = offload.movable.tolist()
    # times that have passed for longer than this change nothing any more
    oldest = (-max(takes, default=0.0), 0.0, *(-t for t in takes))
    useful_of = [0] * (full + 1)
    for done in range(full + 1):
        useful_of[done] = _useful(done, full, needs)
    came: list[tuple[int, int]] = [(-1, -1)]
    expanded: dict[int, list[tuple[int, int, Lags]]] = {}
    queue: list[tuple[float, int, int, float, int, int, int, Lags]] = []
    start = (*oldest[:2], *([float("inf")] * count))
    heapq.heappush(queue, (graph.total_cost, count, 0, 0.0, 0, 0, 0, start))
    looks = work = 0
    while queue:
        estimate, left, where, cost, done, held, stored, lags = heapq.heappop(queue)
        if done == full:
            return Exact(_path(came, where), cost, True)
        stamps = tuple(cost + lag for lag in lags)
        before = expanded.setdefault(done, [])
        # what is not held has no time, so the times alone would do: the bits are quicker
        if any(
            held & ~other == 0
            and stored & ~put == 0
            and all(a <= b for a, b in zip(then, stamps, strict=True))
            for other, put, then in before
        ):
            continue
        work += 1 + len(before) // 8
        before.append((held, stored, stamps))
        looks += 1
        if work > most or (looks % LOOK == 0 and time.monotonic() > deadline):
            return Exact(None, estimate, False)
        useful = useful_of[done]
        following = (done + 1).bit_length() - 1 if given else -1
        for v in range(count):
            bit = 1 << v
            first = not done & bit
            if held & bit:
                if stored & bit or not movable[v] or not useful & bit:
                    continue
                # its store has ended
                waited = max(0.0, max(lags[0], lags[2 + v]) + takes[v])
                ended = max(lags[0], lags[2 + v]) + takes[v]
                after = _later((ended, *lags[1:]), waited, oldest)
                price = waited + stores[v]
                came.append((where, 2 * count + v))
                state = (cost + price, done, held, stored | bit, after)
                heapq.heappush(queue, (estimate + price, left, len(came) - 1, *state))
                continue
            if stored & bit and useful & bit:
                ready = max(lags[1], 0.0) + takes[v]
                for kept in _maximal(held, sizes, budget - sizes[v]):
                    now = _only(kept, (lags[0], ready, *lags[2:]))
                    after = (*now[: 2 + v], ready, *now[3 + v :])
                    came.append((where, count + v))
                    state = (cost + fetches[v], done, kept | bit, stored, after)
                    heapq.heappush(queue, (estimate + fetches[v], left, len(came) - 1, *state))
            if needs[v] & ~held or (first and given and v != following) or not (first or useful & bit):
                continue
            room = budget - sizes[v] - _bytes(needs[v], sizes)
            if room < 0:
                continue
            waited = max([0.0, *(lags[2 + u] for u in range(count) if needs[v] >> u & 1)])
            paid = cost + waited + costs[v]
            price = estimate + waited + (0.0 if first else costs[v])
            later = useful_of[done | bit]
            for rest in _maximal(held & ~needs[v] & later, sizes, room):
                kept = (rest | needs[v]) & later
                now = _later(_only(kept, lags), waited + costs[v], oldest)
                after = (*now[: 2 + v], 0.0 if later & bit else float("inf"), *now[3 + v :])
                came.append((where, v))
                state = (paid, done | bit, kept | (bit & later), stored, after)
                heapq.heappush(queue, (price, left - first, len(came) - 1, *state))
    return Exact(None, float("inf"), True)


def _later(lags: Lags, passed: float, oldest: Lags) -> Lags:
    return tuple(max(lag - passed, least) for lag, least in zip(lags, oldest, strict=True))


def _only(kept: int, lags: Lags) -> Lags:
    return (*lags[:2], *(lag if kept >> v & 1 else float("inf") for v, lag in enumerate(lags[2:])))


def _path(came: list[tuple[int, int]], where: int) -> list[int]:
    order = []
    while where > 0:
        where, code = came[where]
        order.append(code)
    return order[::-1]
