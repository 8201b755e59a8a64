"""Schedule: the one result type of every planner."""

from dataclasses import dataclass

from recoup._graph import Ints

PROOF = 1e-6  # share of one full pass: bounds come from floating-point linear programs


@dataclass(frozen=True, eq=False)
class Schedule:
    """Computations in the order they run, what the model machine measured of them, and how good they are.

    Attributes:
        order: operation indices in running order, repeats allowed. With an `Offload`, `n + v` fetches the
            value of operation `v` of `n`, and `2 * n + v` is where its store has ended, if moves take time.
        cost: cost of all computations and moves, in the unit of the graph's costs (measured by the machine).
        peak_bytes: largest number of bytes held while any step runs (measured by the machine).
        budget_bytes: the budget that was asked for.
        base_cost: cost of one full pass, every operation once.
        lower_bound: no schedule of this kind (order free or given) within the budget costs less.
        peak_bound_bytes: no schedule at all has a smaller peak.
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
    method: str
    moves: int
    seconds: float

    @property
    def optimal(self) -> bool:
        """No schedule of this kind within the budget is cheaper, proved to `PROOF` of one full pass."""
        return self.cost - self.lower_bound <= PROOF * self.base_cost

    @property
    def extra_cost(self) -> float:
        """Cost beyond one full pass: recomputations, prices of moves, and waits for them."""
        return self.cost - self.base_cost

    @property
    def overhead(self) -> float:
        """Extra cost as a share of one full pass: 0.01 is one percent more work."""
        return self.extra_cost / self.base_cost if self.base_cost else 0.0

    @property
    def gap(self) -> float:
        """Distance to the lower bound as a share of one full pass."""
        return (self.cost - self.lower_bound) / self.base_cost if self.base_cost else 0.0

    def __str__(self) -> str:
        quality = "optimal" if self.optimal else f"at most {self.gap:.2%} from the optimum"
        return (
            f"Schedule of {len(self.order)} steps: cost {self.cost:g} (+{self.overhead:.4%}, {quality}), "
            f"peak {self.peak_bytes} of {self.budget_bytes} bytes, {self.method}, {self.seconds:.2f} s"
        )
