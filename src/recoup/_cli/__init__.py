"""The `recoup` command: parses the words, runs one command, turns errors into one line and an exit code.

Each command is a module of this package with `SUMMARY` (one line), `configure(parser)` and `run(options)`,
which returns an exit code; its docstring is its help. No module imports JAX before `run`, so that `--help`
is quick.

Exit codes: 0 done; 1 the target's own code failed, or recoup could not handle the program; 2 the command
line, the budget's spelling or the target is wrong; 3 the budget cannot be met; 4 a check found a difference;
5 a file exists or cannot be written; 130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from recoup._cli.completion import PrintCompletion

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_BUDGET, EXIT_DIFFERS, EXIT_FILE, EXIT_INTERRUPTED = (
    0,
    1,
    2,
    3,
    4,
    5,
    130,
)

# in the order in which a newcomer meets them
COMMANDS = (
    "residuals",
    "timeline",
    "plan",
    "fit",
    "frontier",
    "largest",
    "measure",
    "instruments",
    "check",
    "solve",
    "calibrate",
    "demo",
)

_TARGET = """\
TARGET is path/file.py:name or package.module:name; calling name() returns (step, args), where step(*args) is
one
training step and args are arrays or jax.ShapeDtypeStruct."""

_EXIT_CODES = """\
Exit codes: 0 done, 1 the target or the program failed, 2 wrong usage, budget or target, 3 the budget cannot
be met,
4 a check found a difference, 5 a file exists or cannot be written, 130 interrupted."""


class _Help(argparse.HelpFormatter):
    """Wraps each paragraph by itself; argparse's own formatter runs them together."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(_Help, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; imports no JAX."""
    from recoup import __version__

    parser = argparse.ArgumentParser(
        prog="recoup",
        description="Fit a JAX training step into the memory you have.",
        epilog=f"{_TARGET}\n\n{_EXIT_CODES}",
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"recoup {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show Python's traceback of an error")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=PrintCompletion,
        help="print the shell's completion script (needs recoup[completion]) and exit",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"recoup._cli.{name}")
        sub = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            formatter_class=_Help,
        )
        sub.add_argument(
            "--traceback",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show Python's traceback of an error",
        )
        module.configure(sub)
        takes_target = any(action.dest == "target" for action in sub._actions)
        sub.epilog = f"{_TARGET}\n\n{_EXIT_CODES}" if takes_target else _EXIT_CODES
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code (see the module's docstring). Errors are one line on stderr."""
    options = build_parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("recoup: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of a pipe went away (`recoup ... | head`); nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:
        if options.traceback:
            raise
        from recoup._cli.failure import describe, exit_code

        print(f"recoup: {describe(error)}", file=sys.stderr)
        return exit_code(error)
