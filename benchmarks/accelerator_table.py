"""The Markdown of `benchmarks.accelerator`: what was found, with versions, and what was not verified."""

from typing import Any

MIB = 2**20

Row = dict[str, Any]


def markdown(whole: Row) -> str:
    """The tables of one run."""
    v = whole["versions"]
    checks: list[Row] = whole["checks"]
    lines = [
        f"# recoup on {v['device']}",
        "",
        f"Made by `python -m benchmarks.accelerator` on {whole['date']}: JAX {v['jax']}, "
        f"jaxlib {v['jaxlib']}, Python {v['python']}, NumPy {v['numpy']}, recoup {v['recoup']}, backend "
        f"{v['backend']}; memory spaces: {', '.join(v['memory_kinds'])}; scale `{whole['scale']}`.",
        "",
        "Temporaries: the compiler's memory analysis. Predicted: the memory model's error; it imitates XLA",
        "on CPU. Time: median over rounds of a variant's step time over plain's in the same round, alone",
        "on the device. Equal: to plain's bits, or the largest difference in units in the last place of an",
        "output's largest value and (after the comma) the distance to a float64 run over plain's own.",
        "`default`: the compiler's defaults (products in TF32 on a GPU, kernels chosen by timing). `exact`:",
        "the highest precision of products, deterministic operations, no choice by timing.",
    ]
    for kind, write in (
        ("regions", _regions),
        ("zoo", _zoo),
        ("allocator", _allocator),
        ("device", _device),
        ("loops", _loops),
        ("instruments", _instruments),
    ):
        chosen = [check for check in checks if check["kind"] == kind]
        if chosen:
            lines += ["", *write(chosen)]
    if whole["tests"]:
        lines += ["", *_tests(whole["tests"])]
    failed = [check for check in checks if "failed" in check]
    if failed:
        lines += ["", "## Not finished", ""]
        for check in failed:
            step = check["log"][-1][1] if check["log"] else "nothing"
            lines.append(f"- {check['kind']} {check['name']}, after {step!r}: {_line(check['failed'])}")
    return "\n".join(lines) + "\n"


def _regions(checks: list[Row]) -> list[str]:
    lines = [
        "## Regions under plain `jax.jit`",
        "",
        "Products: matrix products and convolutions in the optimized program, beyond plain's.",
        "",
        "| blocks | variant | MiB | predicted | products more | default | exact | ms | time |",
        "|---|---|---:|---:|---:|---|---|---:|---:|",
    ]
    for check in checks:
        for row in check["rows"]:
            lines.append(
                f"| {check['name']} | {row['variant']} | {_mib(row['temporaries_bytes'])} "
                f"| {_off(row)} | {row['products'] - check['rows'][0]['products']} "
                f"| {_equal(row)} | {_equal(row['exact'])} | {_ms(row)} | {_ratio(row)} |"
            )
    return lines


def _zoo(checks: list[Row]) -> list[str]:
    lines = [
        "## `recoup.fit` on whole training steps",
        "",
        "Budgets are arguments and results plus 70, 50 and 30 % of plain's temporaries.",
        "",
        "| model | variant | MiB | of plain | certified | compiles | predicted | FLOPs | default | exact "
        "| ms | time |",
        "|---|---|---:|---:|---|---:|---:|---:|---|---|---:|---:|",
    ]
    for check in checks:
        if not check["rows"]:
            continue
        plain = check["rows"][0]
        for row in check["rows"]:
            if "error" in row:
                lines.append(
                    f"| {check['name']} | {row['variant']} | {row['error'][:160]} | | no | | | | | | | |"
                )
                continue
            certified = {True: "yes", False: "NO", None: ""}[row.get("certified")]
            lines.append(
                f"| {check['name']} | {row['variant']} | {_mib(row['temporaries_bytes'])} "
                f"| {row['temporaries_bytes'] / max(1, plain['temporaries_bytes']):.3f} | {certified} "
                f"| {row.get('compiles', '')} | {_off(row)} | {row['flops'] / plain['flops']:.3f} "
                f"| {_equal(row)} | {_equal(row.get('exact'))} | {_ms(row)} | {_ratio(row)} |"
            )
    return lines


