"""Decide what to keep and what to recompute so that a step fits a budget. Nothing compiles.

The numbers are predictions; `recoup fit` compiles the plan and has the compiler certify it.
"""

import argparse

from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.target import add_target, load_target

SUMMARY = "plan a step into a budget (traces and solves only)"


def add_budget(parser: argparse.ArgumentParser) -> None:
    """The option --budget, which has no default: only the user knows it."""
    parser.add_argument(
        "-b",
        "--budget",
        required=True,
        help='for the whole step: bytes, "4GiB", "60%%" (of the unplanned step\'s total) or "device"',
    )


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_budget(parser)
    parser.add_argument("--save", metavar="FILE", help="store the plan, for another process to apply")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    check_writable(options.save, force=options.force)
    step, args = load_target(options.target)
    import recoup
    from recoup._progress import Progress

    with Progress() as progress:
        progress.stage("tracing and planning")
        plan = recoup.plan(step, *args, budget=budget.text)
    if options.save is not None:
        plan.save(options.save, force=options.force)
    emit(options, str(plan), as_data(plan) if options.json else None)
    return 0
