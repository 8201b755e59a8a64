"""Graph: operations with a cost and one output of so many bytes, in a legal order. No JAX.

The problem every planner of `recoup._solve` works on. Operation `v` may run once its operands (the values it
reads) are in memory; it may run again at any time for the same cost; each use reads the most recent
computation of its operand. Arrays and compressed adjacency inside, so that building a graph of 10^5
operations is linear.

Limits: one output per operation (split an operation with several into zero-cost projections), costs add up
(operations run one after another; only moves to another store overlap them), and nothing may be updated in
place.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recoup.errors import PlanError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Graph:
    """A planning problem: what each operation costs, how many bytes its result takes, and who reads what.

    Args:
        costs: cost of each operation (any unit that adds up: seconds, FLOPs), finite and not negative.
        sizes: bytes of each operation's output, integers, not negative.
        edges: pairs `(u, v)`: operation `v` reads the output of `u`, with `u < v` (operations are listed in a
            legal order). A pair given twice counts once.

    Attributes:
        operand_starts, operand_ids: what each operation reads, in one array: those of operation `v` are
            `operand_ids[operand_starts[v] : operand_starts[v + 1]]`.
        user_starts, user_ids: who reads each operation's output, likewise.

    Raises:
        PlanError: a length, a value or an edge is not as above; the message names the first offender.
    """

    costs: Floats
    sizes: Ints
    edges: Ints
    operand_starts: Ints = field(init=False, repr=False)
    operand_ids: Ints = field(init=False, repr=False)
    user_starts: Ints = field(init=False, repr=False)
    user_ids: Ints = field(init=False, repr=False)

    def __init__(
        self,
        costs: Sequence[float] | Floats,
        sizes: Sequence[int] | Ints,
        edges: Iterable[Sequence[int]] | Ints,
    ) -> None:
        cost_array = np.array(costs, dtype=np.float64).reshape(-1)
        size_array = _integers(sizes, "sizes").reshape(-1)
        pairs = edges if isinstance(edges, np.ndarray) else [tuple(e) for e in edges]
        edge_array = _integers(pairs, "edges").reshape(-1, 2)
        count = len(cost_array)
        if len(size_array) != count:
            raise PlanError(
                f"a graph of {count} costs has {len(size_array)} sizes; give one size per operation"
            )
        _first(~np.isfinite(cost_array) | (cost_array < 0), "the cost of operation {} is {}", cost_array)
        _first(size_array < 0, "the size of operation {} is {} bytes", size_array)
        bad = np.any((edge_array < 0) | (edge_array >= count), axis=1) | (
            edge_array[:, 0] >= edge_array[:, 1]
        )
        _first(
            bad, f"edge {{}} is {{}}: it needs 0 <= u < v < {count}, operations in a legal order", edge_array
        )
        if len(edge_array):
            edge_array = np.unique(edge_array, axis=0)
        operand_starts, operand_ids = _adjacency(edge_array[:, 1], edge_array[:, 0], count)
        user_starts, user_ids = _adjacency(edge_array[:, 0], edge_array[:, 1], count)
        fields = {
            "costs": cost_array,
            "sizes": size_array,
            "edges": edge_array,
            "operand_starts": operand_starts,
            "operand_ids": operand_ids,
            "user_starts": user_starts,
            "user_ids": user_ids,
        }
        for name, array in fields.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def total_cost(self) -> float:
        """Cost of one full pass: every operation once."""
        return float(self.costs.sum())

    def operands(self, op: int) -> Ints:
        """Indices of the operations whose outputs `op` reads, ascending."""
        return self.operand_ids[self.operand_starts[op] : self.operand_starts[op + 1]]

    def users(self, op: int) -> Ints:
        """Indices of the operations that read the output of `op`, ascending."""
        return self.user_ids[self.user_starts[op] : self.user_starts[op + 1]]

    def operand_lists(self) -> list[list[int]]:
        """Operands of every operation as plain lists, for loops in Python."""
        return _lists(self.operand_starts, self.operand_ids)

    def user_lists(self) -> list[list[int]]:
        """Users of every operation as plain lists, for loops in Python."""
        return _lists(self.user_starts, self.user_ids)

    def working_sets_bytes(self) -> Ints:
        """Operands plus output of each operation, in bytes: what must be in memory while it runs."""
        read = np.zeros(len(self), dtype=np.int64)
        np.add.at(read, self.edges[:, 1], self.sizes[self.edges[:, 0]])
        return read + self.sizes


@dataclass(frozen=True, eq=False)
class Offload:
    """Another store that values may be moved to: what moving each costs, and how fast the link there is.

    A fetch brings a value back without its operands; a value that is ever fetched has been stored, once. What
    is in the other store does not count towards the budget. A move costs by itself, by the time it takes on a
    link, or both:

    - **Without a rate** (`bytes_per_cost` infinite) a move takes no time. The store is implied: it happens
      while the first computation of the value is in memory, and is paid at the first fetch.
    - **With a rate** there is one link each way, both at once, each moving one value after the other beside
      the computation. A schedule then says where each store has ended and where each fetch begins. A store
      starts when its value is computed and the link is free, in the order in which stores end; the value
      stays in memory until there, and the next computation waits if the link is not done. A fetch takes
      memory from where it begins; it waits for the link, and its first reader waits for it. The time of
      moves costs nothing but these waits: without prices, a schedule costs the time at which its last
      computation ends.

    Args:
        stores: cost of storing each operation's output, in the graph's unit; infinite where it may not move.
        fetches: cost of fetching it back, each time; infinite likewise.
        bytes_per_cost: rate of the link, each way: bytes in the time of one unit of the graph's costs (bytes
            per second where costs are seconds).
    """

    stores: Floats
    fetches: Floats
    bytes_per_cost: float = math.inf

    def __init__(
        self,
        stores: Sequence[float] | Floats,
        fetches: Sequence[float] | Floats,
        bytes_per_cost: float = math.inf,
    ) -> None:
        for name, values in (("stores", stores), ("fetches", fetches)):
            array = np.array(values, dtype=np.float64).reshape(-1)
            _first(~(array >= 0), f"{name}: the cost of moving value {{}} is {{}}", array)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if len(self.stores) != len(self.fetches):
            raise PlanError(f"{len(self.stores)} costs of stores and {len(self.fetches)} of fetches")
        if not bytes_per_cost > 0:
            raise PlanError(f"bytes_per_cost={bytes_per_cost}: a rate is above 0")
        object.__setattr__(self, "bytes_per_cost", float(bytes_per_cost))

    @classmethod
    def per_byte(cls, graph: Graph, cost_per_byte: float, *, smallest_bytes: int = 1) -> "Offload":
        """Every value of at least `smallest_bytes` may move, each way at the same cost per byte."""
        costs = np.where(graph.sizes >= smallest_bytes, graph.sizes * cost_per_byte, np.inf)
        return cls(costs, costs)

    @classmethod
    def link(cls, graph: Graph, bytes_per_cost: float, *, smallest_bytes: int = 1) -> "Offload":
        """Every value of at least `smallest_bytes` may move, at nothing but its time on the link."""
        costs = np.where(graph.sizes >= smallest_bytes, 0.0, np.inf)
        return cls(costs, costs, bytes_per_cost)

    @property
    def timed(self) -> bool:
        """Whether moves take time on a link."""
        return self.bytes_per_cost < math.inf

    @property
    def movable(self) -> NDArray[np.bool_]:
        """Which values may be moved."""
        return np.isfinite(self.stores) & np.isfinite(self.fetches)


def _integers(values: object, name: str) -> Ints:
    array = np.array(values)
    if array.size and array.dtype.kind not in "iu":
        if array.dtype.kind != "f" or not np.all(array == np.floor(array)):
            raise PlanError(f"{name} must be integers, not {array.dtype}")
        # float64 holds integers to 2**53 exactly; a larger one may already have been rounded
        if np.any(np.abs(array) > 2**53):
            raise PlanError(f"{name} given as floats above 2**53 are not exact; give integers")
    return array.astype(np.int64)


def _first(bad: NDArray[np.bool_], message: str, values: NDArray[np.generic]) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        raise PlanError(message.format(index, values[index].tolist()))


def _adjacency(keys: Ints, values: Ints, count: int) -> tuple[Ints, Ints]:
    by_key = np.lexsort((values, keys))
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=starts[1:])
    return starts, values[by_key]


def _lists(starts: Ints, ids: Ints) -> list[list[int]]:
    bounds, flat = starts.tolist(), ids.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]
