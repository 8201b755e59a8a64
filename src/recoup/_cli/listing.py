"""What `recoup residuals` and `recoup timeline` share: tracing alone, the result shown or drawn."""

import argparse

from recoup._cli.output import add_output, add_report, check_outputs, finish
from recoup._cli.target import add_target, load_target


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_report(parser)
    add_output(parser)


def run(options: argparse.Namespace, name: str) -> int:
    """Runs `recoup.<name>` on the target."""
    check_outputs(options)
    step, args = load_target(options.target)
    import recoup

    found = getattr(recoup, name)(step, *args)
    finish(options, found, str(found))
    return 0
