"""Statements of random programs with a function inside: control flow, loops, regions, vmap, custom rules.

A body sees what is around it (captured values) beside its parameters, and has statements of its own, which
may hold bodies again.
"""

from collections.abc import Callable, Sequence

from benchmarks.programs.operations import STRAIGHT, block, unary
from benchmarks.programs.writer import Value, Writer

DEEPEST = 2  # bodies inside bodies


def statement(w: Writer) -> None:
    """One random statement."""
    if w.depth < DEEPEST and w.c.chance(35 if not w.depth else 20):
        return _weighted(w, BODIES)
    return _weighted(w, STRAIGHT)


def _weighted(w: Writer, table: Sequence[tuple[int, Callable[[Writer], None]]]) -> None:
    at = w.c.below(sum(weight for weight, _ in table))
    for weight, make in table:
        if at < weight:
            return make(w)
        at -= weight
    return None


def _fill(inner: Writer) -> Writer:
    for _ in range(1 + inner.c.below(3)):
        statement(inner)
    return inner


def _parameter(w: Writer, v: Value, shape: Sequence[int] | None = None) -> Value:
    """A parameter of a body of the type of `v`, or of that type with another shape."""
    shape = v.shape if shape is None else tuple(shape)
    return Value(w.whole.name("p"), v.type.update(shape=shape) if shape != v.shape else v.type)


def _result(inner: Writer, like: Value) -> str:
    """An expression of the type of `like` (whose name is visible), from what the body computed."""
    made = [v for v in inner.values if v.floating]
    same = [v for v in made if v.shape == like.shape and v.dtype == like.dtype]
    if same:
        return same[-1].name
    if not made:
        return f"jnp.sin({like.name})"
    v = made[-1]
    total = f"jnp.sum({v.name})" if 0 in v.shape else f"jnp.mean({v.name})"
    return f"({like.name} * {total}.astype({like.name}.dtype))"


def region(w: Writer) -> None:
    """A region that recomputes its body, ours or JAX's; its parameters are some of what it reads."""
    form = w.c.pick(
        ("@recoup.checkpoint", "@jax.checkpoint",
         "@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)",
         "@recoup.checkpoint(policy=recoup.policies.products)", "@jax.jit")
    )  # fmt: skip
    v = w.some()
    p = _parameter(w, v)
    inner = w.inside([p])
    inner.values.append(p)
    if "products" in form:
        block(inner)  # a policy that keeps nothing is warned about
    else:
        _fill(inner)
    name = inner.values[-1].name
    results = [name] if w.c.below(3) else [name, _result(inner, p)]
    text, f = w.function([p], results, inner, head=form + "\n")
    w.let(f"{f}({v.name})", count=len(results), before=text)


def branches(w: Writer) -> None:
    """`cond` or `switch`; operands are captured or passed."""
    v = w.some()
    n = 2 if w.c.below(3) else 3
    texts, names = "", []
    for _ in range(n):
        p = _parameter(w, v)
        inner = w.inside([p])
        inner.values.append(p)
        _fill(inner)
        inner.values.remove(p)
        text, f = w.function([p], [_result(inner, p)], inner)
        texts, names = texts + text, [*names, f]
    if n == 2:
        chosen = w.c.pick((f"jnp.sum({v.name}) > 0", f"{w.argument((), 'int32').name} == 0"))
        call = f"lax.cond({chosen}, {', '.join(names)}, {v.name})"
    else:
        at = w.argument((), "int32", limit=3)
        call = f"lax.switch({at.name}, [{', '.join(names)}], {v.name})"
    w.let(call, before=texts)


