"""Random bits: the threefry cipher as JAX lowers it on CPU, a loop of five trips over two words per
draw.

Both words are buffers of the whole draw's shape, carried by the loop, and what is made of them (an
exclusive or, a comparison) is fused into the reader: a draw costs eight bytes an element from the
loop to its last reader. Keys of kind "rbg" draw by Philox, which is computed inside its readers. Other
generators are custom calls.
"""

from math import prod
from typing import Any

import jax

from recoup._memory import _rules as rules
from recoup._memory._control import loop
from recoup._memory._graph import Graph, Node, Shape
from recoup._memory._lower import Lowering, full_shape, rule, squeeze

WORD = "uint32"
ROUNDS = 5


def _op(g: Graph, op: str, *args: Node, attrs: Any = None) -> Node:
    return rules.elementwise(g, op, WORD, args, attrs)


def _spread(g: Graph, key: Node, shape: Shape) -> Node:
    return key if key.shape == shape else rules.broadcast(g, key, shape, range(len(key.shape)))


def _cipher(low: Lowering, keys: tuple[Node, Node], words: tuple[Node, Node]) -> list[Node]:
    """The two words enciphered. Keys are scalars or have the words' leading dimensions."""
    g = low.g
    shape = max(words[0].shape, words[1].shape, *(k.shape for k in keys), key=len)
    third = _op(g, "xor", _op(g, "xor", *keys), g.constant(466688986, WORD))
    a, b = [
        _op(g, "add", _spread(g, w, shape), _spread(g, k, shape)) for w, k in zip(words, keys, strict=True)
    ]
    inits = [g.constant(0, "int32"), a, b, keys[0], keys[1], third]
    child = low.child(g.eqn)
    body = child.g
    i, x, y, k0, k1, k2 = [body.param(n.shape, n.dtype) for n in inits]
    step = body.add("add", (), "int32", (i, body.constant(1, "int32")))
    spread = [_spread(body, k, x.shape) for k in (k1, k2)]
    body.outputs = [
        step,
        body.add("threefry", x.shape, WORD, (x, y, spread[0]), 0),
        body.add("threefry", x.shape, WORD, (x, y, spread[1]), 1),
        k1,
        k2,
        k0,
    ]
    return loop(low, inits, body, ROUNDS)[1:3]


def _is_threefry(eqn: Any) -> bool:
    return any("fry" in str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars))


def _partitionable() -> bool:
    return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]


def _halves(low: Lowering, key: Node) -> tuple[Node, Node]:
    """A key's (or an array of keys') two words."""
    shape = key.shape[:-1]
    if (
        key.op == "concatenate" and len(key.operands) == 2 and not shape
    ):  # the words it was made from, as scalars
        parts = [low.g.add("reshape", shape, WORD, (x,)) for x in key.operands]
    else:
        parts = [low.g.add("slice", shape, WORD, (key,), ("word", k)) for k in range(2)]
    return parts[0], parts[1]


def _counters(g: Graph, shape: Shape) -> tuple[Node, Node]:
    """Which draw it is, in two words. They do not change in a loop, and so are moved out of it."""
    if not shape:
        return g.constant(0, WORD), g.constant(0, WORD)
    wide = "uint64"
    count = rules.reshape(g, g.add("iota", (prod(shape),), wide, (), 0), shape)
    high = rules.elementwise(g, "shift-right", wide, (count, g.constant(32, wide)))
    return rules.elementwise(g, "convert", WORD, (high,)), rules.elementwise(g, "convert", WORD, (count,))


@rule("threefry2x32")
def _threefry(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    outs = [squeeze(full_shape(v.aval)[0]) for v in eqn.outvars]
    args = [
        x if x.shape in ((), outs[0]) else rules.broadcast(low.g, x, outs[0], range(len(x.shape))) for x in xs
    ]
    return _cipher(low, (args[0], args[1]), (args[2], args[3]))


@rule("random_bits")
def _bits(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape, dtype = full_shape(eqn.outvars[0].aval)
    if not _is_threefry(eqn) and xs[0].shape == (4,) and dtype == WORD and 0 not in shape:
        return [_philox(low.g, xs[0], squeeze(shape))]
    if not _is_threefry(eqn) or not _partitionable():
        return low.multi("custom-call", eqn, xs, "random_bits")
    out = squeeze(shape)
    a, b = _cipher(low, _halves(low, xs[0]), _counters(low.g, out))
    bits = _op(low.g, "xor", a, b)
    return [bits if dtype == WORD else rules.elementwise(low.g, "convert", dtype, (bits,))]


def _philox(g: Graph, key: Node, shape: Shape) -> Node:
    """The generator of "rbg" keys: four words a count, computed where they are read, side by side."""
    counts = -(-prod(shape) // 4)
    count = g.add("iota", (counts,), WORD, (), 0) if counts > 1 else g.constant(0, WORD)
    state = [g.add("slice", (), WORD, (key,), ("word", k)) for k in range(4)]
    words = [_op(g, "threefry", count, *state, attrs=("philox", k)) for k in range(4)]
    rows = g.add("concatenate", squeeze((counts, 4)), WORD, tuple(words), 1 if counts > 1 else 0)
    if counts * 4 != prod(shape):
        rows = g.add("slice", (prod(shape),), WORD, (rules.reshape(g, rows, (counts * 4,)),), "head")
    return rules.reshape(g, rows, shape)


@rule("random_split", "random_fold_in")
def _derive(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    out = full_shape(eqn.outvars[0].aval)[0]
    if not _is_threefry(eqn) or not _partitionable():
        return low.multi("custom-call", eqn, xs, eqn.primitive.name)
    lead = squeeze(out[:-1])
    keys = _halves(low, xs[0])
    if eqn.primitive.name == "random_fold_in":
        word = _op(low.g, "convert", xs[1]) if xs[1].dtype != WORD else xs[1]
        if word.shape != lead:
            word = rules.broadcast(low.g, word, lead, range(len(word.shape)))
        words = (low.g.scalar(0, lead, WORD), word)
    else:
        words = _counters(low.g, lead)
    parts = _cipher(low, keys, words)
    return [low.g.add("concatenate", (*lead, 2), WORD, tuple(parts), len(lead))]


@rule("random_seed")
def _seed(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    shape = squeeze(full_shape(eqn.outvars[0].aval)[0])
    word = _op(low.g, "convert", xs[0]) if xs[0].dtype != WORD else xs[0]
    return [low.g.add("concatenate", shape, WORD, (low.g.scalar(0, word.shape, WORD), word), len(shape) - 1)]


@rule("random_gamma", "rng_bit_generator", "rng_uniform")
def _other(low: Lowering, eqn: Any, xs: list[Node]) -> list[Node]:
    return low.multi("custom-call", eqn, xs, eqn.primitive.name)
