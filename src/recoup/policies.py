"""Policies: which intermediate values a region keeps, as data that prints, compares and combines. No JAX.

Idea: a policy is asked about each value that the region's forward pass makes (its operation, bytes, FLOPs and
the name given by `recoup.keep`) and says whether the value is kept for the backward. Combine with `|`, `&`
and `~`. Every value named with `recoup.keep` is kept, unless the policy chooses among names itself.

Limits: a policy sees one operation at a time; what is best for a whole step is what `recoup.plan` finds.
Values inside a `while` loop or a branch that is not taken apart are not offered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from recoup._budget import parse_budget

PRODUCTS = frozenset(["dot_general", "conv_general_dilated", "ragged_dot_general", "scaled_matmul_wrapper"])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that a region could keep.

    Attributes:
      operation: the primitive that makes it, such as "dot_general".
      bytes: what it takes; in a loop, over all steps.
      flops: floating-point operations of making it, as often.
      name: given by `recoup.keep`, if any.
      batched: whether it is a matrix product with batch dimensions.
    """

    operation: str
    bytes: int
    flops: float
    name: str | None = None
    batched: bool = False  # a matrix product with batch dimensions


@dataclass(frozen=True)
class Policy:
    """Base of all policies; combine them with `|` (either keeps), `&` (both keep) and `~` (does not keep)."""

    def keeps(self, value: Candidate) -> bool:
        """Whether the value is kept."""
        raise NotImplementedError

    def parts(self) -> Iterator["Policy"]:
        """The policies that this one is made of, itself included."""
        yield self
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Policy):
                yield from part.parts()

    def __or__(self, other: "Policy") -> "Policy":
        return Either(self, other)

    def __and__(self, other: "Policy") -> "Policy":
        return Both(self, other)

    def __invert__(self) -> "Policy":
        return Not(self)


@dataclass(frozen=True)
class Nothing(Policy):
    """Keeps nothing but what `recoup.keep` names."""

    def keeps(self, value: Candidate) -> bool:
        return False

    def __repr__(self) -> str:
        return "policies.nothing"


@dataclass(frozen=True)
class Everything(Policy):
    """Keeps every value that the backward reads: as without a region."""

    def keeps(self, value: Candidate) -> bool:
        return True

    def __repr__(self) -> str:
        return "policies.everything"


@dataclass(frozen=True)
class Names(Policy):
    """Keeps the values with these names, and no other named ones."""

    wanted: frozenset[str]

    def keeps(self, value: Candidate) -> bool:
        return value.name in self.wanted

    def __repr__(self) -> str:
        return f"policies.names({', '.join(map(repr, sorted(self.wanted)))})"


@dataclass(frozen=True)
class Operations(Policy):
    """Keeps the results of these operations, by their names in a jaxpr."""

    wanted: frozenset[str]

    def keeps(self, value: Candidate) -> bool:
        return value.operation in self.wanted

    def __repr__(self) -> str:
        if self.wanted == PRODUCTS:
            return "policies.products"
        return f"policies.operations({', '.join(map(repr, sorted(self.wanted)))})"


@dataclass(frozen=True)
class Unbatched(Policy):
    """Keeps matrix products without batch dimensions: weights times activations, but not attention scores."""

    def keeps(self, value: Candidate) -> bool:
        return value.operation in PRODUCTS and not value.batched

    def __repr__(self) -> str:
        return "policies.unbatched_products"


@dataclass(frozen=True)
class SizeBetween(Policy):
    """Keeps values of at least `low_bytes` and at most `high_bytes`."""

    low_bytes: int = 0
    high_bytes: int | None = None

    def keeps(self, value: Candidate) -> bool:
        return self.low_bytes <= value.bytes and (self.high_bytes is None or value.bytes <= self.high_bytes)

    def __repr__(self) -> str:
        if self.high_bytes is None:
            return f"policies.at_least({self.low_bytes})"
        return f"policies.at_most({self.high_bytes})"


@dataclass(frozen=True)
class Cost(Policy):
    """Keeps values that take at least so many floating-point operations per byte kept."""

    flops_per_byte: float

    def keeps(self, value: Candidate) -> bool:
        return value.bytes > 0 and value.flops / value.bytes >= self.flops_per_byte

    def __repr__(self) -> str:
        return f"policies.costly({self.flops_per_byte:g})"


@dataclass(frozen=True)
class Either(Policy):
    """Keeps what either of two policies keeps."""

    first: Policy
    second: Policy

    def keeps(self, value: Candidate) -> bool:
        return self.first.keeps(value) or self.second.keeps(value)

    def __repr__(self) -> str:
        return f"({self.first!r} | {self.second!r})"


@dataclass(frozen=True)
class Both(Policy):
    """Keeps what both of two policies keep."""

    first: Policy
    second: Policy

    def keeps(self, value: Candidate) -> bool:
        return self.first.keeps(value) and self.second.keeps(value)

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


@dataclass(frozen=True)
class Not(Policy):
    """Keeps what a policy does not keep."""

    inner: Policy

    def keeps(self, value: Candidate) -> bool:
        return not self.inner.keeps(value)

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


nothing = Nothing()
everything = Everything()
products = Operations(PRODUCTS)
unbatched_products = Unbatched()


def names(*wanted: str) -> Names:
    """Keeps the values that `recoup.keep` (or JAX's `checkpoint_name`) gave one of the names `wanted`.

    Raises:
      TypeError: there are none, or one is no string.
    """
    if not wanted or not all(isinstance(name, str) for name in wanted):
        raise TypeError(f"policies.names takes the names to keep, as strings; got {wanted!r}")
    return Names(frozenset(wanted))


def operations(*wanted: str) -> Operations:
    """Keeps the results of the operations `wanted`, such as "dot_general", "exp" or "scan".

    Raises:
      TypeError: there are none, or one is no string.
    """
    if not wanted or not all(isinstance(name, str) for name in wanted):
        raise TypeError(f"policies.operations takes the operations to keep, as strings; got {wanted!r}")
    return Operations(frozenset(wanted))


def at_most(size: int | str) -> SizeBetween:
    """Keeps values of at most this size: bytes, or a size such as "64KiB"."""
    return SizeBetween(0, _bytes(size))


def at_least(size: int | str) -> SizeBetween:
    """Keeps values of at least this size: bytes, or a size such as "64KiB"."""
    return SizeBetween(_bytes(size), None)


def costly(flops_per_byte: float) -> Cost:
    """Keeps values whose own operation takes at least `flops_per_byte` floating-point operations a byte kept.

    A product of contraction length k in float32 takes k/2 per byte, an elementwise operation 1/4.
    """
    return Cost(float(flops_per_byte))


def chooses_names(policy: Policy) -> bool:
    """Whether `policy` decides about names itself, so that `recoup.keep` alone does not keep.

    Returns:
      True if any of its parts is a choice of names.
    """
    return any(isinstance(part, Names) for part in policy.parts())


def _bytes(size: int | str) -> int:
    budget = parse_budget(size)
    if budget.kind != "bytes":
        raise ValueError(f'a size is bytes, or text such as "64KiB"; got {size!r}')
    return budget.size_bytes
