"""`check`: runs a step and its fitted form on the same inputs and says whether they agree.

Idea: nobody should have to trust a rewriting of their program. Equal to the bit is the usual answer; where a
rewritten program was fused differently, and so rounds differently, the step is compiled once more with fusion
switched off, and that program's distance from plain says what rounding alone does to each output.
Limits: one set of inputs; both programs run, so effects happen once for each of them; arguments that the
fitted step donates are copied first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from recoup._agreement import Agreement, Difference, compare
from recoup._compiling import Fitted
from recoup._rewrite import RECOMPUTE_SCOPE
from recoup._trace import bind_static
from recoup.errors import AgreementError

UNFUSED_OPTIONS: dict[str, str | bool] = {"xla_disable_hlo_passes": "fusion"}

Call = tuple[tuple[Any, ...], dict[str, Any]]
Outputs = dict[str, np.ndarray]


def check(
    step: Callable[..., Any],
    fitted: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Agreement:
    """Runs `step` under `jax.jit` and `fitted` on the same inputs and compares every output.

    Args:
      step: the step as it was before `recoup.fit`.
      fitted: what `recoup.fit` returned for it (or any other function of the same arguments and results).
      *args: arguments for both: arrays, or `jax.ShapeDtypeStruct` to have arrays drawn. None at all draws
        what `fitted` was fitted for.
      kwargs: keyword arguments for both.
      seed: of the drawn arrays: floats are normal, divided by the root of the last axis but one (without
        signs where that gives more finite results), integers are 0 or 1.

    Returns:
      An `Agreement`: true if every output is equal to the bit or differs by no more than rounding explains.

    Raises:
      AgreementError: the two results differ in structure, shapes or dtypes.
      TypeError: no arguments are given, and they cannot be drawn: `fitted` has static ones, or is no
        `Fitted`.
    """
    statics = fitted._statics if isinstance(fitted, Fitted) else ((), ())
    given = (tuple(args), dict(kwargs or {}))
    if not args and not kwargs:
        given = _fitted_for(fitted, statics)
    bound = bind_static(step, *given, *statics)
    plain = jax.jit(bound.fun)
    drawn = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(given))
    donated = _donated(fitted, bound)

    def run(fun: Callable[..., Any], call: Call) -> Outputs:
        # Donated arrays and references are consumed or changed by a call: each call gets its own.
        leaves, tree = jax.tree.flatten(call)
        own = [_own(leaf, flag) for leaf, flag in zip(leaves, donated, strict=True)]
        positional, named = jax.tree.unflatten(tree, own)
        full = list(given[0])
        for position, value in zip(bound.positions, positional, strict=True):
            full[position] = value
        out = fun(full, positional, named)
        found = _arrays(out)
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(call)[0]]
        for name, leaf in zip(names, own, strict=True):
            if _is_reference(leaf):
                found[f" argument {name} afterwards"] = np.asarray(leaf[...])
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        return found

    static_kwargs = {k: v for k, v in given[1].items() if k not in bound.kwargs}
    run_plain = lambda _, positional, named: plain(*positional, **named)
    run_fitted = lambda full, _, named: fitted(*full, **named, **static_kwargs)
    call = _draw((bound.args, bound.kwargs), seed, signed=True)
    want = run(run_plain, call)
    inputs = f"drawn, seed {seed}" if drawn else "given"
    if drawn and (lost := _nonfinite(want)):
        other = _draw((bound.args, bound.kwargs), seed, signed=False)
        if _nonfinite(again := run(run_plain, other)) < lost:
            call, want, inputs = other, again, f"drawn, seed {seed}, without signs"
    got = run(run_fitted, call)
    _same_types(want, got)
    outputs = [compare(path, _text(x), x, got[path]) for path, x in want.items()]
    if not all(output.equal for output in outputs):
        unfused = plain.lower(*call[0], **call[1]).compile(compiler_options=UNFUSED_OPTIONS)
        moved = run(lambda _, positional, named: unfused(*positional, **named), call)
        outputs = [_with_rounding(output, want[output.path], moved[output.path]) for output in outputs]
    return _agreement(tuple(outputs), inputs, fitted)


def refuse_disagreement(found: Agreement, name: str) -> None:
    """Raises where a fitted step does not agree with plain.

    Raises:
      AgreementError: `found` is no agreement.
    """
    if not found.agrees and (worst := found.worst) is not None:
        raise AgreementError(
            f"{name}, fitted, does not compute what it computes as it is: result{worst.path} differs by "
            f"{worst.ulps_of_largest:.3g} ulps of its largest value (rounding alone: "
            f"{worst.rounding_ulps or 0.0:.3g}) at {list(worst.index)}, plain {worst.plain}, fitted "
            f"{worst.fitted}. This is a bug in recoup: please report it with the step"
        )


def _agreement(outputs: tuple[Difference, ...], inputs: str, fitted: Any) -> Agreement:
    if not isinstance(fitted, Fitted):
        return Agreement(outputs, inputs)
    again = [d for d in fitted.plan.decisions if d.action == "recompute"]
    marked = sum(
        RECOMPUTE_SCOPE in line and " fusion(" not in line for line in fitted.compiled.as_text().splitlines()
    )
    return Agreement(
        outputs,
        inputs,
        recomputed=sum(d.bytes > 0 for d in again),
        recomputed_bytes=sum(d.bytes for d in again),
        recomputed_operations=marked,
        overhead=fitted.plan.overhead,
        certified_bytes=fitted.memory.total_bytes,
        budget_bytes=fitted.plan.budget_bytes,
        instrument=fitted.memory.instrument,
    )


def _with_rounding(output: Difference, plain: np.ndarray, unfused: np.ndarray) -> Difference:
    if output.equal:
        return output
    moved = compare(output.path, output.type, plain, unfused).ulps_of_largest
    return Difference(**(vars(output) | {"rounding_ulps": moved}))


def _fitted_for(fitted: Any, statics: Any) -> Call:
    """The arguments that a step was fitted for, as structs."""
    if not isinstance(fitted, Fitted) or statics != ((), ()):
        raise TypeError(
            "check() draws arguments only for a step that recoup.fit returned and that has no static "
            "arguments; pass them: check(step, fitted, *args)"
        )
    infos, shardings = fitted.compiled.args_info, fitted.compiled.input_shardings
    struct: Any = jax.ShapeDtypeStruct
    return jax.tree.map(  # type: ignore[no-any-return]
        lambda info, sharding: struct(
            info.shape, info.dtype, sharding=sharding if _spread(sharding) else None
        ),
        infos,
        shardings,
    )


def _donated(fitted: Any, bound: Any) -> list[bool]:
    if isinstance(fitted, Fitted):
        return [info.donated for info in jax.tree.leaves(fitted.compiled.args_info)]
    return [False] * len(jax.tree.leaves((bound.args, bound.kwargs)))


def _spread(sharding: Any) -> bool:
    return getattr(sharding, "num_devices", 1) > 1


def _draw(call: Call, seed: int, signed: bool) -> Call:
    """The call with arrays in place of structs."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(  # type: ignore[no-any-return]
        lambda leaf: _random(leaf, rng, signed) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, call
    )


