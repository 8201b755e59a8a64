"""The only file that touches JAX's private or moving names.

Each function says which names moved between the supported versions (JAX 0.10.2 and 0.12) and gives one
meaning to both.
"""

import dis
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax

from recoup._versions import check_names, check_version, moved

check_version(jax.__version__)
try:
    import jax.extend.core as _jec
    import jax.extend.linear_util as lu
    from jax._src import config as _config
    from jax._src import core as _core
    from jax._src import source_info_util
    from jax._src.interpreters import ad as _ad
    from jax._src.interpreters import batching as _batching
    from jax._src.interpreters import mlir as _mlir
    from jax._src.interpreters import partial_eval as _partial_eval
    from jax._src.state import discharge as state_discharge
    from jax._src.state.types import AbstractRef, AccumEffect, RefEffect, WriteEffect
    from jax.api_util import debug_info
except ImportError as error:
    raise moved(jax.__version__, error) from error

# Their types differ between versions: here they are not checked, elsewhere they do not appear.
jec: Any = _jec
config_internal: Any = _config
core_internal: Any = _core
ad_internal: Any = _ad
batching: Any = _batching
mlir_internal: Any = _mlir
partial_eval: Any = _partial_eval

# Read later, in functions: looked for now, so that a name that is gone is one clear error at import.
_LATER: tuple[tuple[Any, str], ...] = (
    (config_internal, "_check_vma"),
    (core_internal, "InternalMutableArrayEffect NamedAxisEffect extend_axis_env_nd trace_ctx"),
    (core_internal, "trace_state_clean"),
    (ad_internal, "UndefinedPrimal Zero backward_pass jvp_jaxpr"),
    (batching, "batch_jaxpr_axes zero_if_mapped"),
    (mlir_internal, "jaxpr_subcomp lower_with_sharding_in_types module_to_bytecode register_lowering"),
    (partial_eval, "JaxprTracer PartialVal call_partial_eval_custom_rule convert_constvars_jaxpr"),
    (partial_eval, "custom_partial_eval_rules dce_jaxpr dce_rules new_eqn_recipe partial_eval_jaxpr_custom"),
    (partial_eval, "partial_eval_jaxpr_custom_rules partial_eval_jaxpr_nounits trace_to_jaxpr_dynamic"),
    (source_info_util, "current current_name_stack register_exclusion user_context user_frame"),
    (state_discharge, "discharge_state"),
    (lu, "wrap_init"),
    (jec, "ClosedJaxpr DropVar Jaxpr JaxprEqn Literal Var new_jaxpr_eqn primitives"),
)
check_names(jax.__version__, [(module, name) for module, names in _LATER for name in names.split()])

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
    info = debug_info("recoup", _closed, (None,), {}, sourceinfo="<recoup>")._replace(
        arg_names=None, result_paths=None
    )
    if like is not None:
        inner, _ = open_jaxpr(like)
        same = len(inner.invars) == len(invars) and len(inner.outvars) == len(outvars)
        info = inner.debug_info if same else no_names(inner)
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


def function_name(closed: Any) -> str:
    """The name of the function that was traced; "" where JAX kept none."""
    inner, _ = open_jaxpr(closed)
    return str(getattr(inner.debug_info, "func_name", "") or "")


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
    # a cached trace of JAX's own function (`jax.nn.silu`) holds no line of the user's: the call's says where
    found = inner.traceback is not None and source_info_util.user_frame(inner.traceback) is not None
    traceback = inner.traceback if found else outer.traceback
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
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        key_shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))  # type: ignore[no-untyped-call]
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


def shape_of(aval: Any) -> Any:
    """An abstract value as an argument to trace with, weak type kept."""
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)  # type: ignore[no-untyped-call]


def trace_thunk(fun: Callable[[], list[Any]], label: str, where: str) -> tuple[Any, list[Any]]:
    """A function of nothing as an open jaxpr whose inputs are the arrays and tracers that it captured, and
    these.

    `label` and `where` name the function in JAX's own errors about escaped and concretised tracers.
    """
    info = debug_info(label, fun, (), {}, sourceinfo=where)
    jaxpr, _, captured = partial_eval.trace_to_jaxpr_dynamic(lu.wrap_init(fun, debug_info=info), [])
    return partial_eval.convert_constvars_jaxpr(jaxpr), list(captured)