def _allocator(checks: list[Row]) -> list[str]:
    lines = [
        "## The allocator's peak",
        "",
        "`peak_bytes_in_use` of a process that ran this step only; total is the compiler's.",
        "",
        "| step | compiler's total MiB | temporaries | peak MiB | before the step | reached by the step |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in (row for check in checks for row in check["rows"]):
        lines.append(
            f"| {row['variant']} | {_mib(row['total_bytes'])} | {_mib(row['temporaries_bytes'])} "
            f"| {_mib(row['peak_bytes'])} | {_mib(row['before_bytes'])} | {row['reached_by_step']} |"
        )
    return lines


def _device(checks: list[Row]) -> list[str]:
    lines = [
        '## `budget="device"`',
        "",
        "The MLP in a process that may use less memory than the plain step needs.",
        "",
        "| step | limit MiB | budget | compiler's total | compiles | peak | outcome |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in (row for check in checks for row in check["rows"]):
        lines.append(
            f"| {row['variant']} | {_mib(row.get('limit_bytes'))} | {_mib(row.get('budget_bytes'))} "
            f"| {_mib(row['total_bytes'])} | {row.get('compiles', '')} | {_mib(row.get('peak_bytes'))} "
            f"| {_line(row.get('error', 'runs'))} |"
        )
    return lines


def _loops(checks: list[Row]) -> list[str]:
    lines = [
        "## Long loops",
        "",
        "`u -> tanh(u @ w) + x u`, value and gradients; exact options. Host: temporaries in host memory.",
        "",
        "| loop | steps | state MiB | device MiB | host MiB | equal | compile s | ms | time |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in (row for check in checks for row in check["rows"]):
        start = f"| {row['variant']} | {row['steps']} | {_mib(row['state_bytes'])} "
        if "error" in row:
            lines.append(f"{start}| | | {_line(row['error'])} | | | |")
            continue
        lines.append(
            f"{start}| {_mib(row['temporaries_bytes'])} | {_mib(row['host_temporaries_bytes'])} "
            f"| {_equal(row)} | {row['compile_seconds']:.1f} | {_ms(row)} | {_ratio(row)} |"
        )
    return lines


def _instruments(checks: list[Row]) -> list[str]:
    lines = ["## Instruments", "", "| instrument | reads this backend's programs |", "|---|---|"]
    for row in (row for check in checks for row in check["rows"]):
        lines.append(f"| {row['variant']} | {_line(row['error']) if 'error' in row else 'yes'} |")
    return lines


def _tests(rows: list[Row]) -> list[str]:
    lines = ["## Tests", "", "| file | passed | failed | skipped | finished |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ended = "yes" if row["finished"] else "no"
        lines.append(f"| {row['file']} | {row['passed']} | {row['failed']} | {row['skipped']} | {ended} |")
    failures = [_line(failure) for row in rows for failure in row["failures"]]
    return lines + (["", *[f"- {failure}" for failure in failures]] if failures else [])


def _mib(size: Any) -> str:
    return "" if size is None else f"{size / MIB:,.1f}"


def _off(row: Row) -> str:
    actual = row["temporaries_bytes"]
    return f"{(row['predicted_temporaries_bytes'] - actual) / max(1, actual):+.1%}"


def _equal(row: Row | None) -> str:
    if row is None or "equal" not in row:
        return ""
    if row["equal"]:
        return "bits"
    ratio = row["ratio_to_float64"]
    return f"{row['ulps']:.1f}" + ("" if ratio is None else f", {ratio:.2f}x")


def _ms(row: Row) -> str:
    return f"{1e3 * row['step_seconds']:.2f}" if "step_seconds" in row else ""


def _ratio(row: Row) -> str:
    return f"{row['step_ratio']:.3f}" if "step_ratio" in row else ""


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:200]