def _random(struct: jax.ShapeDtypeStruct, rng: np.random.Generator, signed: bool) -> Any:
    shape, dtype = struct.shape, struct.dtype
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), int(np.prod(shape, dtype=int)) or 1)
        drawn = keys[: int(np.prod(shape, dtype=int))].reshape(shape)
    elif jax.numpy.issubdtype(dtype, np.inexact):
        values = rng.standard_normal(shape) / (shape[-2] ** 0.5 if len(shape) > 1 and shape[-2] else 1.0)
        drawn = jax.numpy.asarray(values if signed else np.abs(values), dtype)
    else:
        drawn = jax.numpy.asarray(rng.integers(0, 2, shape), dtype)
    sharding = getattr(struct, "sharding", None)
    return drawn if sharding is None else jax.device_put(drawn, sharding)


def _own(leaf: Any, donated: bool) -> Any:
    if _is_reference(leaf):
        return jax.new_ref(leaf[...])
    return jax.numpy.copy(leaf) if donated else leaf


def _is_reference(leaf: Any) -> bool:
    return isinstance(leaf, jax.Ref)


def _arrays(out: Any) -> Outputs:
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        if jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found[jax.tree_util.keystr(path)] = np.asarray(leaf)
    return found


def _nonfinite(found: Outputs) -> int:
    return sum(compare("", "", x, x).nonfinite for x in found.values())


def _text(x: np.ndarray) -> str:
    return f"{x.dtype}[{','.join(str(d) for d in x.shape)}]"


def _same_types(want: Outputs, got: Outputs) -> None:
    ours = {path: _text(x) for path, x in got.items()}
    plain = {path: _text(x) for path, x in want.items()}
    for path in [*plain, *ours]:
        a, b = plain.get(path, "nothing"), ours.get(path, "nothing")
        if a != b:
            raise AgreementError(f"result{path} is {a} as the step is and {b} as it is fitted")