def trace_flat(fun: Callable[..., list[Any]], avals: Sequence[Any], label: str) -> tuple[Any, list[Any]]:
    """A function of arrays as an open jaxpr; arrays that it captured become its first inputs, and are
    returned."""
    info = debug_info(label, fun, (0,) * len(avals), {})
    jaxpr, _, captured = partial_eval.trace_to_jaxpr_dynamic(lu.wrap_init(fun, debug_info=info), list(avals))
    return partial_eval.convert_constvars_jaxpr(jaxpr), list(captured)


def from_current_trace(x: Any) -> bool:
    """Whether a value was made by the innermost trace in progress, rather than captured from outside it."""
    return isinstance(x, jax.core.Tracer) and x._trace is core_internal.trace_ctx.trace


def nothing_is_traced() -> bool:
    """Whether JAX evaluates operations one by one here: no jit, grad, vmap or loop around."""
    return bool(core_internal.trace_state_clean())


def _closed(jaxpr: Any) -> Any:
    return jaxpr if JAXPR_HOLDS_CONSTS else jec.ClosedJaxpr(jaxpr, ())


def _opened(closed: Any) -> tuple[Any, list[Any]]:
    """A closed jaxpr as an open one whose first inputs are its constants, and these."""
    jaxpr, consts = open_jaxpr(closed)
    return partial_eval.convert_constvars_jaxpr(jaxpr), list(consts)


def jvp_jaxpr(jaxpr: Any, nonzero: Sequence[bool]) -> tuple[Any, list[Any], list[bool]]:
    """The open jaxpr of primals and nonzero tangents, constants that became its first inputs, which tangents
    of the results are nonzero."""
    out, out_nonzero = ad_internal.jvp_jaxpr(_closed(jaxpr), list(nonzero), False)
    return (*_opened(out), list(out_nonzero))


def split_by_saving(
    jaxpr: Any, unknown: Sequence[bool], saveable: Callable[..., bool]
) -> tuple[Any, Any, list[bool], list[bool], int]:
    """An open jaxpr split into what runs now and what runs when the unknown inputs exist.

    Returns the first part (known results, then values it saves), the second (saved values, then all inputs),
    which results are unknown, which results the second part computes, and how many values are saved.
    """
    first, second, late, again, count = partial_eval.partial_eval_jaxpr_custom(
        jaxpr, list(unknown), [True] * len(unknown), False, False, saveable
    )
    return first, second, list(late), list(again), count


def split_by_data(jaxpr: Any, unknown: Sequence[bool]) -> tuple[Any, list[Any], Any, list[Any]]:
    """An open jaxpr split into what its known inputs decide and the rest.

    Returns the first part (results are what the second reads), its constants (first inputs), the second part
    (reads these, then the unknown inputs) and its constants (its first inputs).
    """
    split = partial_eval.partial_eval_jaxpr_nounits(_closed(jaxpr), list(unknown), False)
    known, rest, out_unknown, _ = split
    first, consts = _opened(known)
    decided = len(out_unknown) - sum(out_unknown)
    if decided:
        first = first.replace(outvars=first.outvars[decided:], debug_info=no_names(first))
    return first, consts, *_opened(rest)


def no_names(jaxpr: Any) -> Any:
    """Debug information without names of arguments and results, for a jaxpr whose inputs or outputs
    changed."""
    return jaxpr.debug_info._replace(arg_names=None, result_paths=None)


def dce_open(jaxpr: Any, used: Sequence[bool]) -> tuple[Any, list[bool]]:
    """Dead code and dead inputs of an open jaxpr removed; which inputs are left."""
    kept, used_inputs = partial_eval.dce_jaxpr(jaxpr, list(used))
    return kept, list(used_inputs)


def transpose_linear(
    jaxpr: Any, known: Sequence[Any], linear_avals: Sequence[Any], cts: Sequence[Any]
) -> list[Any]:
    """Cotangents of the last inputs of an open jaxpr that is linear in them; symbolic zeros stay symbolic."""
    undefined = [ad_internal.UndefinedPrimal(aval) for aval in linear_avals]
    cotangents = ad_internal.backward_pass(jaxpr, False, (), [*known, *undefined], list(cts))
    return list(cotangents[len(known) :])


