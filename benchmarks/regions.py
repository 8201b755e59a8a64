"""Regions by hand: `recoup.checkpoint` around each block against `jax.checkpoint` and against plain.

Dense, attention and convolution blocks under plain `jax.jit(jax.value_and_grad(...))`, dense ones also with
the gradient for the input only. For each: the compiler's temporaries; products (matrix products and
convolutions) in the compiled program beyond plain's, beside how many the regions' backward reads, counted
from the trace; whether results equal plain's to the bit; and the step time: all three are compiled first and
timed in turn, round by round; a ratio is the median over rounds of one variant's time over another's in the
same round.

    python -m benchmarks.regions [--rounds 9] [--many 500,1000,5000] [--out FILE]

Each model runs in a process of its own. `--many` times tracing and compiling so many small regions in a row.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import recoup

MIB = 2**20
Model = tuple[Callable[..., Any], list[Any], Any]


def dense(rows: int = 4096, width: int = 256) -> Model:
    """Eight blocks `h = tanh(x @ w1); h = tanh(h * h); x + tanh(h @ w2)`, four times as wide inside."""

    def block(x: Any, params: Any) -> Any:
        w1, w2 = params
        h = jnp.tanh(x @ w1)
        h = jnp.tanh(h * h)
        return x + jnp.tanh(h @ w2)

    return (
        block,
        [(_normal(i, width, 4 * width), _normal(i + 100, 4 * width, width)) for i in range(8)],
        _normal(0, rows, width),
    )


def attention(batch: int = 8, tokens: int = 128) -> Model:
    """Four transformer blocks, width 256, four heads, hidden width 1024."""

    def norm(x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def block(x: Any, params: Any) -> Any:
        qkv, out, up, down = params
        q, k, v = jnp.moveaxis((norm(x) @ qkv).reshape(*x.shape[:2], 3, 4, 64), 2, 0)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ out
        return x + jax.nn.gelu(norm(x) @ up) @ down

    shapes = ((256, 768), (256, 256), (256, 1024), (1024, 256))
    layers = [tuple(_normal(10 * i + j, *shape) for j, shape in enumerate(shapes)) for i in range(4)]
    return block, layers, _normal(0, batch, tokens, 256)


def convolution(batch: int = 16, channels: int = 32) -> Model:
    """Four residual blocks of two 3x3 convolutions, 32x32 pixels."""

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def block(x: Any, params: Any) -> Any:
        a, b = params
        return x + conv(jax.nn.gelu(conv(jnp.tanh(x), a)), b)

    shape = (3, 3, channels, channels)
    layers = [(_normal(i, *shape), _normal(i + 50, *shape)) for i in range(4)]
    return block, layers, _normal(0, batch, 32, 32, channels)


MODELS = {"dense": dense, "dense, input only": dense, "attention": attention, "convolution": convolution}
VARIANTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda block: block,
    "jax.checkpoint": jax.checkpoint,
    "recoup.checkpoint": recoup.checkpoint,
}


def _normal(seed: int, *shape: int) -> Any:
    scale = 1.0 / np.sqrt(np.prod(shape[:-1]) if len(shape) != 3 else 1.0)
    return jax.random.normal(jax.random.key(seed), shape) * np.float32(scale)


def _step(block: Any, argnums: int) -> Callable[..., Any]:
    def loss(layers: Any, x: Any) -> Any:
        for params in layers:
            x = block(x, params)
        return jnp.sum(x**2)

    return jax.value_and_grad(loss, argnums)


def _read(jaxpr: Any, inside: bool = False) -> int:
    """Products that the backward of the regions in a jaxpr reads, and so has to compute again."""
    count = 0
    for eqn in jaxpr.eqns:
        again = inside and "rematted_computation" in str(eqn.source_info.name_stack)
        count += again and eqn.primitive.name in ("dot_general", "conv_general_dilated")
        if eqn.primitive.name == "recoup_region":
            count += _read(eqn.params["jaxpr"], eqn.params["stage"] == "backward")
    return count


def _products(text: str) -> int:
    names = (" dot(", " convolution(", "__onednn$matmul", "__eigen_conv", "__onednn$conv")
    gpu = ('custom_call_target="__cublas$', 'custom_call_target="__cudnn$conv')
    return sum(text.count(name) for name in names + gpu)


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of one model: one for each variant."""
    block, layers, x = MODELS[name]()
    rows: list[dict[str, Any]] = []
    runs = []
    reference = None
    argnums = 1 if "input only" in name else 0
    read = _read(jax.make_jaxpr(_step(recoup.checkpoint(block), argnums))(layers, x).jaxpr)
    for variant, wrap in VARIANTS.items():
        compiled = jax.jit(_step(wrap(block), argnums)).lower(layers, x).compile()
        outputs = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(layers, x))]
        reference = outputs if reference is None else reference
        rows.append(
            {
                "model": name,
                "variant": variant,
                "temporaries_bytes": compiled.memory_analysis().temp_size_in_bytes,
                "products": _products(compiled.as_text()),
                "read": read if variant != "plain" else 0,
                "equal": all(np.array_equal(a, b) for a, b in zip(outputs, reference, strict=True)),
                "seconds": [],
            }
        )
        runs.append(compiled)
    for _ in range(rounds):
        for row, run in zip(rows, runs, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(layers, x))
            row["seconds"].append(time.perf_counter() - start)
    return rows


