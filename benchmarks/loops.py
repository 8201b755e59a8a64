"""Long loops under a bounded reverse pass: counts, bytes, compile times and run times, beside plain and the
peers.

Run: `python benchmarks/loops.py [--full] [--write FILE]`. Bytes are `temp_size_in_bytes` of the compiled
program's memory analysis; times are medians of 5 interleaved runs of compiled programs in this process, so
compare within a row only; evaluations are counted by the schedule's model machine, whose counts the tests
confirm by executing callbacks. The peers (equinox, diffrax) are used where they are installed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import recoup
from recoup._loops.api import segment_scan
from recoup._loops.machine import execute
from recoup._loops.schedules import (
    binomial,
    extra,
    online,
    online_advances,
    optimal_advances,
    taped,
    taped_advances,
)

WIDTH = 16384  # 64 KiB of float32
STATE = WIDTH * 4
MIB = 2**20
lines: list[str] = []


def say(text: str = "") -> None:
    print(text, flush=True)
    lines.append(text)


def table(headers: list[str], rows: list[list[Any]]) -> None:
    say("| " + " | ".join(headers) + " |")
    say("|" + "---|" * len(headers))
    for row in rows:
        say("| " + " | ".join(str(c) for c in row) + " |")
    say()


def step(v: jax.Array, u: jax.Array) -> jax.Array:
    return u + jnp.float32(0.01) * jnp.sin(v * jnp.roll(u, 1))


def inputs(width: int = WIDTH) -> tuple[jax.Array, jax.Array]:
    v = jnp.linspace(0, 1, width)
    return v, jnp.cos(v * 9)


def known(scan: Callable[..., Any], n: int) -> Callable[..., Any]:
    """Loss of a loop whose length is known."""

    def loss(v: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.sum(scan(lambda u, _: (step(v, u), None), u, None, n)[0] ** 2)

    return loss


def unknown(loop: Callable[..., Any], n: int) -> Callable[..., Any]:
    """Loss of a loop that stops when its own counter says so."""

    def loss(v: jax.Array, u: jax.Array) -> jax.Array:
        out = loop(lambda c: c[1] < n, lambda c: (step(v, c[0]), c[1] + 1), (u, jnp.int32(0)))
        return jnp.sum(out[0] ** 2)

    return loss


def ours(**options: Any) -> Callable[..., Any]:
    return lambda f, init, xs, n: recoup.scan(f, init, xs, n, **options)


def nested(counts: list[int], tape: bool) -> Callable[..., Any]:
    """Nested `jax.checkpoint` scans, as one writes them by hand."""
    return lambda f, init, xs, n: segment_scan(f, init, xs, n, counts, tape=tape)


def compiled(fun: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    program = jax.jit(fun).lower(*args).compile()
    return program, time.perf_counter() - start


def label(options: dict[str, Any], n: int) -> str:
    """The mechanism that `recoup.scan` takes for the step above, its weight an operand."""
    v, u = inputs()

    def plan(v: jax.Array) -> None:
        found.append(recoup.loop_plan(lambda u, _: (step(v, u), None), u, length=n, **options).chosen.label)

    found: list[str] = []
    jax.eval_shape(plan, v)
    return found[0]


def temp_mib(program: Any) -> float:
    return program.memory_analysis().temp_size_in_bytes / MIB


def race(programs: dict[str, Any], args: tuple[Any, ...], rounds: int = 5) -> dict[str, tuple[float, float]]:
    """Medians of (seconds, processor seconds of all threads), run in turn so that a busy machine slows all of
    them."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for program in programs.values():
        jax.block_until_ready(program(*args))
    for _ in range(rounds):
        for name, program in programs.items():
            start, busy = time.perf_counter(), time.process_time()
            jax.block_until_ready(program(*args))
            times[name].append((time.perf_counter() - start, time.process_time() - busy))
    median = statistics.median
    return {name: (median(a for a, _ in t), median(b for _, b in t)) for name, t in times.items()}


def seconds(pair: tuple[float, float]) -> list[str]:
    return [f"{pair[0]:.3f} s", f"{pair[1]:.3f} s"]


