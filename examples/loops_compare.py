"""What the loop examples share: several forms of one loss side by side, in compiled temporaries and
seconds."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def compare(losses: dict[str, Callable[..., Any]], *args: Any, rounds: int = 3) -> dict[str, Any]:
    """Compile the value and gradient of each, print temporaries and the median of a few interleaved runs.

    Returns the last (value, gradient) of each. The first entry is what the others are measured against.
    """
    programs, results = {}, {}
    for name, loss in losses.items():
        try:
            programs[name] = jax.jit(jax.value_and_grad(loss)).lower(*args).compile()
        except ValueError as error:
            print(f"  {name:<34} {str(error).splitlines()[0][:90]}")
    times: dict[str, list[float]] = {name: [] for name in programs}
    for round_ in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            results[name] = jax.block_until_ready(program(*args))
            if round_:
                times[name].append(time.perf_counter() - start)
    print(f"  {'':<34} {'temporaries':>12} {'gradient':>10}   difference to the first")
    first = next(iter(results.values()))
    for name, program in programs.items():
        size_bytes = program.memory_analysis().temp_size_in_bytes
        worst = max(jax.tree.leaves(jax.tree.map(relative, results[name][1], first[1])))
        seconds = statistics.median(times[name])
        print(f"  {name:<34} {size_bytes / 2**20:>8.2f} MiB {seconds:>8.3f} s   {worst:.1e}")
    print("  (memory: the compiler's temporaries; time: median on this machine, compiled)")
    return results


def relative(a: jax.Array, b: jax.Array) -> float:
    """Largest difference relative to the largest entry."""
    return float(jnp.max(jnp.abs(a - b)) / jnp.maximum(jnp.max(jnp.abs(b)), 1e-30))


def adam(params: Any, grads: Any, state: Any, rate: float) -> tuple[Any, Any]:
    """One step of Adam; `state` is (step, first moments, second moments), or None at the start."""
    if state is None:
        state = (0, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    t, m, v = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    scale = rate * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
    return jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, m, v), (t, m, v)


def peer_scan(checkpoints: int) -> Callable[..., Any] | None:
    """Equinox's checkpointed scan, where it is installed."""
    try:
        import equinox.internal as eqxi
    except ImportError:
        return None
    return lambda f, init, xs, length=None: eqxi.scan(
        f, init, xs, length, kind="checkpointed", checkpoints=checkpoints
    )
