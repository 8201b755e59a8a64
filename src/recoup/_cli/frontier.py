"""The whole curve of peak memory against recomputation, with its knee. Nothing compiles.

Peaks are predictions (their upper end); `recoup fit` at a point's peak compiles and certifies it.
"""

import argparse

from recoup._cli.output import add_output, add_report, check_outputs, finish
from recoup._cli.plan import add_steps
from recoup._cli.target import add_target, load_target

SUMMARY = "show peak memory against recomputation (traces and solves only)"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--points", type=int, default=24, help="at most so many points (default: 24)")
    add_steps(parser)
    add_report(parser, perfetto=False)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    check_outputs(options)
    step, args = load_target(options.target)
    import recoup

    found = recoup.frontier(
        step, *args, points=options.points, donate_argnums=options.donate, regions=options.regions
    )
    finish(options, found, str(found))
    return 0
