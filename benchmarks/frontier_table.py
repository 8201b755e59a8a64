"""The frontier's results as Markdown: one table a model, and what was asked of them, each with its verdict.

Everything is computed from the JSON file; nothing here measures. Extra work is FLOPs over plain's less one.
"""

import statistics
from collections.abc import Iterable
from typing import Any

MIB = 2**20
Row = dict[str, Any]
PAGE_BYTES = 4096  # added to a by-hand point's total: programs with the same arrays differ by their scalars
_SHARES = ("70%", "50%", "30%")
_SAME = 1e-3  # of the step's FLOPs: a few elementwise operations more or less


def markdown(whole: Row) -> str:
    """The whole page."""
    models = list(whole["models"].values())
    versions = sorted({_version_line(model) for model in models})
    lines = [
        "# Memory against recomputation, on every model of the zoo",
        "",
        f"Made by `{whole['command']}` on {'; '.join(versions)}.",
        "",
        "Temporaries and totals are the compiler's (`memory_analysis`). FLOPs are counted on the jaxpr,",
        "loops times their length. A step ratio is the median over rounds of the time over plain's in",
        "the same round.",
        "`kept` marks by-hand points compiled with the option that keeps optimization barriers (needed",
        "before JAX 0.12); without it they are what a user of plain `jax.jit` gets. Equality is of every",
        "output: `bits`, or the largest distance to a float64 run of the same step over plain's own (each",
        "the largest of three runs at neighbouring arguments; of two where it says `j`: at the third the",
        "derivative jumps, between two inputs of a maximum that are equal but for rounding).",
        "",
        "## What was asked, and what came out",
        "",
        *_verdicts(models),
    ]
    for model in models:
        lines += ["", *_model_table(model)]
    return "\n".join(lines) + "\n"


def _version_line(model: Row) -> str:
    v = model["versions"]
    return f"JAX {v['jax']}, Python {v['python']}, {v['backend']}, {v['cores']} cores, recoup {v['recoup']}"


