"""A second store on disk: states of a long loop in memory-mapped files of a directory that the user names.

As in `offload`, the loop is cut into pieces whose first states leave memory; within a piece the binomial
engine holds its slots. Files are written during the forward pass and mapped during the reverse pass, one per
piece and carry, and removed when the store is closed, collected, or the interpreter ends. A later run of the
same loop overwrites them.

Errors lose nothing: a full disk raises where the state was written, the incomplete file is removed, and the
program's inputs are untouched. A pullback whose states a later run has overwritten raises instead of reading
them.

Limits: reverse mode of first order (a `custom_vjp`), a known length, no vmap, one process; meant for CPUs.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recoup._loops.compute import run_p
from recoup._loops.spec import Loop, ShapeDtype, differentiable, merge, pick, spread
from recoup.errors import PlanError

State = list[Any]


class DiskStore:
    """Files for the states of loops, in a new directory under `directory`.

    Args:
        directory: an existing directory with room for `states x bytes of a state`.
        transfer_cost: of writing or reading one state, in units of one step; decides how often states are
            stored.

    Raises:
        NotADirectoryError: if there is no such directory.
    """

    def __init__(self, directory: str | os.PathLike[str], transfer_cost: float = 10.0) -> None:
        if not os.path.isdir(directory):
            raise NotADirectoryError(f"DiskStore: {os.fspath(directory)!r} is not an existing directory")
        self.path = tempfile.mkdtemp(prefix="recoup-loop-", dir=directory)
        self.transfer_cost = transfer_cost
        self._runs: dict[int, int] = {}
        self._loops = 0
        self._clean = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def close(self) -> None:
        """Remove all files; loops that were differentiated through this store can no longer be pulled
        back."""
        self._clean()

    def __enter__(self) -> "DiskStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_loop(self) -> int:
        """A number for one loop of a traced program."""
        self._loops += 1
        return self._loops

    def begin(self, loop: int) -> np.ndarray[Any, Any]:
        """Start a run of a loop: its number, which every write and read of the run carries."""
        self._runs[loop] = self._runs.get(loop, 0) + 1
        return np.int32(self._runs[loop])  # type: ignore[return-value]

    def write(self, loop: int, run: Any, piece: Any, *arrays: Any) -> np.ndarray[Any, Any]:
        """Store the state at the start of a piece; returns the run, so that what follows depends on it."""
        for k, array in enumerate(arrays):
            name = self._name(loop, int(piece), k)
            values = np.ascontiguousarray(array)
            try:
                values.tofile(name)
            except OSError:
                if os.path.exists(name):
                    os.remove(name)
                raise
        return np.int32(run)  # type: ignore[return-value]

    def read(self, loop: int, avals: list[Any], run: Any, piece: Any) -> tuple[Any, ...]:
        """The state at the start of a piece, mapped from its files."""
        if self._runs.get(loop) != int(run) or not self._clean.alive:
            why = (
                "the store is closed" if not self._clean.alive else "a later run of this loop overwrote them"
            )
            raise PlanError(f"states of a loop are no longer on disk: {why}; run the forward pass again")
        return tuple(
            np.memmap(self._name(loop, int(piece), k), a.dtype, "r", shape=a.shape)
            if a.size
            else np.zeros(a.shape, a.dtype)
            for k, a in enumerate(avals)
        )

    def _name(self, loop: int, piece: int, k: int) -> str:
        return os.path.join(self.path, f"{loop}-{piece}-{k}")


def stored_pieces(
    store: DiskStore, inner: Callable[[State, State, State], tuple[State, State]], pieces: int, reverse: bool
) -> Callable[[State, State, State], tuple[State, State]]:
    """`(consts, carry, folded xs) -> (carry, folded ys)` that keeps each piece's first state on disk.

    Args:
        inner: one piece, `(consts, carry, xs of the piece) -> (carry, ys of the piece)`, flat lists.
        pieces: how many; xs and ys have a leading axis of so many.
        reverse: pieces are taken from the last to the first.
    """
    loop = store.new_loop()
    scalar = ShapeDtype((), np.int32)

    def forward(consts: State, carry: State, xs: State) -> tuple[State, State, Any]:
        # the first state's own bytes start the run, so that nothing can start it before the loop is reached
        run = jax.pure_callback(lambda _: store.begin(loop), scalar, _plain(carry)[0].ravel()[:1])

        def piece(c: Any, kx: Any) -> Any:
            run, carry = c
            k, x = kx
            run = jax.pure_callback(
                lambda r, k, *a: store.write(loop, r, k, *a), scalar, run, k, *_plain(carry)
            )
            carry, ys = inner(consts, carry, x)
            return (run, carry), ys

        numbers = jnp.arange(pieces, dtype=jnp.int32)
        (run, carry), ys = jax.lax.scan(piece, (run, carry), (numbers, xs), reverse=reverse)
        return carry, ys, run

    @jax.custom_vjp
    def whole(consts: State, carry: State, xs: State) -> tuple[State, State]:
        state = carry

        def piece(carry: State, x: State) -> Any:
            return inner(consts, carry, x)

        out: tuple[State, State] = jax.lax.scan(piece, state, xs, length=pieces, reverse=reverse)
        return out

    def fwd(consts: State, carry: State, xs: State) -> Any:
        out, ys, run = forward(consts, carry, xs)
        return (out, ys), (consts, xs, run, carry)

    def bwd(kept: Any, cts: Any) -> Any:
        consts, xs, run, init = kept
        ct_carry, ct_ys = cts
        on_c, on_k, on_x = ([differentiable(a) for a in part] for part in (consts, init, xs))
        shapes = [ShapeDtype(a.shape, a.dtype) for a in _plain(init)]

        def piece(c: Any, kx: Any) -> Any:
            ct, acc = c
            k, x, ct_y = kx
            # the index depends on the cotangent's arrival through the scan, so reads follow their order
            raw = jax.pure_callback(lambda r, k: store.read(loop, shapes, r, k), tuple(shapes), run, k)
            state = _restore(raw, init)

            def fun(mc: State, mk: State, mx: State) -> Any:
                out, y = inner(
                    merge(on_c, mc, pick(consts, [not m for m in on_c])),
                    merge(on_k, mk, pick(state, [not m for m in on_k])),
                    merge(on_x, mx, pick(x, [not m for m in on_x])),
                )
                return pick(out, on_k), [v for v in y if differentiable(v)]

            _, pull = jax.vjp(fun, pick(consts, on_c), pick(state, on_k), pick(x, on_x))
            g, ct, gx = pull((ct, ct_y))
            return (ct, [a + b for a, b in zip(acc, g, strict=True)]), gx

        numbers = jnp.arange(pieces, dtype=jnp.int32)
        zeros = [jnp.zeros_like(a) for a in pick(consts, on_c)]
        floats_y = [c for c in ct_ys if c.dtype != jax.dtypes.float0]
        start = (pick(ct_carry, on_k), zeros)
        (ct, acc), gx = jax.lax.scan(piece, start, (numbers, xs, floats_y), reverse=not reverse)
        return spread(on_c, acc), spread(on_k, ct), spread(on_x, gx)

    whole.defvjp(fwd, bwd)
    return whole


def disk_scan(
    store: DiskStore,
    traced: Any,
    xs: Any,
    n: int,
    interval: int,
    reverse: bool,
    slots: int,
    inner: Callable[..., Any],
    unroll: int,
) -> Any:
    """A scan of `n` steps whose pieces of `interval` steps start from states on disk; the rest runs in
    memory.

    `traced` is the body with its flat operands, `inner(carry, xs, steps)` the same loop on trees.
    """
    body = traced.body
    loop = Loop(
        body.jaxpr,
        len(body.consts),
        len(traced.init),
        len(traced.xs),
        len(body.out_avals) - len(traced.init),
        slots,
        length=interval,
        reverse=reverse,
        unroll=unroll,
    ).silent()

    def piece(consts: State, carry: State, x: State) -> tuple[State, State]:
        out = run_p.bind(jnp.int32(interval), *consts, *carry, *x, loop=loop, save=False)
        return list(out[: loop.num_carry]), list(out[loop.num_carry :])

    pieces, left = divmod(n, interval)
    main = pieces * interval
    begin = left if reverse else 0
    folded = [x[begin : begin + main].reshape(pieces, interval, *x.shape[1:]) for x in traced.xs]
    whole = stored_pieces(store, piece, pieces, reverse)
    out, ys = whole(list(body.consts), list(traced.init), folded)
    flat = [*out, *[y.reshape(main, *y.shape[2:]) for y in ys]]
    carry, stacked = jax.tree.unflatten(body.out_tree, flat)
    if left == 0:
        return carry, stacked
    rest = jax.tree.map((lambda x: x[:left]) if reverse else (lambda x: x[main:]), xs)
    carry, more = inner(carry, rest, left)
    return carry, jax.tree.map(lambda a, b: jnp.concatenate([b, a] if reverse else [a, b]), stacked, more)


def _plain(carry: State) -> State:
    """Arrays that can be written: keys as their data."""
    return [jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in carry]


def _restore(raw: Any, like: State) -> State:
    return [
        jax.random.wrap_key_data(a, impl=jax.random.key_impl(b))
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key)
        else a
        for a, b in zip(raw, like, strict=True)
    ]
