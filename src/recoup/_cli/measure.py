"""Measure a step with several instruments, cheapest first, and print one table.

`recoup instruments` lists them. With one --only, that instrument's own table is printed.
"""

import argparse

from recoup._cli.output import add_output, check_writable, emit
from recoup._cli.plan import indices
from recoup._cli.target import add_target, load_target
from recoup._instruments.catalogue import COSTS, NAMES

SUMMARY = "measure a step with instruments up to a chosen cost"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--upto",
        choices=COSTS,
        default="compile",
        help="the most that may be spent (default: compile); run runs the step, with zeros for mere shapes",
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=NAMES, default=[], help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="steps of the trace (default: 10)")
    parser.add_argument(
        "--donate",
        metavar="0,1",
        type=indices,
        default=(),
        help="positions of arguments whose memory the step may reuse for its results",
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    check_writable(options.output, force=options.force)
    step, args = load_target(options.target)
    from recoup import instruments

    found = instruments.measure(
        step, *args, upto=options.upto, only=options.only, steps=options.steps, donate_argnums=options.donate
    )
    text = str(found)
    if len(options.only) == 1 and found.results:
        text = str(found[options.only[0]])
    emit(options, text, found.to_dict() if options.json else None)
    return 0
