"""Straight-line statements of random programs: raw operations and whole layers.

Each function writes one statement (or a few) with a `Writer`. Operands of one statement have one dtype, so
that programs also run under strict dtype promotion.
"""

from collections.abc import Callable

from benchmarks.programs.writer import Value, Writer

UNARY = (
    "jnp.sin({0})", "jnp.tanh({0})", "{0} * {0}", "-{0}", "jnp.exp(-{0} * {0})", "jax.nn.relu({0})",
    "jax.nn.gelu({0})", "jax.nn.silu({0})", "jnp.log1p(jnp.abs({0}))", "lax.rsqrt(1 + {0} * {0})",
    "jnp.sqrt(1 + {0} * {0})", "1 / (2 + {0})", "jnp.abs({0})", "lax.erf({0})", "{0} ** 3",
    "jnp.clip({0}, -1, 1)", "jax.nn.sigmoid({0})", "jnp.cos({0}) * 2 + 1", "jnp.floor({0}) + {0}",
    "lax.logistic({0})", "jnp.expm1({0} / 4)", "jax.nn.softplus({0})", "jnp.arctan2({0}, 1 + {0} * {0})",
    "lax.stop_gradient({0}) * {0}", "jnp.sign({0}) * {0}",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} * {1}", "{0} - {1}", "jnp.maximum({0}, {1})", "{0} / (2 + {1} * {1})",
    "jnp.where({0} > {1}, {0}, {1} / 2)", "jnp.minimum({0}, jnp.tanh({1}))",
    "jnp.hypot({0}, 1 + {1} * {1})", "jnp.where(jnp.isfinite({0}) & ({1} < 1), {0}, {1})",
)  # fmt: skip
REDUCE = (
    "jnp.sum({0}, {1})", "jnp.mean({0}, {1})", "jnp.max({0}, {1})", "jnp.std({0}, {1})",
    "jax.nn.logsumexp({0}, {1})", "jnp.min({0}, {1})", "jnp.prod(jnp.tanh({0}), {1})",
)  # fmt: skip
CUMULATIVE = (
    "jnp.cumsum({0}, {1})", "lax.cummax({0}, {1})", "jnp.cumprod(jnp.tanh({0}), {1})",
    "lax.cumlogsumexp({0}, {1}, reverse=True)", "lax.cummin({0}, {1}, reverse=True)",
    "lax.associative_scan(jnp.add, {0}, axis={1})",
)  # fmt: skip


def unary(w: Writer) -> None:
    w.let(w.c.pick(UNARY).format(w.some().name))


def binary(w: Writer) -> None:
    v = w.some()
    w.let(w.c.pick(BINARY).format(v.name, w.like(v)))


def spread(w: Writer) -> None:
    """A row or a scalar against every row."""
    v = w.some()
    b = w.argument(v.shape[-1:] if w.c.below(3) else (), v.dtype)
    w.let(w.c.pick(BINARY).format(v.name, b.name))


