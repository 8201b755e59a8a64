"""A step traced to one flat jaxpr, and that jaxpr as a Program.

Idea: `jax.make_jaxpr` of the whole step holds forward, backward and optimizer; nothing depends on how the
gradient was taken.
Limits: tracing runs the step's Python once, as `jax.jit` does.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from recoup import _compat, _cost
from recoup._arguments import adapt
from recoup._compat import Literal
from recoup._inline import Flat, flatten
from recoup._one_device import open_shards
from recoup._planner.machine import execute
from recoup._program import ARGUMENT, CONSTANT, NAMINGS, Op, Program, Value

ELEMENTWISE_EXTRA = frozenset(
    [
        "broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "expand_dims", "select_n",
        "iota", "copy", "stop_gradient", "name", "bitcast_convert_type", "real", "imag", "slice", "rev",
        "pad"
    ]
)  # fmt: skip
HEAVY = frozenset(
    [
        "dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "fft", "cholesky", "lu",
        "qr", "eigh", "svd", "triangular_solve", "custom_call", "remat2", "checkpoint", "shard_map",
        "ragged_dot", "scaled_matmul"
    ]
)  # fmt: skip
# The compiler fuses these into one reader, but does not compute them again for a second one.
DEAR = frozenset(
    [
        "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "erf_inv", "sin", "cos",
        "tan", "pow", "rsqrt", "sqrt", "cbrt", "div", "rem", "atan2", "broadcast_in_dim",
    ]
)  # fmt: skip
# What all devices take part in. A gather may run again, for a price, where all of them surely do.
COLLECTIVES = frozenset(
    [
        "psum", "psum_invariant", "pmin", "pmax", "all_to_all", "ragged_all_to_all", "ppermute", "psend",
        "precv", "reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter", "pgather"
    ]
)  # fmt: skip
# Repeated, these would exchange data between devices again, run a loop of unknown length, or undo a region's
# own plan.
NEVER_REPEATED = COLLECTIVES | frozenset(
    [
        "while", "shard_map", "remat2", "checkpoint", "custom_call", "pure_callback",
        "optimization_barrier", "recoup_barrier", "infeed", "outfeed", "pallas_call"
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A traced step: the flat jaxpr, how to read arguments into it and results out of it, and its Program."""

    flat: Flat
    program: Program
    in_tree: Any
    out_tree: Any
    in_avals: tuple[Any, ...]
    argument_names: tuple[str, ...]
    donated: tuple[bool, ...]


def trace(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    donate_argnums: Sequence[int] = (),
    dissolve_regions: bool = False,
) -> Traced:
    """Traces `step`; nothing runs on a device. Arguments may be arrays or `jax.ShapeDtypeStruct`."""
    _check_numbers(step, (*static_argnums, *donate_argnums), static_argnames)
    bound = bind_static(step, args, kwargs or {}, static_argnums, static_argnames)
    leaves, in_tree = jax.tree.flatten((bound.args, bound.kwargs))
    paths = jax.tree_util.tree_flatten_with_path((bound.args, bound.kwargs))[0]
    names = tuple(_argument_name(path, bound.positions) for path, _ in paths)
    donated = _donated(bound, donate_argnums)

    def flat_fun(*flat_args: Any) -> Any:
        positional, named = jax.tree.unflatten(in_tree, flat_args)
        out = bound.fun(*positional, **named)
        _check_results(step, out)
        return out

    # JAX's own errors name the step and its line.
    own = inspect.signature(flat_fun)
    named_fun: Any = functools.update_wrapper(flat_fun, step) if hasattr(step, "__code__") else flat_fun
    named_fun.__signature__ = own
    closed, out_shape = _compat.make_jaxpr(named_fun)(*leaves)
    flat = flatten(closed, dissolve_regions=dissolve_regions)
    flat = open_shards(flat, dissolve_regions=dissolve_regions)
    if flat.shards is None:
        given = zip(flat.invars, (getattr(leaf, "sharding", None) for leaf in leaves), strict=True)
        flat = replace(flat, placed={v: s for v, s in given if _compat.is_divided(s)})
    out_tree = jax.tree.structure(out_shape)
    program = to_program(flat, names, donated)
    avals = tuple(v.aval for v in flat.invars)
    return Traced(flat, program, in_tree, out_tree, avals, names, donated)


