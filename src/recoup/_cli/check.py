"""Fit a step into a budget, run it and the step as it is on the same inputs, and compare every output.

Arguments given as shapes are drawn. The exit code is 0 if every output is equal to the bit or differs by no
more than rounding explains, and 4 if one differs. Effects of the step happen once for each of the two runs.
"""

import argparse

from recoup._cli import EXIT_DIFFERS, EXIT_OK
from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.plan import add_planning
from recoup._cli.target import add_target, load_target

SUMMARY = "run a step plain and fitted, and compare the results"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_planning(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the inputs that are drawn (default 0); given ones stay"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    check_writable(options.save, force=options.force)
    step, args = load_target(options.target)
    import recoup

    fitted = recoup.fit(
        step, *args, budget=budget.text, donate_argnums=options.donate, regions=options.regions
    )
    if options.save is not None:
        fitted.plan.save(options.save, force=options.force)
    found = recoup.check(step, fitted, *args, seed=options.seed)
    emit(options, str(found), as_data(found) if options.json else None)
    return EXIT_OK if found else EXIT_DIFFERS
