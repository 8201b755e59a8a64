"""Two identities that a region treats specially: `recoup_keep` and `recoup_diagnostic`.

Idea: a name on a value is an equation of its own, so that it survives tracing, loops and batching whatever
`jax_remat3` says, and needs no cooperation from JAX's policies. Derivatives pass the tangent straight
through.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jec
from jax.interpreters import ad, batching, mlir

from recoup import _compat


def _identity_primitive(name: str) -> Any:
    primitive: Any = jec.Primitive(name)
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(*primals, **params), tangents[0]

    def batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(*operands, **params), dims[0]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = lambda ct, x, **_: [ct]
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, lambda ctx, x, **_: [x])
    return primitive


# `kept` is None until a backward is asked for, when the policy decides.
keep_p = _identity_primitive("recoup_keep")
diagnostic_p = _identity_primitive("recoup_diagnostic")


def kept_name(eqn: Any) -> str | None:
    """The name that an equation gives a value, by `keep`, `diagnostic` or JAX's `checkpoint_name`."""
    if eqn.primitive is keep_p or eqn.primitive is diagnostic_p or eqn.primitive is _compat.name_p:
        return str(eqn.params["name"])
    return None


def saveable(primitive: Any, *_: Any, **params: Any) -> bool:
    """What a split keeps: values marked as kept, and nothing else."""
    return primitive is keep_p and bool(params["kept"])
