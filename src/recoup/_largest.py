"""The largest size (batch, sequence, ...) at which a step fits: predicted first, then certified.

Idea: memory grows nearly linearly with a size, so the smallest peak of the ladder at two or three sizes says
where the budget is met, without compiling. The lowest plan there is compiled; the compiler's number corrects
the line, until a size that fits and one that does not are neighbours. `fit` then takes the cheapest plan.
Limits: a program whose memory does not grow with its size has no largest one below `maximum`. Sizes between
the two neighbours are not tried: where memory is not monotone in the size, a larger one may fit.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from recoup import _explain, _ladder
from recoup._budget import parse_budget
from recoup._compiling import Compiler, Fitted, trace_step
from recoup._fit import device_free_bytes, fit
from recoup._ladder import Ladder, Step
from recoup._plan import Plan
from recoup._progress import Progress
from recoup._report.text import format_bytes, format_percent, heading, table
from recoup._trace import as_names, as_numbers
from recoup.errors import BudgetError, BudgetSyntaxError

MODEL = "memory model (predicted)"
MAXIMUM = 1 << 20
GROWTH = 32  # most that a size grows from one prediction to the next
NEAR = 0.02  # predictions this close to the budget are left to the compiler
SECOND = 0.05  # a lowest plan over the budget by less than this share is worth a second look
LAST = 3  # rungs at the low end of a ladder that are asked for their prediction


@dataclass(frozen=True)
class Trial:
    """One size that was looked at: the total of its lowest plan, by the memory model or the compiler."""

    size: int
    fits: bool
    total_bytes: int
    instrument: str


@dataclass(frozen=True)
class Largest:
    """The largest size that was certified to fit, with its step. Prints as a table.

    Attributes:
      size: the size.
      fitted: the step at that size, compiled and certified; call it as the step.
      budget_bytes: for the whole step, per device.
      smallest_refused: the smallest size that was tried and does not fit; None if nothing larger was refused.
      unplanned_size: the largest size that is predicted to fit without recoup; 0 if none.
      trials: every size looked at, in order.
      compiles: compilations made, those of refused sizes too.
      seconds: time that it took.
    """

    size: int
    fitted: Fitted
    budget_bytes: int
    smallest_refused: int | None
    unplanned_size: int
    trials: tuple[Trial, ...]
    compiles: int
    seconds: float

    @property
    def plan(self) -> Plan:
        """The plan of the fitted step."""
        return self.fitted.plan

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "size": self.size,
            "budget_bytes": self.budget_bytes,
            "total_bytes": self.fitted.memory.total_bytes,
            "instrument": self.fitted.memory.instrument,
            "overhead": self.plan.overhead,
            "smallest_refused": self.smallest_refused,
            "unplanned_size": self.unplanned_size,
            "compiles": self.compiles,
            "seconds": self.seconds,
            "trials": [vars(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        refused = "none tried" if self.smallest_refused is None else str(self.smallest_refused)
        facts = [
            ["largest size that fits", str(self.size)],
            ["smallest size refused", refused],
            ["fits unplanned up to (predicted)", str(self.unplanned_size)],
            ["budget", format_bytes(self.budget_bytes)],
            [f"total ({self.fitted.memory.instrument})", format_bytes(self.fitted.memory.total_bytes)],
            ["extra FLOPs (counted)", format_percent(self.plan.overhead, signed=True)],
        ]
        rows = [
            [
                str(t.size),
                "fits" if t.fits else "too large",
                format_bytes(t.total_bytes),
                t.instrument,
            ]
            for t in self.trials
        ]
        lines = [heading("Largest"), table(["", ""], facts, right=(1,)), "", heading("Sizes looked at")]
        return "\n".join([*lines, table(["size", "", "total", "instrument"], rows, right=(0, 2))])


def largest(
    make_step: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]],
    *,
    budget: SupportsIndex | str,
    minimum: int = 1,
    maximum: int = MAXIMUM,
    multiple_of: int = 1,
    tolerance: float = 0.01,
    max_overhead: float | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    regions: str = "respect",
    max_compiles: int = 8,
) -> Largest:
    """Finds the largest batch (or any one size) at which a step fits, and fits the step there.

    Args:
      make_step: given a size, returns `(step, args)`; args may be `jax.ShapeDtypeStruct`, so that nothing is
        allocated for sizes that are only looked at.
      budget: bytes per device for the whole step: an int, "4GiB", or "device".
      minimum, maximum: sizes to stay between, both included.
      multiple_of: only multiples of this are tried, for steps that divide the size.
      tolerance: stop when a size that fits and one that does not are within this share of each other; 0 goes
        on until they are neighbours. Sizes up to 1 / tolerance are always told apart.
      max_overhead: refuse plans with more extra FLOPs than this share of the step's own.
      kwargs, donate_argnums, static_argnums, static_argnames, in_shardings, out_shardings, compiler_options,
        regions: as for `recoup.fit`.
      max_compiles: how many compilations at most to find the size; choosing the cheapest plan there takes at
        most two more.

    Returns:
      A `Largest`; its step is compiled and certified within the budget.

    Raises:
      BudgetError: not even the smallest size fits; the message has its numbers.
      BudgetSyntaxError: the budget cannot be read, or is a percentage (of which size?).
    """
    began = time.monotonic()
    wanted = parse_budget(budget)
    if wanted.kind == "share":
        raise BudgetSyntaxError(f"largest() needs bytes, a size or 'device', not the share {wanted.text!r}")
    low, high = -(-max(1, minimum) // max(1, multiple_of)), maximum // max(1, multiple_of)
    if multiple_of < 1 or low > high:
        raise ValueError(f"no multiple of {multiple_of} lies between {minimum} and {maximum}")
    limit = wanted.resolve(free_bytes=device_free_bytes() if wanted.kind == "device" else None)
    options = {
        "kwargs": kwargs, "donate_argnums": donate_argnums, "static_argnums": static_argnums,
        "static_argnames": static_argnames, "in_shardings": in_shardings, "out_shardings": out_shardings,
        "compiler_options": compiler_options, "regions": regions,
    }  # fmt: skip
    with Progress() as progress:
        sizes = _Sizes(make_step, multiple_of, limit, max_overhead, options, progress)
        guess, plain = _predicted(sizes, low, high)
        fitting, refused = _certified(sizes, guess, low, high, tolerance, max_compiles)
        if fitting < low:
            why = "it is the smallest" if refused == low else f"max_compiles={max_compiles} ended the search"
            raise BudgetError(
                f"size {refused * multiple_of} does not fit into {format_bytes(limit)} ({wanted.text!r}), "
                f"and {why}: its lowest plan compiles to {format_bytes(sizes.totals[refused])}"
                + ("" if max_overhead is None else f" (max_overhead={max_overhead})")
                + ". Raise the budget, or donate arguments that the step replaces (donate_argnums=)"
            )
        fitted = sizes.fit(fitting)
    return Largest(
        size=fitting * multiple_of,
        fitted=fitted,
        budget_bytes=limit,
        smallest_refused=refused * multiple_of if refused <= high else None,
        unplanned_size=plain * multiple_of,
        trials=tuple(sizes.trials),
        compiles=sizes.compiles,
        seconds=time.monotonic() - began,
    )


class _Sizes:
    """The step at each size (in units of `multiple_of`): its ladder, predictions and compilations."""

    def __init__(
        self,
        make_step: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]],
        multiple_of: int,
        limit: int,
        max_overhead: float | None,
        options: dict[str, Any],
        progress: Progress,
    ):
        self.make_step, self.multiple_of, self.limit = make_step, multiple_of, limit
        self.max_overhead, self.options, self.progress = max_overhead, options, progress
        self.planned: dict[int, int] = {}  # predicted totals of the lowest rung
        self.unplanned: dict[int, int] = {}  # predicted totals of the step as it is
        self.totals: dict[int, int] = {}  # compiled totals of the lowest rung
        self.compiles = 0
        self.trials: list[Trial] = []
        self._ladders: dict[int, tuple[Callable[..., Any], tuple[Any, ...], Ladder]] = {}
        self._fitted: dict[int, Fitted] = {}

    def _ladder(self, at: int) -> tuple[Callable[..., Any], tuple[Any, ...], Ladder]:
        if at not in self._ladders:
            self.progress.stage(f"planning at size {at * self.multiple_of}")
            step, args = self.make_step(at * self.multiple_of)
            names = ("kwargs", "donate_argnums", "static_argnums", "static_argnames", "regions")
            traced = trace_step(step, tuple(args), *(self.options[name] for name in names))
            while len(self._ladders) > 1:  # arguments and ladders may be large
                del self._ladders[max(self._ladders, key=lambda other: abs(other - at))]
            self._ladders[at] = step, tuple(args), _ladder.build(traced)
        return self._ladders[at]

    def _lowest(self, ladder: Ladder) -> Step:
        flops = ladder.traced.program.flops
        most = float("inf") if self.max_overhead is None else self.max_overhead * flops
        allowed = [step for step in ladder.steps if step.extra_flops <= most] or ladder.steps[:1]
        return min(allowed[-LAST:], key=lambda step: step.prediction.estimate.total_bytes)

    def predict(self, at: int) -> int:
        """The predicted total of the lowest plan at a size."""
        if at not in self.planned:
            ladder = self._ladder(at)[2]
            total = self._lowest(ladder).prediction.estimate.total_bytes
            self.planned[at], self.unplanned[at] = total, ladder.steps[0].prediction.estimate.total_bytes
            self.trials.append(Trial(at * self.multiple_of, total <= self.limit, total, MODEL))
        return self.planned[at]

    def measure(self, at: int) -> int:
        """The compiled total of the lowest plan at a size. One compilation, three where it is just over."""
        self.predict(at)
        step, args, ladder = self._ladder(at)
        lowest = self._lowest(ladder)
        given = self.options
        compiler = Compiler(
            ladder.traced, step, args, given["kwargs"] or {},
            as_numbers(given["donate_argnums"], len(args)), as_numbers(given["static_argnums"]),
            as_names(given["static_argnames"]), given["in_shardings"], given["out_shardings"],
            given["compiler_options"], self.progress,
        )  # fmt: skip
        result = compiler.compile(lowest.flat, f"compiling at size {at * self.multiple_of}")
        memory = result[1]
        self.compiles += 1
        total = memory.total_bytes
        if total <= self.limit:
            plan = _explain.to_plan(ladder, lowest, self.limit, given["regions"], certified=True)
            self._fitted[at] = compiler.fitted(plan, *result)
        elif total <= (1 + SECOND) * self.limit:
            # the model's lowest plan need not be the compiler's
            other = self._cheapest(at)
            if other is not None:
                total, self._fitted[at] = other.memory.total_bytes, other
        self.totals[at] = total
        self.trials.append(Trial(at * self.multiple_of, total <= self.limit, total, memory.instrument))
        return total

    def fit(self, at: int) -> Fitted:
        """The cheapest plan that is certified at a size that fits."""
        return self._cheapest(at) or self._fitted[at]

    def _cheapest(self, at: int) -> Fitted | None:
        self.progress.stage(f"fitting at size {at * self.multiple_of}")
        step, args, _ = self._ladder(at)
        try:
            found = fit(step, *args, budget=self.limit, max_compiles=2, **self.options)
        except BudgetError:
            self.compiles += 2
            return None
        self.compiles += found.compiles
        dear = self.max_overhead is not None and found.plan.overhead > self.max_overhead
        return None if dear else found


def _predicted(sizes: _Sizes, low: int, high: int, most: int = 6) -> tuple[int, int]:
    """Sizes at which the planned and the plain step are predicted to meet the limit, by straight lines.

    Starts at a small size and goes where the line through the last two predictions meets the limit, until a
    prediction is within `NEAR` of it, or sizes on both sides of it are neighbours.
    """
    limit = sizes.limit
    at = min(high, max(low, 8))
    below, above = low - 1, high + 1
    for _ in range(most):
        smallest = sizes.predict(at)
        below, above = (max(below, at), above) if smallest <= limit else (below, min(above, at))
        if above - below <= 1 or (len(sizes.planned) > 1 and abs(smallest - limit) <= NEAR * limit):
            break
        if len(sizes.planned) == 1:
            following = at // 2 if smallest > limit else at * 8
        else:
            following = _meets(sizes.planned, limit, at * GROWTH)
        following = min(high, max(low, following))
        at = following if below < following < above else (below + above) // 2
    guess, plain = _meets(sizes.planned, limit, high), _meets(sizes.unplanned, limit, high)
    return min(high, max(low, guess)), min(high, max(0, plain))


def _certified(
    sizes: _Sizes, guess: int, low: int, high: int, tolerance: float, most: int
) -> tuple[int, int]:
    """The largest size whose lowest plan compiles within the limit, and the smallest that does not."""
    fitting, refused = low - 1, high + 1
    at, near, repeated = guess, 0, 0
    while sizes.compiles < most:
        total = sizes.measure(at)
        fits = total <= sizes.limit
        fitting, refused = (at, refused) if fits else (fitting, at)
        if refused - fitting <= max(1, int(tolerance * fitting)):
            break
        both = {n: sizes.totals[n] for n in (fitting, refused) if n in sizes.totals}
        repeated = repeated + 1 if len(both) == 2 else 0
        if repeated > 2 and repeated % 2:
            at = (fitting + refused) // 2  # one end of the line moves slowly: halve
            continue
        if len(sizes.totals) == 1:
            # the compiler's number scales the model's line
            ratio = total / sizes.planned[at]
            both = {n: int(ratio * b) for n, b in sizes.planned.items()}
        at = min(high, max(low, _meets(both if len(both) == 2 else sizes.totals, sizes.limit, high)))
        if not fitting < at < refused:
            # the line says that the nearest sizes decide: just inside the bracket, farther each time
            near = max(1, int(tolerance * at), 2 * near)
            at = fitting + near if fits else refused - near
            if not fitting < at < refused:
                at = (fitting + refused) // 2
    return fitting, refused


def _meets(points: Mapping[int, int], limit: int, most: int) -> int:
    """The largest size whose bytes are within `limit`, on the line through the two points nearest to it."""
    if len(points) == 1:
        ((size, total),) = points.items()
        return size if total <= limit else 0
    (a, first), (b, second) = sorted(points.items(), key=lambda item: (abs(item[1] - limit), item[0]))[:2]
    if first == second or (second - first) * (b - a) <= 0:
        return most if min(first, second) <= limit else 0
    return min(most, a + int((limit - first) * (b - a) / (second - first) // 1))
