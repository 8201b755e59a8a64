"""What the instruments say: the examples of docs/instruments.md, and the checks over the zoo.

    python -m benchmarks.instruments [example] [zoo] [speed] [--scale small|bench] [--write]

`example`: layers of tanh measured by several instruments, a dump and a trace; `zoo`: the residual total
against an independent count and the compiled arena against its breakdown, on every model; `speed`: residuals
and timeline on about 10,000 equations, tracing apart. Memory is exact for a JAX version; times are CPU
time of one run. `--write` stores what `zoo` and `speed` print in
`benchmarks/results/instruments-VERSION.md`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import recoup
from benchmarks.zoo import ZOO
from recoup import instruments
from recoup._barrier import FENCE_OPTIONS
from recoup._compat import BARRIERS_NEED_OPTION, Literal
from recoup._instruments.subject import prepare
from recoup._trace import trace

MIB = 2**20
KIB = 2**10


@dataclass(frozen=True)
class Row:
    """One program of the worked example; sizes in bytes, each under the instrument that read it."""

    name: str
    values_kept: int
    kept_bytes: int
    arguments_read_bytes: int
    temporaries_bytes: int
    recomputed: int
    process_bytes: int | None


def layers(count: int) -> Callable[..., Any]:
    """`count` layers of tanh(h @ w) and the sum of squares."""

    def loss(h: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(count):
            h = jnp.tanh(h @ w)
        return jnp.sum(h**2)

    return loss


def example_arguments() -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """h: f32[256,512] (512 KiB), w: f32[512,512] (1 MiB)."""
    return jax.ShapeDtypeStruct((256, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)


def programs() -> dict[str, Callable[..., Any]]:
    """The losses of the worked example."""
    return {
        "four layers": layers(4),
        "sixteen layers": layers(16),
        "four in jax.checkpoint": jax.checkpoint(layers(4)),
        "four in recoup.checkpoint": recoup.checkpoint(layers(4)),
    }


def example_row(name: str, loss: Callable[..., Any], *, run: bool) -> Row:
    """One program under several instruments; `run` also runs it in a process of its own."""
    args = example_arguments()
    kept = recoup.residuals(loss, *args)
    step = jax.value_and_grad(loss, argnums=(0, 1))
    subject = prepare(step, args)
    found = instruments.arena_of(subject.compiled)
    process = instruments.process(step, *args).step_bytes if run else None
    return Row(
        name,
        sum(item.kind == "computed" for item in kept.items),
        kept.total_bytes,
        kept.argument_bytes,
        found.temporaries_bytes,
        instruments.recomputed(step, *args).heavy_count,
        process,
    )


def dump_example() -> instruments.Dump:
    """The dump of `tanh(p @ p).sum()`, p 256 x 256."""
    return instruments.dump(lambda p: jnp.tanh(p @ p).sum(), jax.ShapeDtypeStruct((256, 256), jnp.float32))


def trace_example(size: int = 600) -> instruments.Trace:
    """Ten dispatched steps of three products."""

    def step(p: jax.Array) -> jax.Array:
        for _ in range(3):
            p = jnp.tanh(p @ p * 0.001)
        return p

    return instruments.trace(step, jnp.ones((size, size)), steps=10)


def counted_crossing(step: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Bytes that cross from forward to backward operations, counted on the flat jaxpr and nothing else."""
    flat = trace(step, args).flat
    made: set[Any] = set()
    crossed: dict[Any, int] = {}
    for eqn in flat.eqns:
        if "transpose(" in str(eqn.source_info.name_stack):
            for v in eqn.invars:
                if not isinstance(v, Literal) and v in made:
                    crossed[v] = v.aval.size * v.aval.dtype.itemsize
        else:
            made.update(eqn.outvars)
    return sum(crossed.values())


