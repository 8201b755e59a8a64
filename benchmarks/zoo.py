"""The zoo: whole training steps whose activations dominate memory, in plain JAX, for benchmarks and tests.

Each entry makes `(step, args)`, gradient and update included, at a scale: `bench` is what the tables are
measured on (about 60 to 400 MiB of temporaries on CPU), `device` one for an accelerator (a few GiB), `small`
the same structure for tests; GPT also has
`large` (twice the batch), and `deep` and `deepest` (about 10,000 and 40,000 equations) for timing the
planner. `by_hand(policy)` is the same step with `jax.checkpoint` around each block or loop body under one of
JAX's built-in policies: what a user writes today. `float64` is the same step with the same numbers in double
precision.

    python -m benchmarks.zoo [--scale small] [--memory] [NAME ...]    lists entries; --memory compiles each
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models import dense, images, loops, transformers

POLICIES = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)

Step = Callable[..., Any]
Args = tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """One model: how to make it, and what a benchmark needs to know about it.

    `build(scale, policy)` returns `(step, args)`; `layout` is "unrolled" (a Python loop over blocks), "scan"
    (`lax.scan` over layers) or "loop" (a recurrence or time loop); `products` says that matrix products
    dominate its time; `draws` that the step draws from a key.
    """

    name: str
    build: Callable[[str, str | None], tuple[Step, Args]]
    layout: str
    products: bool = False
    transformer: bool = False
    draws: bool = False
    scales: tuple[str, ...] = ("bench", "device", "small")

    def make(self, scale: str = "bench") -> tuple[Step, Args]:
        """The step as a user writes it, and its arguments as JAX arrays."""
        return self._ready(scale, None)

    def by_hand(self, policy: str, scale: str = "bench") -> tuple[Step, Args]:
        """The same step with `jax.checkpoint` around each block or body under a built-in `policy`."""
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is none of {', '.join(POLICIES)}")
        return self._ready(scale, policy)

    def float64(self, scale: str = "bench") -> tuple[Step, Args]:
        """The same step with the same numbers in float64. Call and run it under `jax.enable_x64`."""
        if jnp.result_type(float) != np.float64:
            raise RuntimeError(
                "float64 is off: call this under jax.enable_x64(True), or set JAX_ENABLE_X64=1"
            )
        step, args = self._ready(scale, None)
        return step, jax.tree.map(_widen, args)

    def _ready(self, scale: str, policy: str | None) -> tuple[Step, Args]:
        if scale not in self.scales:
            raise ValueError(f"{self.name} has no scale {scale!r}; it has {', '.join(self.scales)}")
        step, args = self.build(scale, policy)
        return step, jax.tree.map(jnp.asarray, args)


def _widen(x: jax.Array) -> jax.Array:
    return x.astype(np.float64) if x.dtype == np.float32 else x


ZOO: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("mlp", dense.mlp, "unrolled", products=True),
        Entry(
            "gpt",
            transformers.gpt,
            "unrolled",
            products=True,
            transformer=True,
            scales=("bench", "device", "large", "small", "deep", "deepest"),
        ),
        Entry("gpt_scan", partial(transformers.gpt, scanned=True), "scan", products=True, transformer=True),
        Entry("vit", transformers.vit, "unrolled", products=True, transformer=True, draws=True),
        Entry(
            "moe",
            transformers.moe,
            "unrolled",
            products=True,
            transformer=True,
            scales=("bench", "small"),
        ),
        Entry("resnet", images.resnet, "unrolled"),
        Entry("unet", images.unet, "unrolled", draws=True),
        Entry("lstm", loops.lstm, "loop", products=True),
        Entry("pde", loops.pde, "loop", scales=("bench", "small")),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries (default: all)")
    parser.add_argument("--scale", default="bench")
    parser.add_argument("--memory", action="store_true", help="compile plain and by hand; print temporaries")
    options = parser.parse_args()
    for name in options.names or ZOO:
        entry = ZOO[name]
        step, args = entry.make(options.scale)
        equations = len(jax.make_jaxpr(step)(*args).jaxpr.eqns)
        line = f"{name:10} {entry.layout:9} {equations:6} equations"
        if options.memory:
            cells = []
            for policy in (None, *POLICIES):
                step, args = entry.by_hand(policy, options.scale) if policy else (step, args)
                compiled = jax.jit(step).lower(*args).compile().memory_analysis()
                cells.append(f"{policy or 'plain'} {compiled.temp_size_in_bytes / 2**20:.1f}")
            line += "  MiB: " + ", ".join(cells)
        print(line, flush=True)


if __name__ == "__main__":
    main()
