"""Name stacks as a person means them: the regions and layers that an operation is in. No JAX.

Idea: JAX writes transformations and named scopes into one text, "transpose(jvp(Block_0))/attention", and the
compiler keeps it. A region of `recoup.checkpoint` is a scope of its own, "region(name)", in the traced
program and in the compiled one, so that every report can name it.
Limits: where regions nest, the outermost is the region.
"""

import re
from collections.abc import Iterable, Sequence

_REGION = re.compile(r"region\(([^()]*)\)")
_NO_BRACKETS = str.maketrans("()", "[]")
_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|jit|pjit|checkpoint|remat|remat2|shard_map)\(([^()]*)\)")
_PLUMBING = frozenset(
    ["", "checkpoint", "rematted_computation", "recoup_recompute", "while", "body", "cond", "closed_call",
     "transpose", "jvp"]
)  # fmt: skip


def region_scope(name: str) -> str:
    """The scope of a region in name stacks; round brackets in its name become square ones."""
    return f"region({name.translate(_NO_BRACKETS)})"


def region_of(scope: str) -> str:
    """The name of the region that a name stack is in; "" for none."""
    found = _REGION.search(scope)
    return found[1] if found else ""


def under(outer: str, inner: str) -> str:
    """The name stack of an operation of a loop's body, whose own is relative to the loop's."""
    return "/".join(filter(None, (outer, inner)))


def region_names(scopes: Iterable[str]) -> tuple[str, ...]:
    """The names of the regions in these name stacks, each once, in order."""
    return tuple(name for name in dict.fromkeys(map(region_of, dict.fromkeys(scopes))) if name)


def scope_path(scope: str) -> tuple[str, ...]:
    """The user's own names in a name stack: "transpose(jvp(Block_0))/attention" is (Block_0, attention)."""
    scope = _REGION.sub(r"region \1", scope)
    before = ""
    while before != scope:
        before, scope = scope, _TRANSFORMS.sub(r"\1", scope)
    parts = (part.strip() for part in scope.split("/"))
    # an einsum names its operations by its own formula
    return tuple(part for part in parts if part not in _PLUMBING and "->" not in part)


def parts_of(scopes: Sequence[str], sources: Sequence[str]) -> list[str]:
    """For each operation the layer that it belongs to.

    The named scopes, as deep as it takes to tell three layers apart; where the program names none, the user's
    function.
    """
    paths = {scope: scope_path(scope) for scope in set(scopes)}
    deepest = max(map(len, paths.values()), default=0)
    depth = next(
        (d for d in range(1, deepest + 1) if len({p[:d] for p in paths.values() if p}) >= 3), deepest
    )
    found = []
    for scope, source in zip(scopes, sources, strict=True):
        path = paths[scope][:depth]
        function = source.rpartition(" (")[2].rstrip(")") if source.endswith(")") else ""
        function = function.rpartition("<locals>.")[2]
        found.append("/".join(path) if path else function and f"{function}()")
    return found