def zoo_row(name: str, scale: str, policy: str | None = None) -> dict[str, Any]:
    """One model: the residual total against the count, and the arena against its breakdown."""
    step, args = ZOO[name].by_hand(policy, scale) if policy else ZOO[name].make(scale)
    options = FENCE_OPTIONS if BARRIERS_NEED_OPTION else None
    arena = instruments.compiled(step, *args, compiler_options=options)
    return {
        "name": f"{name}{'/' + policy if policy else ''}",
        "residuals_bytes": recoup.residuals(step, *args).total_bytes,
        "counted_bytes": counted_crossing(step, args),
        "temporaries_bytes": arena.temporaries_bytes,
        "occupants_bytes": sum(o.bytes for o in arena.occupants),
        "alive": arena.alive_bytes / arena.temporaries_bytes,
        "attributed": arena.attributed_bytes / arena.temporaries_bytes,
    }


def speed_row() -> dict[str, Any]:
    """Seconds of CPU time after tracing on GPT at its `deep` scale (about 10,000 equations)."""
    step, args = ZOO["gpt"].make("deep")
    began = time.process_time()
    equations = len(jax.make_jaxpr(step)(*args).eqns)
    tracing = time.process_time() - began
    row: dict[str, Any] = {"equations": equations, "tracing_s": tracing}
    for name in ("residuals", "timeline"):
        # the second tracing finds JAX's caches filled, so this is the smaller of what could be taken off
        began = time.process_time()
        jax.make_jaxpr(step)(*args)
        again = time.process_time() - began
        began = time.process_time()
        getattr(recoup, name)(step, *args)
        row[f"{name}_s"] = time.process_time() - began - again
    return row


def _example() -> None:
    print("| program | values kept (residuals) | bytes | arguments read | temporaries (compiled) |"
          " products again (recomputed) | process |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for name, loss in programs().items():
        row = example_row(name, loss, run=True)
        assert row.process_bytes is not None
        print(
            f"| {name} | {row.values_kept} | {row.kept_bytes / MIB:.1f} MiB | "
            f"{row.arguments_read_bytes / MIB:.1f} MiB | {row.temporaries_bytes / MIB:.2f} MiB | "
            f"{row.recomputed} | {row.process_bytes / MIB:.1f} MiB |",
            flush=True,
        )
    print()
    print(instruments.compiled(jax.value_and_grad(layers(4), argnums=(0, 1)), *example_arguments()))
    print()
    print(dump_example())
    print()
    print(trace_example())


def _zoo(scale: str) -> list[str]:
    lines = [
        "| model | residuals, bytes | as counted | arena, bytes | its parts add up | alive | to a line |",
        "|---|---:|---|---:|---|---:|---:|",
    ]
    print("\n".join(lines))
    for name in ZOO:
        for policy in (None, "nothing_saveable"):
            row = zoo_row(name, scale, policy)
            equal = "yes" if row["residuals_bytes"] == row["counted_bytes"] else "NO"
            exact = "yes" if row["occupants_bytes"] == row["temporaries_bytes"] else "NO"
            sizes = row["residuals_bytes"], row["temporaries_bytes"]
            shares = f"{row['alive']:.2%} | {row['attributed']:.2%}"
            lines.append(f"| {row['name']} | {sizes[0]} | {equal} | {sizes[1]} | {exact} | {shares} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["example", "zoo", "speed"])
    parser.add_argument("--scale", default="small", choices=["small", "bench"])
    parser.add_argument("--write", action="store_true", help="store zoo and speed in benchmarks/results")
    options = parser.parse_args()
    stored: list[str] = []
    print(f"JAX {jax.__version__}, {jax.default_backend()}")
    if "example" in options.parts:
        _example()
    if "zoo" in options.parts:
        stored += _zoo(options.scale)
    if "speed" in options.parts:
        row = speed_row()
        speed = (
            f"{row['equations']} equations, traced in {row['tracing_s']:.2f} s of CPU time; after tracing: "
            f"residuals {row['residuals_s']:.2f} s, timeline {row['timeline_s']:.2f} s."
        )
        print(speed)
        stored += ["", speed]
    if options.write:
        path = Path(__file__).parent / "results" / f"instruments-{jax.__version__}.md"
        head = (
            f"# The instruments on the zoo, JAX {jax.__version__}, {jax.default_backend()}, {options.scale}"
        )
        made = "Made by `python -m benchmarks.instruments zoo speed --write`; what is measured is said there."
        path.write_text("\n".join([head, "", made, "", *stored, ""]))


if __name__ == "__main__":
    main()