def _model_table(model: Row) -> list[str]:
    plain = model["variants"][0]
    low, estimate, high = (size / MIB for size in plain["predicted_temporaries_bytes"])
    lines = [
        f"## {model['model']}",
        "",
        f"{model['layout']}, {model['equations']:,} equations; plain: "
        f"{plain['temporaries_bytes'] / MIB:.1f} MiB of temporaries "
        f"(predicted {estimate:.1f}, between {low:.1f} and {high:.1f}), "
        f"{plain['total_bytes'] / MIB:.1f} in total, "
        f"{plain['flops'] / 1e9:.2f} GFLOP, {plain['step_seconds'] * 1e3:.0f} ms a step, compiled in "
        f"{plain['compile_seconds']:.1f} s; traced and planned in {model['planning']['plan_seconds']:.1f} s. "
        f"Step times: {model['rounds']} rounds, {model['date']}.",
        "",
        "| variant | budget | temporaries | of plain | FLOPs | step | equal | compile / fit |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    return lines + [_variant_line(row, plain) for row in model["variants"]]


def _variant_line(row: Row, plain: Row) -> str:
    budget = f"{row['budget_bytes'] / MIB:.1f}" if "budget_bytes" in row else ""
    if row.get("feasible") is False:
        cells = [_name(row), budget, "cannot be met", "", "", "", "", f"{row['fit_seconds']:.1f} s"]
    else:
        equal = "bits" if row["equal"] else f"{row['ratio_to_float64']:.2f}{' j' if row.get('jumps') else ''}"
        seconds = row["fit_seconds"] if row["kind"] == "recoup" else row["compile_seconds"]
        cells = [
            _name(row),
            budget,
            f"{row['temporaries_bytes'] / MIB:.1f}",
            f"{row['temporaries_bytes'] / plain['temporaries_bytes']:.2f}",
            f"{row['flops'] / plain['flops']:.3f}",
            f"{row['step_ratio']:.2f}",
            equal,
            f"{seconds:.1f} s",
        ]
    return f"| {' | '.join(cells)} |"


def _name(row: Row) -> str:
    if row["kind"] == "by hand":
        return f"by hand: {row['policy']}{', kept' if row['barriers_kept'] else ''}"
    return row["kind"] if row["kind"] == "plain" else f"recoup: {row['why']}"


def _verdicts(models: list[Row]) -> list[str]:
    checks = (
        ("Budgets at 70, 50, 30 % of plain's temporaries: certified where met", _budgets_met),
        ("Every output equal to plain's, or at most twice as far from float64", _outputs_agree),
        (
            "At the memory of every by-hand point (and a page of 4 KiB): no more extra FLOPs than by hand "
            "(to 0.1 % of the step's)",
            _beats_by_hand,
        ),
        (
            "The same, at points of 2 % extra FLOPs or more: at most 60 % of them (geometric mean)",
            _work_at_memory,
        ),
        (
            "At the FLOPs of every by-hand point: at most 80 % of its temporaries (geometric mean)",
            _memory_at_work,
        ),
        ("At 50 % of the temporaries: at most 5 % extra FLOPs on transformers", _half_is_cheap),
        ("Unrolled models: smallest recoup below the smallest by hand", _smallest_below),
        ("Predicted temporaries of plain within 25 %, median 10 %", _predicted_plain),
        (
            "Predicted temporaries of fitted steps (each model's worst) within 25 %, median 10 %",
            _predicted_fitted,
        ),
        ("Step time of matrix-product models: at most 1 + extra FLOPs + 5 %", _step_time),
        ("fit: at most 3 x plain's compile time (median, models of 1,000 equations or more)", _fit_time),
        ("Tracing and planning: at most plain's compile time (same models)", _plan_time),
    )
    lines = ["| asked | verdict | by model |", "|---|---|---|"]
    for title, check in checks:
        passed, details = check(models)
        lines.append(f"| {title} | {'yes' if passed else 'NO'} | {'; '.join(details)} |")
    return lines


def _fitted(model: Row) -> list[Row]:
    return [row for row in model["variants"] if row["kind"] == "recoup" and row["feasible"]]


def _extra(row: Row, model: Row) -> float:
    return row["flops"] / model["variants"][0]["flops"] - 1


def _budgets_met(models: list[Row]) -> tuple[bool, list[str]]:
    details, passed = [], True
    for model in models:
        rows = [r for r in model["variants"] if r["kind"] == "recoup" and "% of temporaries" in r["why"]]
        unmet = [share for share in _SHARES for r in rows if share in r["why"] and not r["feasible"]]
        passed &= all(row["certified"] for row in _fitted(model))
        if unmet:
            details.append(f"{model['model']}: not met at {', '.join(unmet)}")
    return passed, details or ["all met"]


def _outputs_agree(models: list[Row]) -> tuple[bool, list[str]]:
    details, passed = [], True
    for model in models:
        rows = _fitted(model)
        far = max((row["ratio_to_float64"] or 0.0 for row in rows), default=0.0)
        ulps = max((row["ulps"] for row in rows), default=0.0)
        same = sum(row["equal"] for row in rows)
        passed &= far <= 2.0
        details.append(
            f"{model['model']} {same}/{len(rows)} bits" + (f", {far:.2f}x, {ulps:.1f} ulp" if far else "")
        )
    return passed, details


def _beats_by_hand(models: list[Row]) -> tuple[bool, list[str]]:
    details, passed = [], True
    for model in models:
        recoup = [r for r in model["variants"] if r["kind"] == "recoup"]
        for hand in (r for r in model["variants"] if r["kind"] == "by hand"):
            for row in recoup:
                if not _at(row, hand):
                    continue
                if not row["feasible"] or _extra(row, model) > _extra(hand, model) + _SAME:
                    ours = f"{_extra(row, model):.1%}" if row["feasible"] else "cannot be met"
                    details.append(
                        f"{model['model']} {_name(hand)[9:]}: {ours} against {_extra(hand, model):.1%}"
                    )
                    passed = False
    return passed, details or ["never more"]


def _at(row: Row, hand: Row) -> bool:
    """Whether a fitted step's budget is a by-hand point's total, and a page."""
    return bool(row["budget_bytes"] == hand["total_bytes"] + PAGE_BYTES)


def _points(model: Row) -> list[Row]:
    """By-hand points as they are meant: with barriers kept, where that is an option of its own."""
    rows = [r for r in model["variants"] if r["kind"] == "by hand"]
    return [r for r in rows if r["barriers_kept"]] or rows


def _work_at_memory(models: list[Row]) -> tuple[bool, list[str]]:
    found: list[tuple[str, list[float]]] = []
    for model in models:
        ratios = []
        for hand in _points(model):
            rows = [r for r in _fitted(model) if _at(r, hand)]
            if _extra(hand, model) >= 0.02 and rows:
                least = min(_extra(r, model) for r in rows)
                ratios.append(max(least / _extra(hand, model), 0.01))  # nothing extra counts as a hundredth
        found.append((model["model"], ratios))
    return _geometric(found, 0.6)


def _memory_at_work(models: list[Row]) -> tuple[bool, list[str]]:
    found: list[tuple[str, list[float]]] = []
    for model in models:
        rows = [model["variants"][0], *_fitted(model)]
        ratios = [
            min(r["temporaries_bytes"] for r in rows if r["flops"] <= hand["flops"])
            / hand["temporaries_bytes"]
            for hand in _points(model)
        ]
        found.append((model["model"], ratios))
    return _geometric(found, 0.8)


def _geometric(found: list[tuple[str, list[float]]], limit: float) -> tuple[bool, list[str]]:
    together = [r for _, ratios in found for r in ratios]
    if not together:
        return False, ["no such point"]
    mean = statistics.geometric_mean(together)
    each = (f"{name} {statistics.geometric_mean(ratios):.2f}" for name, ratios in found if ratios)
    return mean <= limit, [f"mean {mean:.2f} over {len(together)} points", *each]


def _half_is_cheap(models: list[Row]) -> tuple[bool, list[str]]:
    found = [
        (model["model"], _extra(row, model))
        for model in models
        if model["transformer"]
        for row in _fitted(model)
        if "50% of temporaries" in row["why"]
    ]
    asked = sum(model["transformer"] for model in models)
    return all(e <= 0.05 for _, e in found) and len(found) == asked, [f"{name} {e:.1%}" for name, e in found]


def _smallest_below(models: list[Row]) -> tuple[bool, list[str]]:
    details, passed = [], True
    for model in models:
        hand = min(r["temporaries_bytes"] for r in model["variants"] if r["kind"] == "by hand")
        own = min((r["temporaries_bytes"] for r in _fitted(model)), default=None)
        if model["layout"] == "unrolled":
            passed &= own is not None and own < hand
        shown = f"{own / MIB:.1f}" if own is not None else "none"
        details.append(f"{model['model']} {shown} < {hand / MIB:.1f} MiB")
    return passed, details


def _errors_verdict(errors: list[tuple[str, float]]) -> tuple[bool, list[str]]:
    sizes = [abs(e) for _, e in errors]
    if not sizes:
        return False, ["nothing fitted"]
    median = statistics.median(sizes)
    return max(sizes) <= 0.25 and median <= 0.10, [
        f"median {median:.1%}",
        *(f"{n} {e:+.1%}" for n, e in errors),
    ]


def _predicted_plain(models: list[Row]) -> tuple[bool, list[str]]:
    return _errors_verdict([(model["model"], _error(model["variants"][0])) for model in models])


def _predicted_fitted(models: list[Row]) -> tuple[bool, list[str]]:
    worst = [(m["model"], max(map(_error, _fitted(m)), key=abs)) for m in models if _fitted(m)]
    return _errors_verdict(worst)


def _error(row: Row) -> float:
    return row["predicted_temporaries_bytes"][1] / row["temporaries_bytes"] - 1


def _step_time(models: list[Row]) -> tuple[bool, list[str]]:
    details, passed = [], True
    for model in models:
        if not model["products"]:
            continue
        over = [row["step_ratio"] - (1 + _extra(row, model) + 0.05) for row in _fitted(model)]
        if over:
            passed &= max(over) <= 0
            details.append(
                f"{model['model']} {sum(o <= 0 for o in over)}/{len(over)}, worst {max(over):+.2f}"
            )
    return passed, details


def _large(models: list[Row]) -> Iterable[Row]:
    return (model for model in models if model["equations"] >= 1000 and _fitted(model))


def _fit_time(models: list[Row]) -> tuple[bool, list[str]]:
    ratios = []
    for model in _large(models):
        seconds = statistics.median(row["fit_seconds"] for row in _fitted(model))
        ratios.append((model["model"], seconds / model["variants"][0]["compile_seconds"]))
    return _ratios_verdict(ratios, 3.0)


def _plan_time(models: list[Row]) -> tuple[bool, list[str]]:
    ratios = [
        (m["model"], m["planning"]["plan_seconds"] / m["planning"]["plain_compile_seconds"])
        for m in _large(models)
    ]
    return _ratios_verdict(ratios, 1.0)


def _ratios_verdict(ratios: list[tuple[str, float]], limit: float) -> tuple[bool, list[str]]:
    if not ratios:
        return True, ["no such model"]
    median = statistics.median(r for _, r in ratios)
    return median <= limit, [f"median {median:.2f}", *(f"{name} {r:.2f}" for name, r in ratios)]