def scan(w: Writer) -> None:
    """A scan over rows, over stacked weights, or over nothing; with or without stacked results."""
    v = w.some()
    whole = w.whole
    carry = _parameter(w, v)
    params, xs, length = [carry], "None", f", length={whole.steps}"
    kind = w.c.below(4)
    if kind == 1 and v.shape:  # weights, a layer each
        stack = w.argument((whole.steps, v.shape[-1], v.shape[-1]), v.dtype)
        row = _parameter(w, stack, stack.shape[1:])
        xs, length = stack.name, ""
    elif kind == 2:  # one value as data
        stack = w.argument((whole.steps, *v.shape), v.dtype)
        row = _parameter(w, stack, v.shape)
        xs, length = stack.name, ""
    elif kind == 3:  # something computed before
        stack = w.some()
        if stack.shape and stack.shape[0] <= 2 * max(whole.steps, 8):
            row = _parameter(w, stack, stack.shape[1:])
            xs, length = stack.name, ""
        else:
            row = Value(whole.name("p"), None)
    else:
        row = Value(whole.name("p"), None)
    params = [carry, row]
    known = [p for p in params if p.type is not None]
    inner = w.inside(known)
    inner.values.extend(known)
    if kind == 1 and v.shape:
        inner.let(f"{carry.name} + jnp.tanh({carry.name} @ {row.name})")
    elif kind == 2:
        inner.let(f"jnp.tanh({carry.name} + {row.name})")
    _fill(inner)
    for p in known:
        inner.values.remove(p)
    new = _result(inner, carry)
    stacked = w.c.pick(("None", new, inner.values[-1].name))
    head = w.c.pick(("", "", "", "@jax.checkpoint\n", "@recoup.checkpoint\n"))
    text, f = w.function(params, [new, stacked], inner, head=head)
    more = w.c.pick(("", "", ", reverse=True", ", unroll=2"))
    call = f"{f}, {v.name}, {xs}{length}{more}"
    call = f"recoup.scan({call}, checkpoints=2)" if w.c.chance(15) else f"lax.scan({call})"
    if stacked == "None":
        w.let(f"{call}[0]", before=text)
    else:
        w.let(call, count=2, before=text)


def counted(w: Writer) -> None:
    """A loop of a fixed number of steps that depends on the index."""
    v = w.some()
    p = _parameter(w, v)
    i = w.whole.name("i")
    inner = w.inside([p])
    inner.values.append(p)
    _fill(inner)
    inner.values.remove(p)
    text, f = w.function([Value(i, None), p], [_result(inner, p)], inner)
    w.let(f"lax.fori_loop(0, {w.whole.steps}, {f}, {v.name})", before=text)


def unknown(w: Writer) -> None:
    """A loop of unknown length; nothing is differentiated through it."""
    v = w.some()
    p = _parameter(w, v)
    n = w.argument((), "int32", limit=5)
    i = w.whole.name("i")
    inner = Writer(w.whole, (), w.depth + 1)  # captures nothing
    inner.values.append(p)
    unary(inner)
    text, f = w.function([p], [_result(inner, p)], inner)
    body = f"lambda {i}: ({i}[0] + 1, {f}({i}[1]))"
    start = f"(0, lax.stop_gradient({v.name}))"
    w.let(f"lax.while_loop(lambda {i}: {i}[0] < {n.name}, {body}, {start})[1]", before=text)


def mapped(w: Writer) -> None:
    """A body over rows."""
    v = w.some()
    if not v.shape:
        return unary(w)
    p = _parameter(w, v, v.shape[1:])
    inner = w.inside([p])
    inner.values.append(p)
    _fill(inner)
    text, f = w.function([p], [inner.values[-1].name], inner)
    w.let(f"jax.vmap({f})({v.name})", before=text)
    return None


SOFT = """
@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0)

@soft.defjvp
def _soft_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return soft(x), t * jax.nn.sigmoid(x)
"""
CUT = """
@jax.custom_vjp
def cut(x, y):
    return jnp.tanh(x) * y

def _cut_forward(x, y):
    return cut(x, y), (x, y)

def _cut_backward(kept, g):
    x, y = kept
    return jnp.clip(g, -1, 1) * y * (1 - jnp.tanh(x) ** 2), g * jnp.tanh(x)

cut.defvjp(_cut_forward, _cut_backward)
"""


def custom(w: Writer) -> None:
    """A function with a derivative rule of its own."""
    v = w.some()
    if w.c.below(2):
        w.whole.define(CUT.strip())
        w.let(f"cut({v.name}, {w.like(v)})")
    else:
        w.whole.define(SOFT.strip())
        w.let(f"soft({v.name})")


def inner_gradient(w: Writer) -> None:
    """A gradient taken inside the program."""
    v = w.some()
    p = _parameter(w, v)
    inner = w.inside([p])
    inner.values.append(p)
    unary(inner)
    if inner.c.below(2):
        statement(inner)
    last = inner.values[-1]
    total = f"jnp.sum({last.name}.astype(jnp.float32) ** 2)"
    text, f = w.function([p], [total], inner)
    w.let(f"jax.grad({f})({v.name})", before=text)


BODIES: tuple[tuple[int, Callable[[Writer], None]], ...] = (
    (6, region),
    (6, scan),
    (3, branches),
    (2, counted),
    (2, mapped),
    (2, custom),
    (1, unknown),
    (1, inner_gradient),
)