def batch_jaxpr(jaxpr: Any, axis_data: Any, dims: Sequence[Any]) -> tuple[Any, list[Any], list[bool]]:
    """The open jaxpr over a batch, constants that became its first inputs, which results have the batch
    axis."""
    wanted = [batching.zero_if_mapped] * len(jaxpr.outvars)
    out, out_batched = batching.batch_jaxpr_axes(_closed(jaxpr), axis_data, list(dims), wanted)
    return (*_opened(out), list(out_batched))


def lower_inline(ctx: Any, jaxpr: Any, scope: str, *operands: Any) -> Sequence[Any]:
    """Lowers an open jaxpr where the equation stands, effects in order."""
    outs, tokens = mlir_internal.jaxpr_subcomp(
        ctx.module_context,
        jaxpr,
        ctx.name_stack.extend(scope),
        ctx.tokens_in,
        (),
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(tokens)
    return list(outs)


def call_split_rule(param: str) -> Callable[..., Any]:
    """JAX's rule for splitting a call inside another region (`jax.checkpoint`) or a loop's body."""

    def same(*args: Any) -> Any:
        return args[-2:]  # the parameters of the two calls, already with their jaxprs

    return partial(partial_eval.call_partial_eval_custom_rule, param, same)


def is_reference(aval: Any) -> bool:
    """Whether a type is a mutable reference to an array."""
    return isinstance(aval, AbstractRef)


def written_references(jaxpr: Any) -> set[int]:
    """Which inputs of an open jaxpr it writes."""
    index = {v: i for i, v in enumerate(jaxpr.invars)}
    found = set()
    for effect in jaxpr.effects:
        if isinstance(effect, WriteEffect | AccumEffect):
            found.add(effect.input if isinstance(effect.input, int) else index[effect.input])
    return found


def discharge(jaxpr: Any) -> tuple[Any, list[Any]]:
    """An open jaxpr with references as inputs, as a pure one: contents in, contents out after the results."""
    return _opened(state_discharge.discharge_state(_closed(jaxpr)))


name_p = jec.primitives.name_p  # JAX's `checkpoint_name`
remat_p = jec.primitives.remat_p


def with_open(body: Any, change: Callable[[Any], Any]) -> Any:
    """A body, closed or open, with `change` applied to it as an open jaxpr of the same inputs."""
    if JAXPR_HOLDS_CONSTS or not isinstance(body, jec.ClosedJaxpr):
        return change(body)
    inner = change(body.jaxpr)
    return body if inner is body.jaxpr else jec.ClosedJaxpr(inner, body.consts)


def is_plain_jit(eqn: Any) -> bool:
    """Whether a jit equation has no shardings, layouts or compiler options of its own, so that inlining it
    changes nothing."""
    params = eqn.params
    shardings = [*params.get("in_shardings", ()), *params.get("out_shardings", ())]
    layouts = [*params.get("in_layouts", ()), *params.get("out_layouts", ())]
    free = all(is_unspecified(s) for s in shardings) and all(layout is None for layout in layouts)
    return free and not params.get("compiler_options_kvs")


def touches_references(jaxpr: Any) -> bool:
    """Whether an open jaxpr reads, writes or makes mutable references."""
    return any(isinstance(e, RefEffect | core_internal.InternalMutableArrayEffect) for e in jaxpr.effects)


_LIBRARIES = (os.path.dirname(jax.__file__) + os.sep, os.path.dirname(__file__) + os.sep)

# The frames of `recoup.checkpoint` between a caller and the body of its region.
_REGIONS = tuple(
    os.path.join(_LIBRARIES[1], name) for name in ("_checkpoint.py", "_regions" + os.sep, "_compat.py")
)


def user_stacklevel() -> int:
    """The `stacklevel` with which the caller of this function's caller points at a line outside JAX and
    recoup."""
    frame: Any = sys._getframe(1)
    level = 0
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level + 1 if frame is not None else 1


def zero_tangent(x: Any) -> Any:
    """A symbolic zero for a value's tangent."""
    return ad_internal.Zero(jax.typeof(x).to_tangent_aval())


def zero_cotangent(aval: Any) -> Any:
    """A symbolic zero for the cotangent of a (tangent) type."""
    return ad_internal.Zero(aval.to_ct_aval() if hasattr(aval, "to_ct_aval") else aval)


def user_line() -> str:
    """ " at file:line" of the innermost line outside JAX and recoup on the Python stack, or nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def stage_later(
    trace: Any,
    operands: Sequence[Any],
    out_avals: Sequence[Any],
    primitive: Any,
    params: dict[str, Any],
    effects: Any,
) -> list[Any]:
    """Tracers of the results of an equation that a partial evaluation leaves for later."""
    later = [partial_eval.PartialVal.unknown(aval) for aval in out_avals]
    outs = [partial_eval.JaxprTracer(trace, value, None) for value in later]
    info = source_info_util.current()
    recipe = partial_eval.new_eqn_recipe(trace, operands, outs, primitive, params, effects, info)
    for out in outs:
        out.recipe = recipe
    return outs


def register_split_rules(primitive: Any, staged: Callable[..., Any], in_call: Callable[..., Any]) -> None:
    """A primitive's rules for partial evaluation: on tracers, and in a jaxpr that is being split."""
    partial_eval.custom_partial_eval_rules[primitive] = staged
    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = in_call


def register_lowering_in_place(primitive: Any, rule: Callable[..., Any], platform: str | None = None) -> None:
    """A lowering that sees the program's own values, where JAX would otherwise share it as a function."""
    mlir_internal.register_lowering(primitive, rule, platform=platform, cacheable=False)


def bind_eqn(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluates one equation on these operands, keeping its source line and name stack."""
    params = eqn.primitive.get_bind_params(eqn.params)
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with eqn.ctx.manager, source_info_util.user_context(eqn.source_info.traceback, name_stack=stack):
        out = eqn.primitive.bind(*operands, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def constants_as_inputs(jaxpr: Any) -> Any:
    """An open jaxpr whose first inputs are its constants."""
    return partial_eval.convert_constvars_jaxpr(jaxpr)


def with_leading(aval: Any, *sizes: int) -> Any:
    """The type of a stack of values of this type: axes of these sizes in front. Keeps mesh and varying
    axes."""
    shape = (*sizes, *aval.shape)
    if aval.sharding.mesh.empty:
        return jax.core.ShapedArray(shape, aval.dtype)
    spec = jax.sharding.PartitionSpec(*[None] * len(sizes), *aval.sharding.spec)  # type: ignore[no-untyped-call]
    sharding = jax.sharding.NamedSharding(aval.sharding.mesh, spec)
    return aval.update(shape=shape, weak_type=False, sharding=sharding)


def without_leading(aval: Any) -> Any:
    """The type of one row of a stack."""
    if aval.sharding.mesh.empty:
        return jax.core.ShapedArray(aval.shape[1:], aval.dtype)
    spec = jax.sharding.PartitionSpec(*tuple(aval.sharding.spec)[1:])  # type: ignore[no-untyped-call]
    sharding = jax.sharding.NamedSharding(aval.sharding.mesh, spec)
    return aval.update(shape=aval.shape[1:], weak_type=False, sharding=sharding)


def as_struct(aval: Any) -> Any:
    """A type as an argument of `jax.make_jaxpr`: of this mesh and varying axes where it has any."""
    if isinstance(aval, jax.ShapeDtypeStruct):
        return aval
    more: dict[str, Any] = {}
    if not aval.sharding.mesh.empty:
        more = {"sharding": aval.sharding, "manual_axis_type": aval.manual_axis_type}
    make: Any = jax.ShapeDtypeStruct
    return make(aval.shape, aval.dtype, weak_type=bool(aval.weak_type), **more)


def hide_from_source_lines(*paths: str) -> None:
    """Lets equations recorded through these files (or folders, ending in a separator) show their caller's
    line."""
    for path in paths:
        source_info_util.register_exclusion(path)


def zeros_of(aval: Any) -> Any:
    """Zeros of a type, varying over the mesh axes that it varies over."""
    zeros = jax.numpy.zeros(aval.shape, aval.dtype)
    axes = tuple(getattr(aval.manual_axis_type, "varying", ()))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def library_paths() -> tuple[str, ...]:
    """Path prefixes of JAX's and recoup's own files: lines there are not the user's."""
    return _LIBRARIES


def optimized_module(compiled: Any) -> bytes:
    """The optimized program of a `jax.stages.Compiled`, as a serialized `HloModuleProto`."""
    module = compiled.runtime_executable().hlo_modules()[0]
    return bytes(module.as_serialized_hlo_module_proto())


def portable_module(lowered: Any) -> bytes | None:
    """A lowered program as bytes that another process can compile, source lines included; None where it
    calls back into Python or runs on several devices."""
    details = lowered._lowering.compile_args
    if details.get("host_callbacks") or details.get("keepalive") or details.get("num_devices", 1) != 1:
        return None
    return bytes(mlir_internal.module_to_bytecode(lowered.compiler_ir("stablehlo")))


def load_module(module: bytes, options: dict[str, Any]) -> Any:
    """Compiles what `portable_module` made, for the first device. XLA's client moves between versions."""
    from jax._src import compiler, lib

    device = jax.devices()[0]
    xla_client: Any = lib.xla_client  # type: ignore[attr-defined]
    compile_options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, env_options_overrides=dict(options)
    )
    devices = xla_client.DeviceList((device,))
    return device.client.compile_and_load(module, devices, compile_options)


def run_module(executable: Any, arguments: Sequence[Any]) -> list[Any]:
    """Runs what `load_module` returned; the results once they are there."""
    results = executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()
    return [shards[0].block_until_ready() for shards in results]


class Call(NamedTuple):
    """A function of the user's that was running when an equation was recorded.

    `position` tells places in its code apart, `looped` says that this one is in a Python loop of it;
    `first_line` is where the function is defined.
    """

    file: str
    function: str
    first_line: int
    position: int
    looped: bool


def user_calls(eqn: Any) -> tuple[Call, ...]:
    """The user's functions that were running when the equation was recorded, the step itself first."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ()
    found = []
    for code, position in zip(*traceback.raw_frames(), strict=True):
        file = code.co_filename
        if file.startswith(_REGIONS):
            continue  # between a region and the body that it calls
        if file.startswith(_LIBRARIES[1]) and f"{os.sep}_demo{os.sep}" not in file:
            break  # recoup's own frame around the step
        if not file.startswith(_LIBRARIES[0]):
            looped = any(start <= position <= end for start, end in _loops(code))
            found.append(Call(file, code.co_qualname, code.co_firstlineno, position, looped))
    return tuple(reversed(found))


@lru_cache(maxsize=1024)
def _loops(code: Any) -> tuple[tuple[int, int], ...]:
    """The ranges of a function's code that a jump back repeats."""
    jumps = (i for i in dis.get_instructions(code) if i.opname.startswith("JUMP_BACKWARD"))
    return tuple((int(i.argval), i.offset) for i in jumps)


def newer_remat_body(eqn: Any) -> Any:
    """The closed jaxpr of a region of JAX's newer `jax.checkpoint` (`jax_remat3`), whose equation holds it in
    an object; None for any other equation."""
    held = eqn.params.get("_prim")
    return held.params["jaxpr"] if type(held).__name__ == "RematTraced" else None


def is_manual(eqn: Any) -> bool:
    """Whether an equation is one of a `shard_map` body: its arrays are one device's parts."""
    return bool(eqn.ctx.cur_abstract_mesh.manual_axes)


def varying(aval: Any) -> frozenset[str]:
    """The mesh axes along which devices may hold different values, as far as a type says."""
    return frozenset(getattr(getattr(aval, "manual_axis_type", None), "varying", ()))


def effects(eqn: Any) -> frozenset[Any]:
    """An equation's effects but those that only say which mesh axes it names."""
    return frozenset(e for e in eqn.effects if not isinstance(e, core_internal.NamedAxisEffect))


def as_closed(jaxpr: Any) -> Any:
    """A jaxpr without constants, open or closed, as a closed one."""
    if JAXPR_HOLDS_CONSTS or isinstance(jaxpr, jec.ClosedJaxpr):
        return jaxpr
    return jec.ClosedJaxpr(jaxpr, ())


def open_body(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """An open jaxpr of these parts, as an equation with a body holds it."""
    return open_jaxpr(close_jaxpr((), invars, outvars, eqns, ()))[0]


def expand_eqn(scalar: Any, out: Any, like: Any) -> Any:
    """An equation that makes an array of one element of a scalar."""
    params = {"shape": (1,), "broadcast_dimensions": (), "sharding": None}
    return new_eqn([scalar], [out], jax.lax.broadcast_in_dim_p, params, like)


def squeeze_eqn(array: Any, out: Any, like: Any) -> Any:
    """An equation that makes a scalar of an array of one element."""
    return new_eqn([array], [out], jax.lax.squeeze_p, {"dimensions": (0,)}, like)


def trace_at(like: Any, fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """A function of values of these types as a closed jaxpr, traced as if it stood where `like` does:
    inside the same `shard_map`, if it is in one."""
    if not is_manual(like):
        return make_jaxpr(fun)(*[shape_of(aval) for aval in avals])[0]
    mesh = like.ctx.cur_abstract_mesh
    axes = [(name, mesh.shape[name]) for name in mesh.manual_axes]
    checked = any(varying(v.aval) for v in (*like.invars, *like.outvars))
    with like.ctx.manager, core_internal.extend_axis_env_nd(axes), config_internal._check_vma(checked):
        return make_jaxpr(fun)(*[as_struct(aval) for aval in avals])[0]


def classic(eqn: Any) -> Any:
    """The equation of a `checkpoint_name` or a `jax.checkpoint` as JAX wrote it before `jax_remat3`, whose
    equations hold both in an object; any other equation as it is."""
    held = eqn.params.get("_prim")
    kind = type(held).__name__
    if kind == "CheckpointName":
        return eqn.replace(primitive=name_p, params={"name": held.params["name"]})
    if kind == "RematTraced":
        body, consts = open_jaxpr(held.params["jaxpr"])
        if not consts:
            params = {"prevent_cse": True, "policy": held.params["policy"], "differentiated": False}
            return eqn.replace(primitive=remat_p, params={**params, "jaxpr": body})
    return eqn


def resharded(eqn: Any) -> tuple[int, int] | None:
    """Into how many parts the operand and the result of an equation that only moves an array between devices
    are divided, at most and exactly; None for another equation, and where a type does not say.

    Where the compiler divides arrays, the operand may be divided over all devices.
    """
    sharding = eqn.params.get("sharding" if eqn.primitive.name == "sharding_constraint" else "dst_sharding")
    spec = getattr(sharding, "spec", None)
    if eqn.primitive.name not in ("sharding_constraint", "reshard") or spec is None:
        return None
    if any(axes is jax.sharding.PartitionSpec.UNCONSTRAINED for axes in spec):
        return None
    if eqn.primitive.name == "sharding_constraint":
        return int(sharding.mesh.size), _parts(spec, sharding.mesh)
    before = eqn.invars[0].aval.sharding
    return (1 if before.mesh.empty else _parts(before.spec, before.mesh)), _parts(spec, sharding.mesh)


def parts_of(sharding: Any) -> int:
    """Into how many parts a `NamedSharding` divides an array."""
    return _parts(sharding.spec, sharding.mesh)


def _parts(spec: Any, mesh: Any) -> int:
    count = 1
    for axes in spec:
        for name in (axes,) if isinstance(axes, str) else axes or ():
            count *= mesh.shape[name]
    return count


def constraint_eqn(value: Any, out: Any, sharding: Any, like: Any = None) -> Any:
    """An equation that says how an array is divided."""
    traced, _ = make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(shape_of(value.aval))  # type: ignore[no-untyped-call]
    eqn = open_jaxpr(traced)[0].eqns[0]
    return new_eqn([value], [out], eqn.primitive, eqn.params, like)


def is_divided(sharding: Any) -> bool:
    """Whether a sharding names the mesh axes, more than one device, that divide an array."""
    return isinstance(sharding, jax.sharding.NamedSharding) and sharding.num_devices > 1


def is_memory_move(eqn: Any) -> bool:
    """Whether an equation moves one array between the device's memory and the host's, and no more."""
    if eqn.primitive.name != "device_put" or len(eqn.invars) != 1:
        return False
    return all(isinstance(target, jax.memory.Space) for target in eqn.params["devices"])


def on_host(aval: Any) -> bool:
    """Whether a type lies in host memory."""
    return bool(getattr(aval, "memory_space", None) == jax.memory.Space.Host)


def memory_move(var: Any, *, to_host: bool, like: Any) -> Any:
    """The equation that moves `var` to host memory, or back; its result is a new variable."""
    space = jax.memory.Space.Host if to_host else jax.memory.Space.Device
    struct = jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)  # type: ignore[no-untyped-call]
    move = open_jaxpr(jax.make_jaxpr(lambda x: jax.device_put(x, space))(struct))[0].eqns[0]
    out = Var(var.aval.update(memory_space=space))
    return new_eqn([var], [out], move.primitive, move.params, like)
