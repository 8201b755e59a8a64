"""A step whose arrays are divided by `shard_map`, seen as one device's program.

Idea: the body of `shard_map` is what one device runs. Where all of them divide one mesh, and what stands
between them (an optimizer's update) works on each device's part alone, the whole step is one program of
parts: bodies are inlined, and every array has the shape that it has on a device. Planning and the memory
model see that program, so a budget for a device is met by a plan for a device, a gradient inside `shard_map`
is planned like any other, and a value of a forward body can be computed again inside the backward one.
Limits: one mesh, all of its axes manual; operations outside are elementwise, reductions, or on arrays that
every device holds whole. Other steps stay as they are, each `shard_map` one operation.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from recoup import _compat
from recoup._compat import DropVar, Literal, Var
from recoup._inline import Flat, flatten
from recoup._shards import BARRIERS, Shards, Spec, rank_of

_ELEMENTWISE = frozenset(
    [
        "abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type",
        "copy", "copy_p", "cos", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
        "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "log", "log1p", "logistic",
        "lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "one_minus_square",
        "or", "pow", "real", "recoup_keep", "reduce_precision", "rem", "round", "rsqrt", "select_n",
        "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"
    ]
)  # fmt: skip
_REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"])


def open_shards(flat: Flat, *, dissolve_regions: bool = False) -> Flat:
    """The program of one device, or `flat` itself where that is not known of all its operations."""
    maps = [eqn for eqn in flat.eqns if eqn.primitive.name == "shard_map"]
    if not maps or any(_kind(eqn) != _kind(maps[0]) for eqn in maps) or not _whole_mesh(maps[0]):
        return flat
    if any(_compat.open_jaxpr(eqn.params["jaxpr"])[1] for eqn in maps):
        return flat
    specs = _Division(flat, maps[0].params["mesh"].shape).find()
    return flat if specs is None else _Opening(flat, maps[0], specs, dissolve_regions).run() or flat


def _kind(eqn: Any) -> Any:
    return eqn.params["mesh"], eqn.params["newly_manual_axes"], eqn.params["check_vma"]


def _whole_mesh(eqn: Any) -> bool:
    sizes = eqn.params["mesh"].shape
    return all(size == 1 or name in eqn.params["newly_manual_axes"] for name, size in sizes.items())


def _spec(partition: Any, rank: int) -> Spec:
    named = [(n,) if isinstance(n, str) else tuple(n or ()) for n in partition]
    return (*named, *((),) * (rank - len(named)))


def _is_elementwise(eqn: Any) -> bool:
    """Elementwise, on arrays of one shape and scalars."""
    shape = getattr(eqn.outvars[0].aval, "shape", None) if len(eqn.outvars) == 1 else None
    scalars = ((), shape)
    known = eqn.primitive.name in _ELEMENTWISE and bool(shape)
    return known and all(getattr(v.aval, "shape", None) in scalars for v in eqn.invars)


def _spreads_scalar(eqn: Any) -> bool:
    return eqn.primitive.name == "broadcast_in_dim" and len(eqn.invars) == 1 and rank_of(eqn.invars[0]) == 0


class _Division:
    """How each value outside of bodies is divided, as far as that follows from where it enters or leaves."""

    def __init__(self, flat: Flat, sizes: Mapping[str, int]):
        self.flat, self.sizes = flat, sizes
        self.outside = [eqn for eqn in flat.eqns if eqn.primitive.name != "shard_map"]
        self.specs: dict[Any, Spec] = {}
        self.contradiction = False

    def find(self) -> dict[Any, Spec] | None:
        for eqn in self.flat.eqns:
            if eqn.primitive.name == "shard_map":
                for v, partition in zip(eqn.invars, eqn.params["in_specs"], strict=True):
                    self._set(v, _spec(partition, rank_of(v)))
                for v, partition in zip(eqn.outvars, eqn.params["out_specs"], strict=True):
                    self._set(v, _spec(partition, rank_of(v)))
        for v in self.flat.constvars:
            self._set(v, ((),) * rank_of(v))
        self._spread()
        for v in self.flat.invars:  # nothing says how they are divided: every device has them whole
            self._set(v, self.specs.get(v, ((),) * rank_of(v)))
        self._spread()
        known = all(
            v in self.specs for eqn in self.outside for v in eqn.outvars if not isinstance(v, DropVar)
        )
        return None if self.contradiction or not known else self.specs

    def _set(self, v: Any, spec: Spec) -> None:
        if isinstance(v, Literal):
            self.contradiction |= any(spec) and bool(rank_of(v))
        elif self.specs.setdefault(v, spec) != spec:
            self.contradiction = True

    def _spread(self) -> None:
        while not self.contradiction:
            before = len(self.specs)
            for eqn in (*self.outside, *reversed(self.outside)):
                self._through(eqn)
            if len(self.specs) == before:
                return

    def _through(self, eqn: Any) -> None:
        specs = self.specs
        ins = [v for v in eqn.invars if not isinstance(v, Literal)]
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        if not outs:
            return
        if eqn.primitive.name in BARRIERS:
            for v, out in zip(eqn.invars, eqn.outvars, strict=True):
                if v in specs and not isinstance(v, Literal):
                    self._set(out, specs[v])
        elif _is_elementwise(eqn):
            shaped = [v for v in (*ins, *outs) if rank_of(v)]
            for v in ins:
                if not rank_of(v):
                    self._set(v, ())
            known = next((specs[v] for v in shaped if v in specs), None)
            if known is not None:
                for v in shaped:
                    self._set(v, known)
        elif eqn.primitive.name in _REDUCTIONS and ins and ins[0] in specs:
            left = tuple(s for d, s in enumerate(specs[ins[0]]) if d not in eqn.params["axes"])
            self._set(outs[0], left)
        elif _spreads_scalar(eqn):
            return  # as its readers want it
        elif rank_of(outs[0]) and eqn.primitive.name in ("sharding_constraint", "reshard"):
            self.contradiction = True
        elif all(v in specs and not any(specs[v]) for v in ins):
            for v in outs:
                self._set(v, ((),) * rank_of(v))


class _Opening:
    """Builds the program of one device."""

    def __init__(self, flat: Flat, like: Any, specs: Mapping[Any, Spec], dissolve_regions: bool):
        self.flat, self.like, self.outer = flat, like, specs
        self.dissolve_regions = dissolve_regions
        self.sizes = like.params["mesh"].shape
        self.env: dict[Any, Any] = {}
        self.eqns: list[Any] = []
        self.specs: dict[Any, Spec] = {}
        self.context: Any = None  # of an operation inside a body
        self.entered = self._entering_types()

    def run(self) -> Flat | None:
        flat = self.flat
        if self.context is None:  # there is nothing in them
            return None
        constvars = tuple(self._local(v) for v in flat.constvars)
        invars = tuple(self._local(v) for v in flat.invars)
        for eqn in flat.eqns:
            if eqn.primitive.name == "shard_map":
                if not self._inline(eqn):
                    return None
            else:
                self._outside(eqn)
        outvars = tuple(self._read(v) for v in flat.outvars)
        shards = Shards(self.like, self.specs, self.context)
        return Flat(constvars, flat.consts, invars, outvars, tuple(self.eqns), flat.like, shards)

    def _entering_types(self) -> dict[Any, Any]:
        """The types that values have inside the first body that they enter."""
        found: dict[Any, Any] = {}
        for eqn in self.flat.eqns:
            if eqn.primitive.name == "shard_map":
                inner, _ = _compat.open_jaxpr(eqn.params["jaxpr"])
                if self.context is None and inner.eqns:
                    self.context = inner.eqns[0].ctx
                for v, local in zip(eqn.invars, inner.invars, strict=True):
                    if not isinstance(v, Literal):
                        found.setdefault(v, local.aval)
        return found

    def _local(self, v: Any) -> Any:
        if v not in self.env:
            spec = self.outer[v]
            aval = self.entered.get(v)
            if aval is None:
                shape = self._part(v.aval.shape, spec) if spec else None
                aval = v.aval if not any(spec) else jax.core.ShapedArray(shape, v.aval.dtype)
            self.env[v] = Var(aval)
            self.specs[self.env[v]] = spec
        return self.env[v]

    def _part(self, shape: Sequence[int], spec: Spec) -> tuple[int, ...]:
        return tuple(
            size // math.prod(self.sizes[n] for n in names) for size, names in zip(shape, spec, strict=True)
        )

    def _read(self, v: Any) -> Any:
        return v if isinstance(v, Literal) else self.env[v]

    def _outside(self, eqn: Any) -> None:
        invars = [self._read(v) for v in eqn.invars]
        outvars = [v if isinstance(v, DropVar) else self._local(v) for v in eqn.outvars]
        if _spreads_scalar(eqn) and any(self.outer[eqn.outvars[0]]):
            # of a part's shape, so it is computed where parts are
            params = {**eqn.params, "shape": tuple(outvars[0].aval.shape), "sharding": None}
            eqn = eqn.replace(params=params, ctx=self.context)
        self.eqns.append(eqn.replace(invars=invars, outvars=outvars))

    def _inline(self, eqn: Any) -> bool:
        body = flatten(_compat.as_closed(eqn.params["jaxpr"]), dissolve_regions=self.dissolve_regions)
        if body.consts:
            return False
        env: dict[Any, Any] = {}
        for v, var in zip(eqn.invars, body.invars, strict=True):
            env[var] = self._read(v)
            if not isinstance(v, Literal) and _compat.varying(env[var].aval) != _compat.varying(var.aval):
                return False
        for inner in body.eqns:
            invars = [v if isinstance(v, Literal) else env[v] for v in inner.invars]
            outvars = [v if isinstance(v, DropVar) else Var(v.aval) for v in inner.outvars]
            env.update(zip(inner.outvars, outvars, strict=True))
            inner = _compat.under(eqn, inner)
            self.eqns.append(inner.replace(invars=invars, outvars=outvars, effects=_compat.effects(inner)))
        for out, v in zip(eqn.outvars, body.outvars, strict=True):
            if isinstance(out, DropVar):
                continue
            local = v if isinstance(v, Literal) else env[v]
            spec = self.outer[out]
            if isinstance(local, Literal) or self.specs.setdefault(local, spec) != spec:
                copy = Var(v.aval)  # it leaves in two ways
                new = _compat.new_eqn([local], [copy], jax.lax.copy_p, {}, eqn)
                self.eqns.append(new.replace(ctx=self.context))
                local, self.specs[copy] = copy, spec
            self.env[out] = local
        return True
