"""A second store for the states of a long loop: host memory, beyond what the device may hold.

The loop is cut into pieces. The state at the start of each piece is moved to host memory (`pinned_host`);
within a piece, while it is reversed, the binomial engine holds its slots on the device. This is
`schedules.two_store`, with one advance more per piece (a piece's last step runs although only its derivative
is needed).

Source: the two-store programs of Aupy, Herrmann, Hovland and Robert (2016), with an unlimited second store.
It is made of `jax.checkpoint` with an offload policy around engine loops, so every derivative works. Limits:
a known length; on a CPU the host's memory is the device's, so it shows the mechanism and saves nothing.
Measured on one GPU (docs/accelerators.md).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from recoup._loops.schedules import two_store_interval

NAME = "recoup_second_store"
checkpoint_name: Any = ad_checkpoint.checkpoint_name


def offloaded_scan(
    inner: Callable[[Any, Any, int], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    length: int,
    interval: int,
    reverse: bool,
) -> tuple[Any, Any]:
    """Run `inner(carry, xs, steps)` piece by piece, each piece's first state in host memory.

    Args:
        inner: a loop of so many steps, bounded on the device.
        interval: steps in a piece; at least 1. What is left over runs as one piece more, which stays on the
            device.
        reverse: pieces are taken from the end of `xs`.
    """
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[NAME],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def piece(c: Any, x: Any) -> tuple[Any, Any]:
        return inner(jax.tree.map(_named, c), x, interval)

    pieces, left = divmod(length, interval)
    main = pieces * interval
    first = jax.tree.map((lambda x: x[left:]) if reverse else (lambda x: x[:main]), xs) if left else xs
    rest = jax.tree.map((lambda x: x[:left]) if reverse else (lambda x: x[main:]), xs)
    folded = jax.tree.map(lambda x: x.reshape(pieces, interval, *x.shape[1:]), first)
    held = jax.checkpoint(piece, policy=policy, prevent_cse=False)
    carry, ys = jax.lax.scan(held, carry, folded, length=pieces, reverse=reverse)
    ys = jax.tree.map(lambda y: y.reshape(main, *y.shape[2:]), ys)
    if left == 0:
        return carry, ys
    carry, more = inner(carry, rest, left)
    return carry, jax.tree.map(lambda a, b: jnp.concatenate([b, a] if reverse else [a, b]), ys, more)


def _named(leaf: Any) -> Any:
    """Keys stay on the device: they are small, and not every backend moves them."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return checkpoint_name(leaf, NAME)


def choose_interval(length: int, slots: int, transfer_cost: float) -> int:
    """Steps in a piece, from the cost of moving one state in units of one step; `length` where it does not
    pay."""
    return two_store_interval(length, slots, 1.0, transfer_cost, transfer_cost)
