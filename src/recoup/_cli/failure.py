"""An exception as one line for the command line, and as an exit code."""

import traceback

from recoup import errors
from recoup._cli import EXIT_BUDGET, EXIT_FAILED, EXIT_FILE, EXIT_USAGE
from recoup._cli.output import OutputError
from recoup._report.text import one_line

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (OutputError, EXIT_FILE),
    (errors.BudgetSyntaxError, EXIT_USAGE),
    (errors.TargetError, EXIT_USAGE),
    (errors.BudgetError, EXIT_BUDGET),
)


def describe(error: Exception) -> str:
    """One line: recoup's errors as they are, with their code; any other with its type and innermost line."""
    if isinstance(error, errors.RecoupError):
        return one_line(str(error))
    return f"[E-STEP-001] {raised(error)}; --traceback shows the whole path"


def raised(error: BaseException) -> str:
    """What a foreign exception says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    message = one_line(str(error))
    if len(message) > 300:
        message = message[:299] + "…"
    return f"{type(error).__name__}: {message}{where}" if message else f"{type(error).__name__}{where}"


def exit_code(error: Exception) -> int:
    """The exit code for an exception."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return EXIT_FAILED
