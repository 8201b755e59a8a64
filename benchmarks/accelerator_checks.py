"""The checks of `benchmarks.accelerator`, each in a process of its own; its record is written as it grows.

A check is a generator: it compiles, runs and compares, yields once, and then times what it compiled. Between
the two the parent holds it back until nothing else runs on the device.

Equality is asked twice. Under the compiler's defaults a GPU multiplies in TF32 and picks kernels by timing
them, so that two programs, or two compilations of one, may differ. Under `EXACT` and the highest precision of
products they may differ by fusion only. Limits: one set of inputs.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import recoup
from benchmarks import regions
from benchmarks.agreement import distance, to_numpy
from benchmarks.measure import SHARES
from benchmarks.zoo import ZOO
from recoup import _cost, _memory

BY_HAND = ("nothing_saveable", "dots_with_no_batch_dims_saveable")
EXACT: dict[str, Any] = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
}
REGION_SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "device": {
        "dense": {"rows": 16384, "width": 1024},
        "attention": {"batch": 32, "tokens": 512},
        "convolution": {"batch": 256, "channels": 64},
    },
    "small": {
        "dense": {"rows": 512, "width": 64},
        "attention": {"batch": 2, "tokens": 64},
        "convolution": {"batch": 2, "channels": 16},
    },
}
ROUNDS = 9

Row = dict[str, Any]
Run = Callable[..., Any]


class Record:
    """What a check found, written to its file at every change: a check that is ended loses nothing."""

    def __init__(self, file: Path):
        self.file, self.began = file, time.perf_counter()
        self.data: Row = {"rows": [], "log": []}

    def add(self, row: Row) -> Row:
        self.data["rows"].append(row)
        self.say(str(row.get("variant", "")))
        return row

    def say(self, text: str) -> None:
        self.data["log"].append([round(time.perf_counter() - self.began, 1), text])
        self.save()

    def save(self) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.data))
        partial.replace(self.file)


def exact_options() -> dict[str, Any]:
    """Options under which a GPU's results depend on the program only; nothing on other backends."""
    return EXACT if jax.default_backend() in ("gpu", "cuda") else {}


def compile_row(variant: str, fun: Run, args: Any, options: dict[str, Any] | None = None) -> tuple[Row, Any]:
    """Compiles `fun`, and what the compiler says of it beside what the memory model does."""
    closed = jax.make_jaxpr(fun)(*args)
    began = time.perf_counter()
    compiled = jax.jit(fun).lower(*args).compile(compiler_options=options or None)
    seconds = time.perf_counter() - began
    return {"variant": variant, "compile_seconds": seconds} | sizes(compiled) | model(closed), compiled


def sizes(compiled: Any) -> Row:
    memory = compiled.memory_analysis()
    return {
        "temporaries_bytes": memory.temp_size_in_bytes,
        "total_bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "host_temporaries_bytes": getattr(memory, "host_temp_size_in_bytes", 0),
    }


def model(closed: Any) -> Row:
    predicted = _memory.predict(closed).estimate.temporaries_bytes
    return {"flops": _cost.flops(closed), "predicted_temporaries_bytes": predicted}


def compared(plain: Any, other: Any, exact: Any) -> Row:
    found = distance(plain, other, exact)
    return {"equal": found.equal, "ulps": found.ulps, "ratio_to_float64": found.ratio, "worst": found.worst}


