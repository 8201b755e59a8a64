"""Schedule: the one result type of every planner."""

from dataclasses import dataclass

from recoup._graph import Ints


@dataclass(frozen=True, eq=False)
class Schedule:
    """Computations in the order they run, what the model machine measured of them, and how good they are.

    Attributes:
        order: operation indices in running order, repeats allowed.
        cost: cost of all computations, in the unit of the graph's costs (measured by the machine).
        peak_bytes: largest number of bytes held while any step runs (measured by the machine).
        budget_bytes: the budget that was asked for.
        base_cost: cost of one pass without any recomputation.
        lower_bound: no schedule of this kind (order free or given) within the budget costs less.
        peak_bound_bytes: no schedule at all has a smaller peak.
        optimal: the cost is proved to be the smallest possible.
        method: how the schedule was found, and how it was proved where it was.
        moves: search moves made; with the same seed and this many moves the same schedule is found again.
        seconds: time that it took.
    """

    order: Ints
    cost: float
    peak_bytes: int
    budget_bytes: int
    base_cost: float
    lower_bound: float
    peak_bound_bytes: int
    optimal: bool
    method: str
    moves: int
    seconds: float

    @property
    def extra_cost(self) -> float:
        """Cost of the recomputations alone."""
        return self.cost - self.base_cost

    @property
    def overhead(self) -> float:
        """Extra cost as a share of one full pass: 0.01 is one percent more work."""
        return self.extra_cost / self.base_cost if self.base_cost else 0.0

    @property
    def gap(self) -> float:
        """Distance to the lower bound as a share of one full pass; 0 when proved optimal."""
        if self.optimal or not self.base_cost:
            return 0.0
        return max(0.0, (self.cost - self.lower_bound) / self.base_cost)

    def __str__(self) -> str:
        quality = "optimal" if self.optimal else f"at most {self.gap:.2%} from the optimum"
        return (
            f"Schedule of {len(self.order)} steps: cost {self.cost:g} (+{self.overhead:.4%}, {quality}), "
            f"peak {self.peak_bytes} of {self.budget_bytes} bytes, {self.method}, {self.seconds:.2f} s"
        )