def many(counts: list[int]) -> list[dict[str, Any]]:
    """Seconds of processor time to trace and to compile so many regions in a row."""
    region = recoup.checkpoint(lambda x, w: jnp.tanh(x * w))
    rows = []
    for count in counts:

        def loss(x: Any, w: Any, count: int = count) -> Any:
            for _ in range(count):
                x = region(x, w)
            return x.sum()

        start = time.process_time()
        lowered = jax.jit(jax.grad(loss)).lower(jnp.ones(8), jnp.ones(8))
        traced = time.process_time()
        lowered.compile()
        rows.append({"regions": count, "trace": traced - start, "compile": time.process_time() - traced})
    return rows


def table(rows: list[dict[str, Any]], counts: list[dict[str, Any]]) -> str:
    """The results as Markdown, with the versions and the instruments."""
    lines = [
        f"## JAX {jax.__version__}, Python {platform.python_version()}, {platform.machine()} CPU",
        "",
        "Temporaries: the compiler's memory analysis. Products more: counted in the optimised HLO, beyond",
        "plain; read: those whose results the regions' backward reads, counted from the trace.",
        "Equal: outputs equal plain's to the bit. Times: median over rounds of the ratio within a round.",
        "",
        "| blocks | variant | MiB | of plain | products more | read | equal "
        "| time/plain | time/jax.checkpoint |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        group = {row["variant"]: row for row in rows if row["model"] == name}
        plain, by_hand = group["plain"], group["jax.checkpoint"]
        for row in group.values():
            lines.append(
                f"| {name} | {row['variant']} | {row['temporaries_bytes'] / MIB:.1f} "
                f"| {row['temporaries_bytes'] / plain['temporaries_bytes']:.3f} "
                f"| {row['products'] - plain['products']} | {row['read']} "
                f"| {'yes' if row['equal'] else 'no'} "
                f"| {_ratio(row, plain):.3f} | {_ratio(row, by_hand):.3f} |"
            )
    if counts:
        lines += ["", "| regions in a row | trace s | compile s |", "|---|---|---|"]
        lines += [f"| {row['regions']} | {row['trace']:.2f} | {row['compile']:.2f} |" for row in counts]
    return "\n".join(lines) + "\n"


def _ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
    return statistics.median(a / b for a, b in zip(row["seconds"], other["seconds"], strict=True))


def main() -> None:
    """Runs each model in a process of its own and prints or writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--many", default="", help="numbers of regions in a row, separated by commas")
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.rounds)))
        return
    rows = []
    for name in args.models.split(";"):
        command = [sys.executable, "-m", "benchmarks.regions", "--child", name, "--rounds", str(args.rounds)]
        rows += json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    counts = many([int(n) for n in args.many.split(",") if n])
    text = table(rows, counts)
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
