"""A program of one device among several, and how it becomes one of whole arrays again.

Idea: to run, neighbouring operations of `shard_map` bodies go back into one `shard_map`. What one hands to
another leaves and enters as a residual does in `shard_map`'s own derivative: one part per device along the
first axis, or whole where its type says that all devices hold the same.
Limits: one mesh (see `_one_device`, which makes such programs).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import PartitionSpec

from recoup import _compat
from recoup._compat import Literal, Var

Spec = tuple[tuple[str, ...], ...]  # for each axis of an array the mesh axes that divide it

BARRIERS = frozenset(["recoup_barrier", "optimization_barrier"])


@dataclass(frozen=True, eq=False)
class Shards:
    """How the values of a per-device program are parts of whole arrays.

    Attributes:
      like: one of the step's `shard_map` equations: its mesh and options.
      specs: how values that are seen outside of bodies are divided.
      context: what an operation inside a body is traced under.
    """

    like: Any
    specs: Mapping[Any, Spec]
    context: Any

    def also(self, specs: Mapping[Any, Spec]) -> "Shards":
        """With more values."""
        return replace(self, specs={**self.specs, **specs})

    @property
    def sizes(self) -> Mapping[str, int]:
        """The mesh's axes."""
        sizes: Mapping[str, int] = self.like.params["mesh"].shape
        return sizes

    def closed(self, flat: Any) -> Any:
        """The program as one of whole arrays: a closed jaxpr with its bodies in `shard_map` again."""
        eqns = list(_Grouping(self, flat).equations())
        return _compat.close_jaxpr(
            flat.constvars, flat.invars, flat.outvars, eqns, flat.consts, like=flat.like
        )


def _partition(spec: Spec) -> Any:
    return PartitionSpec(*(names or None for names in spec))  # type: ignore[no-untyped-call]


def rank_of(v: Any) -> int:
    """The number of axes of a value; 0 for what is no array."""
    return len(getattr(v.aval, "shape", ()))


class _Grouping:
    """Puts the operations of bodies back into `shard_map`."""

    def __init__(self, shards: Shards, flat: Any):
        self.shards, self.flat = shards, flat
        self.specs = dict(shards.specs)
        self.home: dict[Any, int] = {}  # of a value made inside: the group that makes it
        self.groups: list[tuple[bool, list[Any]]] = []
        for eqn in flat.eqns:
            inside = self._inside(eqn)
            if not self.groups or self.groups[-1][0] != inside:
                self.groups.append((inside, []))
            self.groups[-1][1].append(eqn)
            if inside:
                self.home.update(dict.fromkeys(eqn.outvars, len(self.groups) - 1))
            if eqn.primitive.name in BARRIERS:
                for v, out in zip(eqn.invars, eqn.outvars, strict=True):
                    if not isinstance(v, Literal) and v in self.specs:
                        self.specs[out] = self.specs[v]

    def _inside(self, eqn: Any) -> bool:
        if _compat.is_manual(eqn):
            return True
        barrier = eqn.primitive.name in BARRIERS
        return barrier and any(v in self.home for v in eqn.invars if not isinstance(v, Literal))

    def equations(self) -> Iterator[Any]:
        """The outer program's equations."""
        away: set[Any] = {v for v in self.flat.outvars if not isinstance(v, Literal)}
        reads = []
        for number, (inside, eqns) in enumerate(self.groups):
            made = {v for eqn in eqns for v in eqn.outvars} if inside else set()
            read = {v: None for eqn in eqns for v in eqn.invars if not isinstance(v, Literal)}
            imported = [v for v in read if v not in made]
            reads.append(imported)
            away.update(v for v in imported if self.home.get(v, number) != number or not inside)
        outer: dict[Any, Any] = {}  # a part without axes, made inside -> the array of all of them
        for (inside, eqns), imported in zip(self.groups, reads, strict=True):
            if inside:
                exported = [v for eqn in eqns for v in eqn.outvars if v in away]
                yield self._mapped(eqns, imported, exported, outer)
            else:
                yield from eqns

    def _mapped(
        self, eqns: Sequence[Any], imported: Sequence[Any], exported: Sequence[Any], outer: dict[Any, Any]
    ) -> Any:
        before, after, invars, outvars, in_specs, out_specs = [], [], [], [], [], []
        for v in imported:
            inner = v
            if v in outer:
                inner = Var(_compat.with_leading(v.aval, 1))
                before.append(_compat.squeeze_eqn(inner, v, eqns[0]))
            invars.append(inner)
            in_specs.append(self._crossing(v, v in outer))
        for v in exported:
            inner = v
            if v not in self.specs and not rank_of(v) and self._axes(v):
                inner = Var(_compat.with_leading(v.aval, 1))
                after.append(_compat.expand_eqn(v, inner, eqns[-1]))
                outer[v] = Var(inner.aval)
            outvars.append(inner)
            out_specs.append(self._crossing(v, v in outer))
        # a barrier may have been recorded under what one of its operands was made under, outside
        context = self.shards.context
        inside = [e if _compat.is_manual(e) else e.replace(ctx=context) for e in (*before, *eqns, *after)]
        body = _compat.open_body(invars, outvars, inside)
        like = self.shards.like
        params = {
            **like.params,
            "jaxpr": body,
            "in_specs": tuple(map(_partition, in_specs)),
            "out_specs": tuple(map(_partition, out_specs)),
        }
        return like.replace(
            invars=[outer.get(v, v) for v in imported],
            outvars=[outer.get(v, v) for v in exported],
            params=params,
            effects=frozenset().union(*(eqn.effects for eqn in eqns)),
        )

    def _axes(self, v: Any) -> tuple[str, ...]:
        """The mesh axes along which devices may hold different values."""
        like = self.shards.like.params
        axes = _compat.varying(v.aval) if like["check_vma"] else like["newly_manual_axes"]
        return tuple(name for name in self.shards.sizes if name in axes)

    def _crossing(self, v: Any, promoted: bool) -> Spec:
        if promoted:
            return (self._axes(v),)
        known: Spec | None = self.specs.get(v)
        if known is not None:
            return known
        axes, rank = self._axes(v), rank_of(v)
        return (axes, *((),) * (rank - 1)) if rank else ()