def counts(full: bool) -> None:
    say("## Executions are the binomial optimum")
    top, most = (250, 20) if full else (120, 12)
    checked = 0
    for n in range(top + 1):
        for s in range(1, most + 1):
            run = execute(binomial(n, s), n, s)
            assert (run.advances, run.reverses) == (optimal_advances(n, s), n)
            assert run.peak_slots <= s
            checked += 1
    say(f"{checked} schedules (n <= {top}, s <= {most}) executed by the model machine: all equal, all legal.")
    checked = 0
    for n in range(0, top + 1, 7):
        for s in range(1, most + 1):
            for tape in (2, 3, 5, 8, 16):
                run = execute(taped(n, s, tape), n, s, tape)
                assert (run.advances, run.reverses) == (taped_advances(n, s, tape), n)
                assert run.peak_slots <= s
                checked += 1
    say(f"{checked} schedules with tapes of 2 to 16 steps likewise: as many as counted, all legal.")
    rows = []
    for s in (5, 10, 20, 45, 64):
        ratios, n = [], 2 * s
        while n <= 20_000:
            ratios.append((online_advances(n, s) + n) / (optimal_advances(n, s) + n))
            n = max(n + 1, n * 101 // 100)
        for n in (1000, 10_000):
            best = optimal_advances(n, s) + n
            got = execute(online(n, s), n, s).advances + n
            worst = f"{max(ratios):.3f}, mean {sum(ratios) / len(ratios):.3f}" if n == 1000 else ""
            rows.append([n, s, best, got, f"{got / best:.3f}", worst])
    heads = ["steps", "slots", "binomial evaluations", "online evaluations", "ratio"]
    table([*heads, "at most, from 2 x slots to 20,000 steps"], rows)


def compile_times(full: bool) -> None:
    say("## Compile time and temporaries against the length (64 slots, states of 64 KiB)")
    lengths = [10**3, 10**4, 10**5, 10**6]
    forms = {
        "binomial": lambda n: known(ours(checkpoints=64), n),
        "online": lambda n: unknown(lambda c, b, i: recoup.while_loop(c, b, i, checkpoints=64), n),
        "binomial with tapes, budget 4.25 MiB": lambda n: known(ours(budget="4.25MiB"), n),
        "levels": lambda n: known(ours(method="levels"), n),
    }
    rows = []
    for name, make in forms.items():
        compiled(jax.grad(make(500), (0, 1)), *inputs())
        seconds: dict[int, list[float]] = {n: [] for n in lengths}
        temps = {}
        for _ in range(5):
            for n in lengths:
                program, t = compiled(jax.grad(make(n), (0, 1)), *inputs())
                seconds[n].append(t)
                temps[n] = temp_mib(program)
        medians = [statistics.median(seconds[n]) for n in lengths]
        limit = f"{67 * STATE / MIB:.2f}" if name in ("binomial", "online") else ""
        rows.append(
            [name, *[f"{t:.2f} s" for t in medians], f"{max(medians) / min(medians) - 1:.0%}",
             *[f"{temps[n]:.2f}" for n in lengths], limit]
        )  # fmt: skip
    heads = [f"compile 10^{k}" for k in (3, 4, 5, 6)] + ["spread"] + [f"MiB 10^{k}" for k in (3, 4, 5, 6)]
    table(["form", *heads, "(slots + 3) states"], rows)


def against_peers(full: bool) -> None:
    say("## Beside plain, equinox and nested jax.checkpoint: value and gradient, 1000 steps of 64 KiB")
    try:
        import equinox.internal as eqxi
    except ImportError:
        eqxi = None
    n = 1000
    for slots in (10, 20, 64) if full else (20, 64):
        contenders = {
            "plain lax.scan": known(jax.lax.scan, n),
            f"recoup binomial, {slots}": known(ours(checkpoints=slots), n),
            f"recoup online, {slots}": unknown(
                lambda c, b, i, s=slots: recoup.while_loop(c, b, i, checkpoints=s), n
            ),
        }
        if eqxi is not None:
            contenders[f"equinox scan, {slots}"] = known(
                lambda f, init, xs, n, s=slots: eqxi.scan(f, init, xs, n, kind="checkpointed", checkpoints=s),
                n,
            )
            contenders[f"equinox while, {slots}"] = unknown(
                lambda c, b, i, s=slots: eqxi.while_loop(c, b, i, kind="checkpointed", checkpoints=s), n
            )
        if slots == 64:
            for size, tape in ((4.25, False), (6.75, True)):
                budget = {"budget": int(size * MIB), "method": "binomial"}
                contenders["nested 25 x 40" + ", tape" * tape] = known(nested([25], tape), n)
                contenders[f"recoup in the same memory: {label(budget, n)}"] = known(ours(**budget), n)
        programs = {k: compiled(jax.value_and_grad(f, (0, 1)), *inputs())[0] for k, f in contenders.items()}
        times = race(programs, inputs())
        plain = times["plain lax.scan"]
        rows = [
            [k, f"{temp_mib(p):.2f}", *seconds(times[k]), f"{times[k][1] / plain[1]:.2f}"]
            for k, p in programs.items()
        ]
        table([f"{slots} slots", "temporaries MiB", "time", "processor time", "processor time x plain"], rows)


def diffrax_race(full: bool) -> None:
    say("## Beside Diffrax: Euler steps of an ODE through its recursive adjoint, equal checkpoints")
    try:
        import diffrax
    except ImportError:
        say("diffrax is not installed here\n")
        return
    n, rows = 1000, []
    h = jnp.float32(0.01)

    def field(t: Any, u: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sin(v * jnp.roll(u, 1))

    for slots in (20, 64):

        def theirs(v: jax.Array, u: jax.Array, slots: int = slots) -> jax.Array:
            out = diffrax.diffeqsolve(
                diffrax.ODETerm(field), diffrax.Euler(), jnp.float32(0), n * h, h, u, v,
                saveat=diffrax.SaveAt(t1=True), max_steps=2 * n, throw=False,
                adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=slots),
            )  # fmt: skip
            return jnp.sum(out.ys[-1] ** 2)

        def mine(v: jax.Array, u: jax.Array, slots: int = slots) -> jax.Array:
            def body(c: Any) -> Any:
                u, t = c
                return u + h * field(t, u, v), t + h

            out = recoup.while_loop(
                lambda c: c[1] < (n - 0.5) * h, body, (u, jnp.float32(0)), checkpoints=slots, max_steps=2 * n
            )
            return jnp.sum(out[0] ** 2)

        programs = {
            "recoup.while_loop": compiled(jax.value_and_grad(mine, (0, 1)), *inputs())[0],
            "diffrax recursive adjoint": compiled(jax.value_and_grad(theirs, (0, 1)), *inputs())[0],
        }
        times = race(programs, inputs())
        rows += [[slots, k, f"{temp_mib(p):.2f}", *seconds(times[k])] for k, p in programs.items()]
    table(["slots", "", "temporaries MiB", "time", "processor time"], rows)


def long_loop(full: bool) -> None:
    say("## 10^5 steps of 64 KiB within 16 MiB")
    n, rows = 10**5, []
    budget = 16 * MIB
    v, u = inputs()
    plan = recoup.loop_plan(lambda u, _: (step(v, u), None), u, length=n, budget=budget)
    forms = {
        "budget='16MiB'": {"budget": budget},
        "levels": {"budget": budget, "method": "levels"},
        "slots alone": {"checkpoints": 250},
    }
    for name, options in forms.items():
        chosen = recoup.loop_plan(lambda u, _: (step(v, u), None), u, length=n, **options)
        program, _ = compiled(jax.value_and_grad(known(ours(**options), n), (0, 1)), v, u)
        seconds = ""
        if full:
            busy = time.process_time()
            jax.block_until_ready(program(v, u))
            seconds = f"{time.process_time() - busy:.1f} s"
        extra_share = f"{(chosen.recomputed or 0) / n:.2f}"
        rows.append([name, chosen.chosen.label, f"{temp_mib(program):.2f}", extra_share, seconds])
    plain, _ = compiled(jax.value_and_grad(known(jax.lax.scan, n), (0, 1)), v, u)
    rows.append(["plain lax.scan", "", f"{temp_mib(plain):.0f}", "0", "not run"])
    heads = ["", "mechanism", "temporaries MiB", "extra evaluations a step", "processor time of one run"]
    table(heads, rows)
    say("```\n" + str(plan) + "\n```\n")


def layers(ws: list[jax.Array], u: jax.Array) -> jax.Array:
    for w in ws:
        u = u + jnp.float32(0.1) * jnp.tanh(jnp.tanh(u @ w) @ w.T)
    return u


def large_residuals(full: bool) -> None:
    say("## A step with large residuals: 12 layers, states of 64 KiB, 100 steps")
    n = 100
    ws = [jax.random.normal(k, (64, 128)) / 8 for k in jax.random.split(jax.random.key(0), 12)]
    u = jax.random.normal(jax.random.key(1), (256, 64))

    def loss(scan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ws, u: jnp.sum(scan(lambda u, _: (layers(ws, u), None), u, None, n)[0] ** 2)

    forms: dict[str, Callable[..., Any]] = {"plain lax.scan": jax.lax.scan}
    forms["slots alone, 20"] = ours(checkpoints=20)
    forms["slots alone, 1"] = ours(checkpoints=1)
    plans: dict[str, Any] = {}
    for size in (4, 3, 2):
        name = f"budget='{size}MiB'"
        forms[name] = ours(budget=size * MIB)
        plans[name] = recoup.loop_plan(lambda u, _: (layers(ws, u), None), u, length=n, budget=size * MIB)
    programs = {k: compiled(jax.value_and_grad(loss(f), (0, 1)), ws, u)[0] for k, f in forms.items()}
    times = race(programs, (ws, u))
    plain = programs["plain lax.scan"](ws, u)
    rows = []
    for name, program in programs.items():
        got = program(ws, u)
        worst = max(relative(a, b) for a, b in zip(*map(jax.tree.leaves, (got, plain)), strict=True))
        plan = plans.get(name)
        what = "" if plan is None else f"{plan.chosen.label}; {plan.evaluations / n:.2f}"
        ratio = times[name][1] / times["slots alone, 20"][1]
        rows.append([name, what, f"{temp_mib(program):.2f}", f"{ratio:.2f}", f"{worst:.0e}"])
    heads = ["", "mechanism; evaluations a step", "temporaries MiB", "processor time x slots alone, 20"]
    table([*heads, "gradient against plain"], rows)
    say("```\n" + str(plans["budget='2MiB'"]) + "\n```\n")


def captured_weight(full: bool) -> None:
    say("## A captured weight of 4 MiB (1000 steps, states of 4 KiB): what its gradient costs")
    w = jnp.ones((1024, 1024), jnp.float32) / 1024
    u = jnp.ones((1024,), jnp.float32)
    n, rows = 1000, []

    def make(scan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w, u: jnp.sum(scan(lambda u, _: (jnp.tanh(w @ u), None), u, None, n)[0] ** 2)

    forms = {
        "binomial, 64 slots": ours(checkpoints=64),
        "binomial with tapes, budget 5 MiB": ours(budget="5MiB", method="binomial"),
        "2 levels": nested([25], False),
        "3 levels": nested([10, 10], False),
        "plain": jax.lax.scan,
    }
    for name, scan in forms.items():
        program, _ = compiled(jax.grad(make(scan), (0, 1)), w, u)
        rows.append([name, f"{temp_mib(program):.2f}"])
    table(["", "temporaries MiB (the gradient itself is an output)"], rows)


def agreement(full: bool) -> None:
    say("## Agreement with plain (1000 steps, 64 slots)")
    n, rows = 1000, []
    v, u = inputs(2048)
    forms = {"binomial": known(ours(checkpoints=64), n), "levels": known(ours(method="levels"), n)}
    forms["online"] = unknown(lambda c, b, i: recoup.while_loop(c, b, i, checkpoints=64), n)
    forms["binomial with tapes"] = known(ours(budget=70 * 8192, method="binomial"), n)
    plain = known(jax.lax.scan, n)

    def hvp(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda v, u: jax.jvp(jax.grad(f, (0, 1)), (v, u), (u, v))[1]

    expected, expected_hvp = jax.jit(jax.grad(plain, (0, 1)))(v, u), jax.jit(hvp(plain))(v, u)
    for name, f in forms.items():
        got, got_hvp = jax.jit(jax.grad(f, (0, 1)))(v, u), jax.jit(hvp(f))(v, u)
        same = [
            "equal to the bit" if bool((a == b).all()) else f"{relative(a, b):.1e}"
            for a, b in zip(got, expected, strict=True)
        ]
        worst = max(relative(a, b) for a, b in zip(got_hvp, expected_hvp, strict=True))
        rows.append([name, *same, f"{worst:.1e}"])
    table(["form", "gradient to the weight", "to the state", "Hessian-vector product, relative"], rows)


def relative(a: Any, b: Any) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def hvp_bytes(full: bool) -> None:
    say("## Second derivatives (1000 steps of 64 KiB, 64 slots): temporaries in MiB")
    n, rows = 1000, []
    forms = {
        "plain": known(jax.lax.scan, n),
        "binomial": known(ours(checkpoints=64), n),
        "2 levels": known(nested([25], False), n),
        "binomial with tapes, budget 4.25 MiB": known(ours(budget="4.25MiB"), n),
        "online": unknown(lambda c, b, i: recoup.while_loop(c, b, i, checkpoints=64), n),
    }
    for name, f in forms.items():

        def forward(v: jax.Array, u: jax.Array, f: Callable[..., Any] = f) -> Any:
            return jax.jvp(jax.grad(f, (0, 1)), (v, u), (u, v))[1]

        def reverse(v: jax.Array, u: jax.Array, f: Callable[..., Any] = f) -> Any:
            return jax.grad(lambda v, u: jnp.vdot(jax.grad(f, 1)(v, u), v), (0, 1))(v, u)

        rows.append([name, *[f"{temp_mib(compiled(g, *inputs())[0]):.1f}" for g in (forward, reverse)]])
    table(["form", "forward over reverse", "reverse over reverse"], rows)


def second_store(full: bool) -> None:
    say("## A second store on disk: 10,000 steps of 64 KiB, 20 slots in memory")
    import tempfile

    n, slots, rows = 10_000, 20, []
    with tempfile.TemporaryDirectory() as directory, recoup.DiskStore(directory, transfer_cost=5.0) as store:
        disk = {"checkpoints": slots, "store": store}
        forms = {
            "binomial, 20 slots": known(ours(checkpoints=slots), n),
            "and a state on disk every 231 steps": known(ours(store_every=231, **disk), n),
            "and where predicted cheapest": known(ours(**disk), n),
        }
        programs = {k: compiled(jax.value_and_grad(f, (0, 1)), *inputs())[0] for k, f in forms.items()}
        times = race(programs, inputs(), rounds=1)
        rows = [[k, f"{temp_mib(p):.2f}", *seconds(times[k])] for k, p in programs.items()]
    table(["", "temporaries MiB", "time", "processor time"], rows)


SECTIONS = {
    "counts": counts,
    "compile": compile_times,
    "peers": against_peers,
    "diffrax": diffrax_race,
    "long": long_loop,
    "residuals": large_residuals,
    "weight": captured_weight,
    "agreement": agreement,
    "second": hvp_bytes,
    "store": second_store,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full", action="store_true", help="every count to n = 250, s = 20; run the long loop too"
    )
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), help="these sections")
    parser.add_argument("--write", metavar="FILE", help="append the tables to a Markdown file")
    options = parser.parse_args()
    assert extra(1000, 10) == 3636
    say(f"# Loops, JAX {jax.__version__}, {jax.default_backend()}")
    say()
    for name, section in SECTIONS.items():
        if not options.only or name in options.only:
            section(options.full)
    if options.write:
        with open(options.write, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
