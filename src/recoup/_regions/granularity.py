"""Which split into regions is smallest: `regions(fun, *args)`, before anything runs or compiles.

Idea: a coarser region keeps less and holds more while its backward runs, so neither the finest nor the
coarsest split is always the smallest (Chen et al. 2016: about the square root of the number of layers, for
equal layers). Each candidate is traced with its gradient; the memory model predicts its arena and the jaxpr
counts its FLOPs. Existing regions are the units that candidates join; a function without several regions is
cut where few bytes cross, into parts of equal work.
Limits: predictions, within the memory model's error; loops are units of their own and are not cut inside.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from recoup import _compat, _cost, _memory
from recoup._compat import Literal
from recoup._regions import jaxprs
from recoup._regions.tracing import call_region
from recoup._report.text import format_bytes, listing, table

_REGIONS = jaxprs.REGIONS | jaxprs.JAX_REGIONS
_AUTOMATIC = (2, 4, 8, 16)

Segment = tuple[bool, list[Any]]  # whether it is a region, and its equations


@dataclass(frozen=True)
class Candidate:
    """One split. Sizes are predicted bytes of temporaries; `flops` are of the gradient, counted.

    `fun` is the split function: it takes the arrays among the arguments, flattened, and returns the sum of
    the results that a gradient can be taken of.
    """

    label: str
    count: int
    low_bytes: int
    estimate_bytes: int
    high_bytes: int
    flops: float
    fun: Callable[..., Any]


@dataclass(frozen=True)
class RegionChoices:
    """The candidates of `regions`, the unsplit function first, and the names of the regions that the function
    has. Prints as a table."""

    candidates: tuple[Candidate, ...]
    names: tuple[str, ...] = ()

    @property
    def smallest(self) -> Candidate:
        """The candidate with the smallest predicted temporaries; the cheapest of equals."""
        return min(self.candidates, key=lambda c: (c.estimate_bytes, c.flops))

    def __str__(self) -> str:
        plain, best = self.candidates[0], self.smallest
        lines = [listing("Regions of the function", self.names)] if self.names else []
        rows = [
            [
                c.label,
                c.count,
                format_bytes(c.estimate_bytes),
                format_bytes(c.high_bytes),
                f"{c.flops / max(plain.flops, 1.0):.2f}x",
                "smallest" if c is best else "",
            ]
            for c in self.candidates
        ]
        headers = ["split", "regions", "temporaries", "at most", "FLOPs", ""]
        lines.append(table(headers, rows, right=(1, 2, 3, 4)))
        whole = next((c for c in self.candidates if c.label == _WHOLE), None)
        if whole is not None and whole.estimate_bytes > 0.97 * plain.estimate_bytes:
            lines.append("One region around everything saves nothing: its backward holds all of it.")
            if best.estimate_bytes < 0.97 * plain.estimate_bytes:
                lines.append(f"A split that does save: {best.label}.")
        lines.append("Instrument: memory model and FLOP count on the jaxpr (nothing compiled)")
        return "\n".join(lines)


_WHOLE = "one region around everything"


def regions(fun: Callable[..., Any], *args: Any) -> RegionChoices:
    """Compares splits of a function into regions on predicted memory and cost; nothing compiles or runs.

    Args:
      fun: a loss or any function of arrays, before it is differentiated. The regions that it contains
        (`recoup.checkpoint` or `jax.checkpoint`, in a row) are taken as units: each, every two, every
        three... are compared. Without several regions, cuts where few bytes cross are proposed.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or anything else, passed as it is.

    Returns:
      The candidates, which print as a table; `.smallest` is the one to use.

    Raises:
      ValueError: `fun` takes a gradient itself, or returns nothing that can be differentiated.
    """
    leaves, tree = jax.tree.flatten(args)
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)]

    def flat(*values: Any) -> Any:
        full = list(leaves)
        for i, value in zip(arrays, values, strict=True):
            full[i] = value
        return fun(*jax.tree.unflatten(tree, full))

    avals = [leaves[i] for i in arrays]
    closed = jax.make_jaxpr(flat)(*avals)
    body, consts = _compat.open_jaxpr(closed)
    jaxpr = jaxprs.inline(_compat.constants_as_inputs(body), what=jaxprs.CALLS)
    _refuse_gradients(jaxpr)
    units = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in _REGIONS]
    names = tuple(dict.fromkeys(n for i in units if (n := jaxpr.eqns[i].params.get("name"))))
    if len(units) < 2:
        jaxpr = jaxprs.inline(jaxpr, what=jaxprs.CALLS | _REGIONS)
        splits = [(f"cut into {n}", cut) for n in _AUTOMATIC if (cut := _cut(jaxpr, n)) is not None]
    else:
        splits = list(_joined(jaxpr, units))
    whole = list(jaxpr.eqns)
    plans = [("none", [(False, whole)]), *splits, (_WHOLE, [(True, whole)])]
    return RegionChoices(tuple(_candidate(*plan, jaxpr, consts, avals) for plan in plans), names)


def _refuse_gradients(jaxpr: Any) -> None:
    if any("transpose(" in str(eqn.source_info.name_stack) for eqn in jaxpr.eqns):
        raise ValueError(
            "recoup.regions takes a function before it is differentiated: this one takes a gradient itself; "
            "pass its loss"
        )


def _joined(jaxpr: Any, units: list[int]) -> Iterator[tuple[str, list[Segment]]]:
    """Splits that join every k regions, with what lies between them."""
    sizes = sorted({k for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if k < len(units)})
    for k in sizes:
        segments: list[Segment] = []
        start = 0
        for group in range(0, len(units), k):
            members = units[group : group + k]
            if members[0] > start:
                segments.append((False, list(jaxpr.eqns[start : members[0]])))
            segments.append((True, list(jaxpr.eqns[members[0] : members[-1] + 1])))
            start = members[-1] + 1
        segments.append((False, list(jaxpr.eqns[start:])))
        yield ("each region" if k == 1 else f"every {k} regions"), segments


def _cut(jaxpr: Any, parts: int) -> list[Segment] | None:
    """Parts of about equal work, cut where few bytes cross; None if there are not that many operations."""
    eqns = list(jaxpr.eqns)
    if len(eqns) < 4 * parts:
        return None
    crossing = _crossing_bytes(jaxpr)
    work = [_cost.eqn_flops(eqn) + 1.0 for eqn in eqns]
    total, done = sum(work), 0.0
    at: list[int] = []
    for position, amount in enumerate(work):
        done += amount
        if done >= total * (len(at) + 1) / parts and len(at) < parts - 1:
            at.append(position + 1)
    window = max(1, len(eqns) // (2 * parts))
    nearby = [range(max(1, p - window), min(len(eqns), p + window)) for p in at]
    cuts = sorted({min(span, key=lambda p: (crossing[p], p)) for span in nearby if span})
    bounds = [0, *cuts, len(eqns)]
    # The last part's backward begins at once: recomputing it would save nothing.
    pairs = list(itertools.pairwise(bounds))
    return [(i < len(pairs) - 1, eqns[a:b]) for i, (a, b) in enumerate(pairs)]


def _crossing_bytes(jaxpr: Any) -> list[int]:
    """For each position between operations the bytes made before it and read at or after it."""
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
    change = [0] * (len(jaxpr.eqns) + 2)
    for i, eqn in enumerate(jaxpr.eqns):
        for v in eqn.outvars:
            if last.get(v, i) > i:
                change[i + 1] += _compat.aval_bytes(v.aval)
                change[last[v] + 1] -= _compat.aval_bytes(v.aval)
    total, out = 0, []
    for delta in change[:-1]:
        total += delta
        out.append(total)
    return out


def _candidate(
    label: str, segments: list[Segment], jaxpr: Any, consts: Sequence[Any], avals: Sequence[Any]
) -> Candidate:
    def split(*inputs: Any) -> Any:
        env = dict(zip(jaxpr.invars, [*consts, *inputs], strict=True))
        for index, (is_region, eqns) in enumerate(segments):
            if is_region:
                wanted = _read_later(segments[index + 1 :], jaxpr.outvars, eqns)
                body = functools.partial(_results, eqns, dict(env), wanted)
                outs = call_region(body, (), f"part {index}", label, None, allow_empty=True)
                env.update(zip(wanted, outs, strict=True))
            else:
                env = _run(eqns, env)
        outs = [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]
        inexact = [jnp.sum(x).astype(jnp.float32) for x in outs if jnp.issubdtype(x.dtype, jnp.floating)]
        if not inexact:
            raise ValueError("recoup.regions: the function returns nothing that can be differentiated")
        return sum(inexact[1:], inexact[0])

    wrt = tuple(i for i, a in enumerate(avals) if jnp.issubdtype(a.dtype, jnp.floating))
    traced = jax.make_jaxpr(jax.grad(split, wrt))(*avals)
    flat = _compat.with_open(traced, jaxprs.inline)
    found = _memory.predict(flat)
    count = sum(is_region for is_region, _ in segments)
    low, estimate, high = (m.temporaries_bytes for m in (found.low, found.estimate, found.high))
    return Candidate(label, count, low, estimate, high, _cost.flops(flat), split)


def _results(eqns: Sequence[Any], env: dict[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    env = _run(eqns, env)
    return [env[v] for v in wanted]


def _run(eqns: Sequence[Any], env: dict[Any, Any]) -> dict[Any, Any]:
    for eqn in eqns:
        values = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
        if eqn.primitive.name in _REGIONS:  # its body: the candidate decides on regions
            outs = jax.core.eval_jaxpr(eqn.params["jaxpr"], (), *values)
        else:
            outs = _compat.bind_eqn(eqn, values)
        env.update(zip(eqn.outvars, outs, strict=True))
    return env


def _read_later(segments: Sequence[Segment], outvars: Sequence[Any], eqns: Sequence[Any]) -> list[Any]:
    made = {v for eqn in eqns for v in eqn.outvars}
    read = [v for _, later in segments for eqn in later for v in eqn.invars]
    return [v for v in dict.fromkeys(v for v in [*read, *outvars] if not isinstance(v, Literal)) if v in made]
