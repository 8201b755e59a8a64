"""Train a character-level GPT on the text that Python carries, plain and fitted into a budget, side by side.

Prints what reverse mode keeps, the plan, the planned memory before the first step, the compiler's
certificate, and then the losses, step times and process peaks of both.
"""

import argparse
import importlib.util
import io
import sys

from recoup._cli.output import add_output, check_writable, emit
from recoup._demo.settings import Settings, add_settings, settings_from
from recoup.errors import RecoupError

SUMMARY = "see it work: a small GPT, plain and fitted, side by side"


class MissingExtraError(RecoupError, ImportError):
    """The demo needs Optax, which recoup itself does not."""

    code = "E-DEMO-002"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, Settings())
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget
    from recoup._demo.session import run_demo
    from recoup._demo.show import Screen
    from recoup._progress import Progress

    settings = settings_from(options)
    parse_budget(settings.budget)
    check_writable(options.output, force=options.force)
    if importlib.util.find_spec("optax") is None:
        raise MissingExtraError("the demo trains with Optax, which is missing: pip install 'recoup[demo]'")
    # with --json or --output the text is collected; it is shown as it happens otherwise
    stream = io.StringIO() if options.json or options.output else sys.stdout
    with Progress() as progress:
        shown = Screen(settings, stream, progress)
        result = run_demo(settings, shown.say)
        shown.finish(result)
    if isinstance(stream, io.StringIO):
        emit(options, stream.getvalue().rstrip("\n"), result)
    return 0
