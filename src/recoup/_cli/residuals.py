"""List what reverse mode keeps from the forward pass for the backward pass. Nothing compiles or runs.

Each value with its bytes, shape, the operation that made it and its source line; values inside a loop with
bytes per iteration and in total.
"""

import argparse

from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.target import add_target, load_target

SUMMARY = "list what reverse mode keeps (traces only)"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    check_writable(options.output, force=options.force)
    step, args = load_target(options.target)
    import recoup

    found = recoup.residuals(step, *args)
    emit(options, str(found), as_data(found) if options.json else None)
    return 0