def time_in_turn(rows: list[Row], runs: list[Run], args: Any, record: Record) -> None:
    """Median seconds of each, and the median over rounds of its time over the first one's in that round."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        jax.block_until_ready(run(*args))
    for _ in range(ROUNDS):
        for own, run in zip(times, runs, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(run(*args))
            own.append(time.perf_counter() - began)
    for row, own in zip(rows, times, strict=True):
        row["step_seconds"] = statistics.median(own)
        row["step_ratio"] = statistics.median(a / b for a, b in zip(own, times[0], strict=True))
    record.save()


def check_regions(name: str, scale: str, record: Record) -> Iterator[None]:
    """A region by hand under plain `jax.jit`: what it saves, what it multiplies again, and its results."""
    block, layers, x = regions.MODELS[name](**REGION_SIZES[scale][name])
    rows, runs, plain, exact_plain = [], [], None, None
    for variant, wrap in regions.VARIANTS.items():
        fun = regions._step(wrap(block))
        row, compiled = compile_row(variant, fun, (layers, x))
        row["products"] = regions._products(compiled.as_text())
        outputs = to_numpy(compiled(layers, x))
        plain = plain or outputs
        row |= compared(plain, outputs, None)
        with jax.default_matmul_precision("highest"):
            exact = jax.jit(regions._step(wrap(block))).lower(layers, x)
            outputs = to_numpy(exact.compile(compiler_options=exact_options() or None)(layers, x))
        exact_plain = exact_plain or outputs
        row["exact"] = compared(exact_plain, outputs, None)
        rows.append(record.add(row))
        runs.append(compiled)
    yield
    time_in_turn(rows, runs, (layers, x), record)


def check_zoo(name: str, scale: str, record: Record) -> Iterator[None]:
    """`recoup.fit` on a whole training step, beside plain and regions by hand."""
    entry = ZOO[name]
    step, args = entry.make(scale)
    row, compiled = compile_row("plain", step, args)
    plain, fixed = row, row["total_bytes"] - row["temporaries_bytes"]
    rows, runs = [record.add(row)], [compiled]
    outputs = to_numpy(compiled(*args))
    with jax.enable_x64(True):
        wide_step, wide = entry.float64(scale)
        truth = to_numpy(jax.jit(wide_step)(*wide))
        del wide
    record.say("float64")
    fits: dict[float, Any] = {}
    for share in SHARES:
        budget = fixed + int(share * plain["temporaries_bytes"])
        row = {"variant": f"recoup {share:.0%}", "budget_bytes": budget}
        began = time.perf_counter()
        try:
            fitted = recoup.fit(step, *args, budget=budget)
        except recoup.BudgetError as error:
            record.add(row | {"error": str(error), "fit_seconds": time.perf_counter() - began})
            continue
        row["fit_seconds"] = time.perf_counter() - began
        row |= {"compiles": fitted.compiles, "certified": fitted.memory.total_bytes <= budget}
        row |= sizes(fitted.compiled) | model(jax.make_jaxpr(fitted.fun)(*args))
        row |= compared(outputs, to_numpy(fitted(*args)), truth)
        rows.append(record.add(row))
        runs.append(fitted)
        fits[share] = (row, fitted)
    for policy in BY_HAND:
        by_hand, _ = entry.by_hand(policy, scale)
        row, compiled = compile_row(f"by hand: {policy}", by_hand, args)
        rows.append(record.add(row | compared(outputs, to_numpy(compiled(*args)), truth)))
        runs.append(compiled)
    if fits:
        share = 0.5 if 0.5 in fits else min(fits)
        row, fitted = fits[share]
        fitted.plan.save(record.file.with_suffix(".plan"), force=True)
        row["exact"] = _exactly(step, args, fitted.plan, truth)
        record.say("exact")
    yield
    time_in_turn(rows, runs, args, record)


def _exactly(step: Run, args: Any, plan: Any, truth: Any) -> Row:
    """The same plan and plain, with the highest precision of products and no choice of kernels by timing."""
    options = exact_options()
    with jax.default_matmul_precision("highest"):
        plain = jax.jit(step).lower(*args).compile(compiler_options=options or None)
        again = recoup.fit(step, *args, plan=plan, budget=2**62, compiler_options=options or None)
    outputs = to_numpy(plain(*args))
    repeated = distance(outputs, to_numpy(plain(*args)), None).equal
    return compared(outputs, to_numpy(again(*args)), truth) | {"plain_repeats_itself": repeated}


def check_loops(_: str, scale: str, record: Record) -> Iterator[None]:
    """Long loops in bounded memory, with the second store in host memory."""
    n, side = (512, 1024) if scale == "device" else (64, 64)
    key = jax.random.key(0)
    w = jax.random.normal(key, (side, side)) / jnp.sqrt(jnp.float32(side))
    u = jax.random.normal(jax.random.key(1), (side, side))
    xs = jnp.linspace(-1.0, 1.0, n)

    def loss(loop: Callable[..., Any]) -> Run:
        def f(w: Any, u: Any, xs: Any) -> Any:
            return jnp.mean(loop(lambda u, x: (jnp.tanh(u @ w) + 0.1 * x * u, None), u, xs) ** 2)

        return jax.value_and_grad(f, (0, 1))

    def scanned(scan: Any, **options: Any) -> Run:
        return loss(lambda f, u, xs: scan(f, u, xs, **options)[0])

    def while_loop(f: Any, u: Any, xs: Any) -> Any:
        body = lambda c: (c[0] + 1, f(c[1], xs[c[0]])[0])
        return recoup.while_loop(lambda c: c[0] < n, body, (jnp.int32(0), u), checkpoints=16)[1]

    variants = {
        "jax.lax.scan": scanned(jax.lax.scan),
        "scan, levels": scanned(recoup.scan, method="levels"),
        "scan, 16 slots": scanned(recoup.scan, checkpoints=16),
        "scan, 16 slots, store=host, every 32": scanned(
            recoup.scan, checkpoints=16, store="host", store_every=32
        ),
        "scan, 4 slots, store=host, every 8": scanned(
            recoup.scan, checkpoints=4, store="host", store_every=8
        ),
        "while_loop, 16 slots": loss(while_loop),
    }
    plain, rows, runs = None, [], []
    options = exact_options() or None
    for variant, fun in variants.items():
        row: Row = {"variant": variant, "steps": n, "state_bytes": u.nbytes}
        began = time.perf_counter()
        try:
            compiled = jax.jit(fun).lower(w, u, xs).compile(compiler_options=options)
            row |= {"compile_seconds": time.perf_counter() - began} | sizes(compiled)
            outputs = to_numpy(compiled(w, u, xs))
        except Exception as error:  # a table of what runs: one that does not is a row of it
            record.add(row | {"error": f"{type(error).__name__}: {error}"[:2000]})
            continue
        plain = plain or outputs
        rows.append(record.add(row | compared(plain, outputs, None)))
        runs.append(compiled)
    yield
    time_in_turn(rows, runs, (w, u, xs), record)


def check_instruments(_: str, scale: str, record: Record) -> Iterator[None]:
    """Do the instruments that read a compiled program read this backend's?"""
    from recoup import instruments
    from recoup._instruments.recomputed import recomputed_in

    step, args = ZOO["mlp"].make("small")
    total = jax.jit(step).lower(*args).compile().memory_analysis()
    budget = int(0.6 * total.temp_size_in_bytes) + total.argument_size_in_bytes + total.output_size_in_bytes
    fitted = recoup.fit(step, *args, budget=budget)
    readers = {
        "compiled": lambda: instruments.compiled(step, *args),
        "recomputed": lambda: recomputed_in(fitted.compiled),
        "report": lambda: fitted.picture(),
        "timeline": lambda: instruments.timeline(step, *args),
        "allocator": lambda: instruments.allocator(step, *args),
        "process": lambda: instruments.process(step, *args),
        "trace": lambda: instruments.trace(step, *args),
        "dump": lambda: instruments.dump(step, *args),
        "check": lambda: recoup.check(step, fitted, *args),
        "calibrate": lambda: recoup.calibrate(),
    }
    for name, read in readers.items():
        try:
            record.add({"variant": name, "text": str(read())[:1500]})
        except Exception as error:  # as above
            record.add({"variant": name, "error": f"{type(error).__name__}: {error}"[:2000]})
    yield


