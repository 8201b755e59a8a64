"""Predict the memory of a step operation by operation, and who is alive at the peak. Nothing runs."""

import argparse

from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.target import add_target, load_target

SUMMARY = "predict memory operation by operation (traces only)"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    check_writable(options.output, force=options.force)
    step, args = load_target(options.target)
    import recoup

    found = recoup.timeline(step, *args)
    emit(options, str(found), as_data(found) if options.json else None)
    return 0
