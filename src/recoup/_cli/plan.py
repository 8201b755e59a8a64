"""Decide what to keep and what to recompute so that a step fits a budget. Nothing compiles.

The numbers are predictions; `recoup fit` compiles the plan and has the compiler certify it.
"""

import argparse
from typing import Any

from recoup._cli.output import add_output, add_report, as_data, check_outputs, finish
from recoup._cli.target import add_target, load_target

SUMMARY = "plan a step into a budget (traces and solves only)"


def add_planning(parser: argparse.ArgumentParser) -> None:
    """The options that `plan` and `fit` share. The budget has no default: only the user knows it."""
    parser.add_argument(
        "-b",
        "--budget",
        required=True,
        help='for the whole step: bytes, "4GiB", "60%%" (of the unplanned step\'s total) or "device"',
    )
    add_steps(parser)
    parser.add_argument(
        "--offload",
        metavar="GB/S",
        nargs="?",
        const=True,
        default=False,
        type=rate,
        help="residuals may be moved to the host's memory and back, at this rate each way; without one, at a "
        "measured rate, where the host's memory is not the device's",
    )
    parser.add_argument(
        "--minimize",
        choices=("flops", "seconds"),
        default="flops",
        help="the extra work, counted; or the time on this device, predicted by `recoup calibrate`",
    )
    parser.add_argument("--save", metavar="FILE", help="store the plan, for another process to apply")


def add_steps(parser: argparse.ArgumentParser) -> None:
    """The options of whatever plans a step."""
    parser.add_argument(
        "--donate",
        metavar="0,1",
        type=indices,
        default=(),
        help="positions of arguments whose memory the step may reuse for its results",
    )
    parser.add_argument(
        "--regions",
        choices=("respect", "replan"),
        default="respect",
        help="keep the step's own jax.checkpoint regions as they are, or dissolve them and plan afresh",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_planning(parser)
    parser.add_argument(
        "--advise", action="store_true", help="also say which functions to wrap by hand to come closest"
    )
    add_report(parser)
    add_output(parser)


def planned(options: argparse.Namespace, how: str) -> Any:
    """What `recoup.plan` or `recoup.fit` (named by `how`) returns for the options; its plan stored if
    asked."""
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_outputs(options)
    step, args = load_target(options.target)
    import recoup

    offload = options.offload
    found = getattr(recoup, how)(
        step,
        *args,
        budget=budget.text,
        donate_argnums=options.donate,
        regions=options.regions,
        offload=offload if isinstance(offload, bool) else recoup.HostMemory(bytes_per_second=offload),
        minimize=options.minimize,
        **({"levers": False} if getattr(options, "no_levers", False) else {}),
    )
    if options.save is not None:
        plan = found if how == "plan" else found.plan
        plan.save(options.save, force=options.force)
    return found


def run(options: argparse.Namespace) -> int:
    plan = planned(options, "plan")
    if not options.advise:
        finish(options, plan, str(plan))
        return 0
    advice = plan.advise()
    data = as_data(plan) | {"advice": as_data(advice)} if options.json else None
    finish(options, plan, f"{plan}\n\n{advice}", data)
    return 0


def indices(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def rate(text: str) -> float:
    """GB/s as bytes a second."""
    value = float(text) * 1e9
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value