def check_allocator(name: str, scale: str, record: Record) -> Iterator[None]:
    """The device's own peak of one program: `MODEL:plain`, or `MODEL:PLAN FILE`."""
    model_name, _, which = name.partition(":")
    step, args = ZOO[model_name].make(scale)
    target: Any = step
    options = exact_options() or None
    if which == "plain":
        expected = sizes(jax.jit(step).lower(*args).compile(compiler_options=options))
    else:
        target = recoup.fit(step, *args, plan=which, budget=2**62, compiler_options=options)
        expected = sizes(target.compiled)
    found = recoup.instruments.allocator(
        target, *args, compiler_options=None if which != "plain" else options
    )
    variant = f"{model_name}, {'plain' if which == 'plain' else 'fitted'}"
    record.add({"variant": variant} | expected | found.to_dict())
    yield


def check_device(_: str, scale: str, record: Record) -> Iterator[None]:
    """`budget="device"` where the process may use less memory than the plain step needs."""
    step, args = ZOO["mlp"].make(scale)
    device = jax.local_devices()[0]
    before = device.memory_stats() or {}
    row: Row = {"variant": "fitted", "limit_bytes": before.get("bytes_limit")}
    row["in_use_before_bytes"] = before.get("bytes_in_use")
    fitted = recoup.fit(step, *args, budget="device")
    row |= sizes(fitted.compiled) | {"compiles": fitted.compiles, "budget_bytes": fitted.plan.budget_bytes}
    try:
        jax.block_until_ready(fitted(*args))
    except Exception as error:  # what is asked is whether it runs
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    row["peak_bytes"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
    record.add(row)
    compiled = jax.jit(step).lower(*args).compile()
    row = {"variant": "plain"} | sizes(compiled)
    try:
        jax.block_until_ready(compiled(*args))
    except Exception as error:  # out of memory is what is expected
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    record.add(row)
    yield


CHECKS = {
    "regions": check_regions,
    "zoo": check_zoo,
    "loops": check_loops,
    "instruments": check_instruments,
    "allocator": check_allocator,
    "device": check_device,
}


def main() -> None:
    """Prepares a check, says so, waits for a line, and times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", choices=CHECKS)
    parser.add_argument("name")
    parser.add_argument("scale")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    record = Record(options.file)
    check = CHECKS[options.kind](options.name, options.scale, record)
    next(check)
    record.say("ready")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in check:
        raise AssertionError("a check yields once")
    record.data["done"] = True
    record.say("done")


if __name__ == "__main__":
    main()