@dataclass(frozen=True)
class Bound:
    """A call as a function of arrays: its static arguments are taken out, and what is no array is fixed.

    `positions` are the original positions of `args`. `finish` turns a result of `fun` into the step's own;
    `adapted` says whether that, or the arguments, needed more than taking out the static ones.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: tuple[int, ...]
    finish: Callable[[Any], Any]
    adapted: bool
    updates: bool

    def out_shardings(self, given: Any) -> Any:
        """`out_shardings` of the step as those of `fun`, which may also return the state of objects."""
        return (given, None) if self.updates else given


def bind_static(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static_argnums: Sequence[int],
    static_argnames: Sequence[str],
) -> Bound:
    """Fixes the static arguments, by position or by name, as `jax.jit` reads them."""
    names = set(static_argnames)
    static = {n % len(args) if n < 0 else n for n in static_argnums} if args else set()
    if names:
        static |= _named_positions(step, names, len(args))
    positions = tuple(i for i in range(len(args)) if i not in static)
    fixed_kwargs = {k: v for k, v in kwargs.items() if k in names}

    def fun(*dynamic: Any, **named: Any) -> Any:
        full = list(args)
        for position, value in zip(positions, dynamic, strict=True):
            full[position] = value
        return step(*full, **named, **fixed_kwargs)

    fun.__name__ = getattr(step, "__name__", "step")
    dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in names}
    made = adapt(fun, [args[i] for i in positions], dynamic_kwargs)
    return Bound(made.fun, made.args, made.kwargs, positions, made.finish, made.changed, made.updates)


def _parameters(step: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return None


def _check_numbers(step: Callable[..., Any], numbers: Sequence[int], names: Sequence[str]) -> None:
    """Raises for positions and names that the step cannot have; `jax.jit` does too."""
    parameters = _parameters(step)
    if parameters is None:
        return
    kinds = {p.kind for p in parameters}
    count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    wrong = [n for n in numbers if not -count <= n < count]
    label = getattr(step, "__name__", "step")
    if wrong and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ValueError(
            f"static_argnums or donate_argnums name position {wrong[0]}, but {label} takes {count} "
            "positional arguments"
        )
    known = {p.name for p in parameters}
    unknown = [n for n in names if n not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(f"static_argnames names {unknown[0]!r}, but {label} has no argument of that name")


def _check_results(step: Callable[..., Any], out: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        array = hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__")
        if not array and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(
                f"{getattr(step, '__name__', 'step')} returns a {type(leaf).__name__} at "
                f"result{jax.tree_util.keystr(path)}: a step returns arrays (or trees of them); return it "
                "from the function around the step"
            )


def _named_positions(step: Callable[..., Any], names: set[str], count: int) -> set[int]:
    parameters = _parameters(step) or []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {i for i, name in enumerate(positional[:count]) if name in names}


def _donated(bound: Bound, donate_argnums: Sequence[int]) -> tuple[bool, ...]:
    flags: list[bool] = []
    for position, arg in zip(bound.positions, bound.args, strict=True):
        flags += [position in donate_argnums] * len(jax.tree.leaves(arg))
    return (*flags, *([False] * len(jax.tree.leaves(bound.kwargs))))


def _argument_name(path: Sequence[Any], positions: Sequence[int]) -> str:
    where, which, *rest = path
    if where.idx == 0:
        return f"args[{positions[which.idx]}]" + jax.tree_util.keystr(tuple(rest))
    return str(which.key) + jax.tree_util.keystr(tuple(rest))


def as_numbers(numbers: Sequence[int] | int, count: int = 0) -> tuple[int, ...]:
    """`donate_argnums` or `static_argnums` as a tuple; of `count` arguments, negative ones from the end."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return tuple(n + count if n < 0 <= n + count else n for n in listed)