def dense(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    out = w.c.pick((v.shape[-1], w.whole.width, 2 * w.whole.width))
    weight = w.argument((v.shape[-1], out), v.dtype)
    form = w.c.pick(("jnp.tanh({0} @ {1})", "{0} @ {1}", "jax.nn.relu({0} @ {1} + {2})"))
    bias = w.argument((out,), v.dtype).name if "{2}" in form else ""
    w.let(form.format(v.name, weight.name, bias))
    return None


def block(w: Writer) -> None:
    """A residual block of two products."""
    v = w.some(rank=2)
    a, b = (w.argument((v.shape[-1], v.shape[-1]), v.dtype).name for _ in range(2))
    w.let(f"{v.name} + jnp.tanh(jnp.tanh({v.name} @ {a}) @ {b})")


def norm(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    (m,) = w.let(f"{v.name} - jnp.mean({v.name}, -1, keepdims=True)")
    scale = w.argument(v.shape[-1:], v.dtype)
    w.let(f"{m.name} * lax.rsqrt(jnp.mean({m.name} * {m.name}, -1, keepdims=True) + 1e-5) * {scale.name}")
    return None


def attention(w: Writer) -> None:
    v = w.some(rank=3)
    d = v.shape[-1]
    p = w.argument((d, 3 * d), v.dtype)
    q, k, u = w.let(f"jnp.split({v.name} @ {p.name}, 3, axis=-1)", count=3)
    (s,) = w.let(f"jax.nn.softmax(jnp.einsum('bqd,bkd->bqk', {q.name}, {k.name}), axis=-1)")
    w.let(f"{v.name} + jnp.einsum('bqk,bkd->bqd', {s.name}, {u.name})")


def product(w: Writer) -> None:
    """Products of a value with itself, in several orders of dimensions."""
    v = w.some()
    if len(v.shape) == 2:
        forms = ("{0}.T @ {0}", "jnp.tanh({0} @ {0}.T)", "jnp.einsum('ij,ij->i', {0}, {0})")
    elif len(v.shape) == 3:
        forms = ("jnp.einsum('bij,bkj->bik', {0}, {0})", "jnp.einsum('bij,bil->jl', {0}, {0})",
                 "jnp.einsum('bij,bij->bj', {0}, jnp.sin({0}))")  # fmt: skip
    elif len(v.shape) == 1:
        forms = ("jnp.outer({0}, {0})", "{0} * ({0} @ {0})")
    else:
        forms = ("{0} * 2",)
    w.let(w.c.pick(forms).format(v.name))


def convolution(w: Writer) -> None:
    one = w.c.below(3) == 2
    v = w.some(rank=3 if one else 4)
    channels = v.shape[-1]
    weight = w.argument((*(3,) * (1 if one else 2), channels, channels), v.dtype)
    names = "('NWC', 'WIO', 'NWC')" if one else "('NHWC', 'HWIO', 'NHWC')"
    window = "(1,)" if one else w.c.pick(("(1, 1)", "(2, 2)"))
    call = f"lax.conv_general_dilated({v.name}, {weight.name}, {window}, 'SAME', dimension_numbers={names})"
    w.let(w.c.pick(("jax.nn.relu({0})", "{0}", "jnp.tanh({0}) + 1")).format(call))


def pool(w: Writer) -> None:
    v = w.some(rank=4)
    window = "(1, 2, 2, 1)"
    start, op = w.c.pick((("-np.inf", "lax.max"), ("0", "lax.add")))
    w.let(f"lax.reduce_window({v.name}, np.array({start}, {v.name}.dtype), {op}, {window}, {window}, 'SAME')")


def _axis(w: Writer, v: Value) -> int:
    return w.c.below(len(v.shape)) if v.shape else 0


def reduction(w: Writer) -> None:
    v = w.some()
    w.let(w.c.pick(REDUCE).format(v.name, _axis(w, v) if v.shape and w.c.below(4) else "None"))


def cumulative(w: Writer) -> None:
    v = w.some()
    w.let(w.c.pick(CUMULATIVE).format(v.name, _axis(w, v)) if v.shape else f"{v.name} + 1")


def gather(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    n = v.shape[0]
    ids = w.argument((w.whole.rows,), "int32", limit=n)
    form = w.c.pick(("{0}[{1}]", "jnp.take({0}, {1}, axis=0)", "{0}[{1}] * 2 + {0}[{1}[::-1]]"))
    w.let(form.format(v.name, ids.name))
    return None


def scatter(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    n = w.c.pick((w.whole.rows, w.whole.width))
    ids = w.argument(v.shape[:1], "int32", limit=n)
    forms = ("jnp.zeros(({2}, *{0}.shape[1:]), {0}.dtype).at[{1}].add({0})",
             "jax.ops.segment_sum({0}, {1}, num_segments={2})",
             "jnp.ones(({2}, *{0}.shape[1:]), {0}.dtype).at[{1}].max({0})",
             "{0}.at[{1} % {3}].multiply(2)", "{0}.at[{1}[:1] % {3}].set({0}[:1] * 3)")  # fmt: skip
    w.let(w.c.pick(forms).format(v.name, ids.name, n, v.shape[0]))
    return None


def slices(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    n = v.shape[0]
    at = w.argument((), "int32", limit=max(1, n))
    half = max(1, n // 2)
    forms = ("lax.dynamic_slice_in_dim({0}, {1}, {2}, 0)",
             "lax.dynamic_update_slice_in_dim({0}, jnp.sin({0}[:{2}]), {1}, 0)",
             "{0}[{1}] + jnp.zeros_like({0})", "{0}.at[{1}].add(1)", "{0}[:{2}]", "{0}[::2]")  # fmt: skip
    w.let(w.c.pick(forms).format(v.name, at.name, half))
    return None


def shapes(w: Writer) -> None:
    v = w.some()
    forms = ["{0}.reshape(-1)", "jnp.stack([{0}, jnp.cos({0})])"]
    if v.shape:
        forms += ["jnp.flip({0}, 0)", "jnp.roll({0}, 1, 0)", "jnp.concatenate([{0}, 2 * {0}], 0)",
                  "jnp.pad({0}, [(1, 1)] + [(0, 0)] * ({0}.ndim - 1))",
                  "jnp.moveaxis({0}, 0, -1)"]  # fmt: skip
    if len(v.shape) > 1:
        forms += ["jnp.swapaxes({0}, -1, -2)", "jnp.sin({0}.reshape({0}.shape[0], -1).T)"]
    if len(v.shape) > 3:
        forms = forms[2:]
    w.let(w.c.pick(forms).format(v.name))


def ordering(w: Writer) -> None:
    v = w.some()
    if not v.shape:
        return unary(w)
    k = min(2, v.shape[-1])
    forms = ("jnp.sort({0}, axis={1})", "jnp.take_along_axis({0}, jnp.argsort({0}, axis={1}), {1})",
             "lax.top_k({0}, {2})[0]", "{0} * jax.nn.one_hot(jnp.argmax({0}, -1), {3}, dtype={0}.dtype)",
             "jnp.median({0}, axis={1})")  # fmt: skip
    w.let(w.c.pick(forms).format(v.name, _axis(w, v), k, v.shape[-1]))
    return None


def kept(w: Writer) -> None:
    """A product kept by name, where that means something."""
    v = w.some()
    if not w.depth or not v.shape:
        return dense(w)
    weight = w.argument((v.shape[-1], v.shape[-1]), v.dtype)
    w.let(f"jnp.tanh(recoup.keep({v.name} @ {weight.name}, 'kept'))")
    return None


def precision(w: Writer) -> None:
    v = w.some()
    kinds = [d for d in ("bfloat16", "float16", "float32") if d != v.dtype]
    if w.whole.double:
        kinds.append("float64")
    kind = w.c.pick(kinds)
    back = f"jnp.tanh({v.name}.astype(jnp.{kind})).astype({v.name}.dtype)"
    w.let(w.c.pick((f"{v.name}.astype(jnp.{kind})", back)))


def draw(w: Writer) -> None:
    key, v, n = w.key(), w.some(), w.c.below(3)
    sub = w.c.pick((f"jax.random.fold_in({key.name}, {n})", f"jax.random.split({key.name}, 3)[{n}]"))
    forms = ("jnp.where(jax.random.bernoulli({0}, 0.8, {1}.shape), {1} / 0.8, jnp.zeros_like({1}))",
             "{1} + jax.random.normal({0}, {1}.shape, {1}.dtype)",
             "{1} * jax.random.uniform({0}, {1}.shape, {1}.dtype)",
             "{1} + jax.random.randint({0}, {1}.shape, 0, 9).astype({1}.dtype)",
             "{1} * jax.random.gumbel({0}, {1}.shape, {1}.dtype)")  # fmt: skip
    w.let(w.c.pick(forms).format(sub, v.name))


def discrete(w: Writer) -> None:
    """Integers and booleans, from the data and back."""
    v = w.some()
    i = w.argument(v.shape, "int32", limit=5)
    forms = ("{0} * ({0} > 0).astype({0}.dtype)", "{0} + (({1} * 3 + 1) % 7).astype({0}.dtype)",
             "jnp.where(({1} & 1) == 1, {0}, -{0})", "{0} * jnp.sum({1} << 1).astype({0}.dtype)",
             "jnp.where(jnp.any({0} > 3), {0}, {0} / 2)",
             "{0} * (jnp.cumsum({1}.reshape(-1)).reshape({1}.shape) ^ {1}).astype({0}.dtype)",
             "jnp.where(jnp.logical_not({0} > 0) | ({1} == 2), {0}, {0} * 2)",
             "{0} + lax.population_count({1}).astype({0}.dtype)")  # fmt: skip
    w.let(w.c.pick(forms).format(v.name, i.name))


def complexes(w: Writer) -> None:
    v = w.some(dtype="float32")
    forms = ("jnp.abs(lax.complex({0}, 1 + {1}))", "jnp.real(lax.complex({0}, {1}) * lax.complex({1}, {0}))",
             "jnp.imag(jnp.exp(lax.complex({0} / 4, {1})))",
             "jnp.real(jnp.conj(lax.complex({0}, {1})) ** 2)")  # fmt: skip
    if v.shape:
        forms += ("jnp.real(jnp.fft.fft({0}))",)
    w.let(w.c.pick(forms).format(v.name, w.like(v)))


def empty(w: Writer) -> None:
    """Arrays without elements."""
    v = w.some()
    if not v.shape:
        return unary(w)
    w.let(
        w.c.pick(
            (
                "jnp.sin({0}[:0])",
                "jnp.concatenate([{0}[:0] * 2, {0}])",
                "{0} + jnp.sum({0}[:0])",
                "{0}[:0] @ {0}[:0].T" if len(v.shape) == 2 else "{0}[:0]",
            )
        ).format(v.name)
    )
    return None


def captured(w: Writer) -> None:
    """An array that the step closes over."""
    v = w.some()
    c = w.constant(v.shape, v.dtype)
    w.let(w.c.pick(("{0} * {1}", "{0} + jnp.sin({1})")).format(v.name, c))


def fresh(w: Writer) -> None:
    """A new argument of some rank, used at once."""
    v = w.argument(w.shape(1 + w.c.below(4)), w.c.pick(("float32", "float32", "bfloat16")), fresh=True)
    w.let(w.c.pick(UNARY).format(v.name))


STRAIGHT: tuple[tuple[int, Callable[[Writer], None]], ...] = (
    (6, unary), (5, binary), (5, dense), (1, kept), (4, block), (2, norm), (2, attention), (3, product),
    (2, convolution), (1, pool), (3, reduction), (2, spread), (2, cumulative), (2, gather), (2, scatter),
    (2, slices), (3, shapes), (2, ordering), (3, precision), (3, draw), (2, discrete), (1, complexes),
    (1, empty), (2, captured), (3, fresh),
)  # fmt: skip
