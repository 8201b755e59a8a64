"""The only file that touches JAX's private or moving names.

Each function says which names moved between the supported versions (JAX 0.10.2 and 0.12) and gives one
meaning to both.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jec
from jax._src import source_info_util
from jax._src.interpreters import mlir as mlir_internal
from jax._src.interpreters import partial_eval

Var = jec.Var
Literal = jec.Literal
JaxprEqn = jec.JaxprEqn
DropVar = jec.DropVar

JAX_VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3])

# `ClosedJaxpr` is `Jaxpr` itself from 0.12 on: a jaxpr carries its constants.
JAXPR_HOLDS_CONSTS = "consts" in dir(jec.Jaxpr)

# XLA before JAX 0.12 drops optimization barriers on CPU before its last common-subexpression elimination.
BARRIERS_NEED_OPTION = JAX_VERSION < (0, 12)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr and its constants, of either a `ClosedJaxpr` or an open `Jaxpr`."""
    if JAXPR_HOLDS_CONSTS:
        return jaxpr, tuple(jaxpr.consts)
    if isinstance(jaxpr, jec.ClosedJaxpr):
        return jaxpr.jaxpr, tuple(jaxpr.consts)
    return jaxpr, ()


def close_jaxpr(
    constvars: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    consts: Sequence[Any],
    like: Any = None,
) -> Any:
    """A closed jaxpr of these parts. `like` gives the names of arguments and results for error messages."""
    effects = frozenset().union(*(eqn.effects for eqn in eqns)) if eqns else frozenset()
    info = None
    if like is not None:
        inner, _ = open_jaxpr(like)
        if len(inner.invars) == len(invars) and len(inner.outvars) == len(outvars):
            info = inner.debug_info
    if JAXPR_HOLDS_CONSTS:
        return jec.Jaxpr(
            list(constvars),
            list(invars),
            list(outvars),
            list(eqns),
            effects,
            debug_info=info,
            consts=list(consts),
        )
    jaxpr = jec.Jaxpr(list(constvars), list(invars), list(outvars), list(eqns), effects, debug_info=info)
    return jec.ClosedJaxpr(jaxpr, list(consts))


def const_vars(jaxpr: Any) -> Sequence[Any]:
    """The variables that stand for the constants of `open_jaxpr(...)[0]`."""
    return tuple(jaxpr.constvars)


def eval_jaxpr(closed: Any, *args: Any) -> list[Any]:
    """Evaluates a closed jaxpr, keeping the source lines and name stacks of its equations."""
    jaxpr, consts = open_jaxpr(closed)
    return list(jax.core.eval_jaxpr(jaxpr, consts, *args))


def dce_jaxpr(closed: Any, used: Sequence[bool]) -> Any:
    """Dead code removed, inside loops and calls too; all inputs stay."""
    jaxpr, consts = open_jaxpr(closed)
    kept, _ = partial_eval.dce_jaxpr(jaxpr, list(used), instantiate=True)
    if JAXPR_HOLDS_CONSTS:
        return kept if kept.consts or not consts else kept.with_consts(list(consts))
    return jec.ClosedJaxpr(kept, list(consts))


class Frame(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str


def user_frame(eqn: Any) -> Frame | None:
    """The innermost line outside JAX that recorded the equation."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    if frame is None:
        return None
    return Frame(frame.file_name, frame.start_line, frame.function_name)


def under(caller: Any, eqn: Any) -> Any:
    """The equation as it reads once inlined into `caller`: name stacks inside a call are relative to the
    call."""
    outer, inner = caller.source_info, eqn.source_info
    stack = outer.name_stack + inner.name_stack
    traceback = inner.traceback if inner.traceback is not None else outer.traceback
    return eqn.replace(source_info=inner.replace(traceback=traceback, name_stack=stack))


def named(eqn: Any, scope: str) -> Any:
    """The equation with `scope` added to its name stack, as the compiled program's metadata will show it."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(scope)))


def new_eqn(
    invars: Sequence[Any], outvars: Sequence[Any], primitive: Any, params: dict[str, Any], like: Any = None
) -> Any:
    """An equation without effects. `like` lends its source line, name stack and context."""
    info = like.source_info if like is not None else None
    ctx = like.ctx if like is not None else None
    return jec.new_jaxpr_eqn(list(invars), list(outvars), primitive, params, frozenset(), info, ctx)


class Scan(NamedTuple):
    """The parts of a scan equation under one set of names."""

    body: Any  # a closed jaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def scan_parts(eqn: Any) -> Scan:
    """`num_consts` and `num_carry` became flat trees (`ft_in`) in 0.12."""
    params = eqn.params
    if "num_carry" in params:
        consts, carry = params["num_consts"], params["num_carry"]
    else:
        consts_tree, carry_tree, _ = params["ft_in"].unpack()
        consts, carry = len(list(consts_tree)), len(list(carry_tree))
    return Scan(params["jaxpr"], consts, carry, params["length"], params["reverse"], params["unroll"])


def is_unspecified(sharding: Any) -> bool:
    """Whether a jit equation leaves a sharding to the compiler."""
    return type(sharding).__name__ == "UnspecifiedValue" or sharding is None


def aval_bytes(aval: Any) -> int:
    """Bytes of an array's data as XLA lays it out on CPU; 0 for tokens and references to nothing."""
    shape = getattr(aval, "shape", None)
    dtype = getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return 0
    size = 1
    for dim in shape:
        size *= int(dim)
    itemsize = getattr(dtype, "itemsize", None)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        key_shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return size * int(key_shape.size) * int(key_shape.dtype.itemsize)
    name = getattr(dtype, "name", "")
    if name in ("int4", "uint4", "int2", "uint2"):
        itemsize = 1
    return size * int(itemsize or 0)


def make_jaxpr(fun: Callable[..., Any], static_argnums: Sequence[int] = ()) -> Callable[..., Any]:
    """`jax.make_jaxpr` that also returns the shapes of the result as a tree."""
    return jax.make_jaxpr(fun, static_argnums=tuple(static_argnums), return_shape=True)


def register_dce_rule(primitive: Any, rule: Callable[[Sequence[bool], Any], tuple[list[bool], Any]]) -> None:
    """A dead-code rule from (which results are used, equation); 0.12 also passes which references live on."""
    if JAX_VERSION >= (0, 12):
        partial_eval.dce_rules[primitive] = lambda used, live, eqn: rule(used, eqn)
    else:
        partial_eval.dce_rules[primitive] = rule


def lower_with_sharding(ctx: Any, value: Any, aval: Any) -> Any:
    """An MLIR value annotated with the sharding that its type carries, where it carries one."""
    return mlir_internal.lower_with_sharding_in_types(ctx, value, aval)


def partitioned_automatically(ctx: Any) -> bool:
    """Whether the compiler, not the program, splits the arrays of the module being lowered over several
    devices."""
    axes = ctx.module_context.axis_context
    if hasattr(axes, "manual_axes"):
        return set(axes.manual_axes) != set(axes.mesh.axis_names)
    devices = getattr(axes, "num_devices", 1)
    return devices is None or devices > 1