def as_names(names: Sequence[str] | str) -> tuple[str, ...]:
    """`static_argnames` as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def to_program(flat: Flat, names: Sequence[str] = (), donated: Sequence[bool] = ()) -> Program:
    """The flat jaxpr as a Program: operation i is equation i; values in the order in which they appear."""
    values: list[Value] = []
    index: dict[Any, int] = {}

    def add(var: Any, producer: int, name: str = "", copies: int = 1) -> int:
        index[var] = len(values)
        values.append(Value(copies * _compat.aval_bytes(var.aval), producer, _text(var.aval), name))
        return index[var]

    constants = tuple(add(v, CONSTANT) for v in flat.constvars)
    inputs = tuple(
        add(v, ARGUMENT, names[i] if i < len(names) else f"args[{i}]") for i, v in enumerate(flat.invars)
    )
    # Arguments, and what is only moved: weights that a constraint may gather from so many parts.
    parts = {v: _compat.parts_of(sharding) for v, sharding in flat.placed.items()}
    given: dict[int, int | None] = {index[v]: parts.get(v) for v in (*flat.constvars, *flat.invars)}
    sources: dict[int, str] = {}
    ops = []
    for i, eqn in enumerate(flat.eqns):
        reads = tuple(dict.fromkeys(index[v] for v in eqn.invars if not isinstance(v, Literal)))
        label = str(eqn.params["name"]) if eqn.primitive.name in NAMINGS else ""
        moved = eqn.primitive.name in _cost.MOVES_DATA and len(reads) == 1 and reads[0] in given
        received, copies = _cost.constraint_bytes(eqn, given[reads[0]]) if moved else (0, 1)
        writes = tuple(add(v, i, label, copies) for v in eqn.outvars)
        if "barrier" in eqn.primitive.name:
            for v, w in zip(eqn.invars, writes, strict=True):
                if not isinstance(v, Literal) and index[v] in given:
                    given[w] = given[index[v]]
        elif moved:
            given.update(dict.fromkeys(writes, given[reads[0]]))
        op = _op(eqn, reads, writes, sources)
        if received:
            # sizes and costs are those of all devices together, and the result is not fused into its readers
            price = op.cost + _cost.LINK_FLOPS_PER_BYTE * received * copies
            op = replace(op, cost=price, fusible=False, gathered_bytes=received)
        ops.append(op)
    outputs = tuple(index[v] for v in flat.outvars if not isinstance(v, Literal))
    kept = frozenset(inputs[i] for i, flag in enumerate(donated) if flag)
    return Program(tuple(ops), tuple(values), inputs, constants, outputs, kept)


def _op(eqn: Any, reads: tuple[int, ...], writes: tuple[int, ...], sources: dict[int, str]) -> Op:
    name = eqn.primitive.name
    # A trace shares one traceback among the equations of a line: reading it is slow, so it is read once.
    key = id(eqn.source_info.traceback)
    if key not in sources:
        frame = _compat.user_frame(eqn)
        sources[key] = f"{frame.file}:{frame.line} ({frame.function})" if frame else ""
    heavy, dear = name in HEAVY, name in DEAR
    fusible = not heavy and (name in ELEMENTWISE_EXTRA or _elementwise(eqn))
    return Op(
        name=name,
        reads=reads,
        writes=writes,
        flops=_cost.eqn_flops(eqn),
        cost=_cost.price(eqn, fused=fusible and not dear),
        pure=not (_compat.effects(eqn) or name in NEVER_REPEATED or _stays_kept(eqn) or _exchanges(eqn)),
        fusible=fusible,
        heavy=heavy,
        dear=dear,
        source=sources[key],
        scope=str(eqn.source_info.name_stack),
        workspace_bytes=_workspace(eqn) if heavy else 0,
        gathered_bytes=_cost.gathered_bytes(eqn),
        detail=_detail(eqn),
    )


def _stays_kept(eqn: Any) -> bool:
    """What a region keeps because the user says so, by name or policy; its results have no name there."""
    return eqn.primitive.name == "recoup_keep" and bool(eqn.params["kept"] and eqn.params["name"])


def _exchanges(eqn: Any, branch: bool = False) -> bool:
    """Whether what is inside exchanges data between devices in a way that must not happen twice.

    A gather in a branch or a `while` loop is such a one: not every device may get there.
    """
    branch = branch or eqn.primitive.name in ("cond", "while")
    return any(
        inner.primitive.name in COLLECTIVES
        or (branch and inner.primitive.name in _cost.GATHERS)
        or _exchanges(inner, branch)
        for body in _cost.sub_jaxprs(eqn)
        for inner in _compat.open_jaxpr(body)[0].eqns
    )


def _workspace(eqn: Any) -> int:
    """The most that the inside of a loop, branch or region holds at once."""
    bodies = [to_program(flatten(body)) for body in _cost.sub_jaxprs(eqn)]
    return max((execute(body, range(len(body.ops))).peak_bytes for body in bodies), default=0)


def _elementwise(eqn: Any) -> bool:
    """Every operand has the result's shape, up to axes of size 1, or is a scalar; positions are not mixed."""
    name = eqn.primitive.name
    if name in ("transpose", "dynamic_slice", "gather", "concatenate", "random_bits", "threefry2x32"):
        return False
    if name.startswith(("reduce", "cum", "scatter", "arg", "select_and", "dynamic_update")):
        return False
    if len(eqn.outvars) != 1 or eqn.effects or _cost.sub_jaxprs(eqn):
        return False
    shape = getattr(eqn.outvars[0].aval, "shape", None)
    if shape is None:
        return False
    return all(_spreads(getattr(v.aval, "shape", None), shape) for v in eqn.invars)


def _spreads(shape: Any, onto: tuple[int, ...]) -> bool:
    if shape == () or shape == onto:
        return True
    return (
        shape is not None
        and len(shape) == len(onto)
        and all(a in (1, b) for a, b in zip(shape, onto, strict=True))
    )


def _detail(eqn: Any) -> str:
    parts = []
    for key in (
        "dimension_numbers",
        "window_strides",
        "axes",
        "axis",
        "permutation",
        "broadcast_dimensions",
        "name",
    ):
        if key in eqn.params:
            parts.append(str(eqn.params[key]))
    return ";".join(parts)


_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
    "uint32": "u32", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "uint64": "u64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def _text(aval: Any) -> str:
    shape = getattr(aval, "shape", None)
    if shape is None:
        return str(aval)
    name = str(getattr(aval, "dtype", "?"))
    return f"{_SHORT.get(name, name)}[{','.join(str(d) for d in shape)}]"
