"""Where a command's result goes: stdout, or a file that is only overwritten with --force."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from recoup.errors import RecoupError


class OutputError(RecoupError, OSError):
    """A file that exists already, or that cannot be written."""

    code = "E-CLI-002"


def add_output(parser: argparse.ArgumentParser) -> None:
    """The options --json, --output and --force."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def add_report(parser: argparse.ArgumentParser, *, perfetto: bool = True) -> None:
    """The options --html and, for what has an order, --perfetto: for results that can be drawn."""
    parser.add_argument(
        "--html", metavar="FILE", help="also write a report for a browser: one file, no network"
    )
    if not perfetto:
        return
    parser.add_argument(
        "--perfetto", metavar="FILE", help="also write memory over the order for ui.perfetto.dev"
    )


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse any file that the options name and that exists, before the work begins.

    Raises:
        OutputError: It exists and --force is not given, or its directory does not exist.
    """
    for name in ("output", "save", "html", "perfetto"):
        check_writable(getattr(options, name, None), force=options.force)


def finish(
    options: argparse.Namespace, result: Any, text: str, data: Mapping[str, Any] | None = None
) -> None:
    """Write the reports that the options ask for, then `text` or, with --json, the result's data.

    Args:
        result: what a command found; has `picture()` and `to_json()`.
        data: more data for --json, or other data than the result's own.
    """
    from recoup._progress import Progress
    from recoup._report.picture import Picture
    from recoup._report.reported import FORMATS, Reported

    wanted = {name: path for name in ("html", "perfetto") if (path := getattr(options, name, None))}
    picture: Picture | None = None
    if wanted or (options.json and isinstance(result, Reported)):
        with Progress() as progress:
            progress.stage("drawing the report")
            picture = result.picture()
    for name, path in wanted.items():
        assert picture is not None
        write_file(path, FORMATS[name](picture), force=options.force)
        print(f"recoup: wrote {path}", file=sys.stderr)
    if not options.json:
        emit(options, text, None)
        return
    found = dict(as_data(result) if data is None else data)
    if picture is not None:
        drawn = picture.to_dict()
        # decisions and residuals are in the result's own data
        parts = ("headline", "figures", "strips", "curve", "arenas", "notes")
        found["report"] = {part: drawn[part] for part in parts if drawn[part]}
    emit(options, text, found)


def emit(options: argparse.Namespace, text: str, data: Any) -> None:
    """Write `text`, or with --json `data`, where the options say."""
    content = json.dumps(data, indent=2) if options.json else text
    if options.output is None:
        print(content)
        return
    write_file(options.output, content + "\n", force=options.force)
    print(f"recoup: wrote {options.output}", file=sys.stderr)


def check_writable(path: str | None, *, force: bool) -> None:
    """Refuse a file that exists before the work begins, not after it.

    Raises:
        OutputError: It exists and `force` is off, or its directory does not exist.
    """
    if path is None:
        return
    if os.path.exists(path) and not force:
        raise OutputError(f"{path} exists; --force overwrites it")
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise OutputError(f"{path}: there is no directory {directory}")


def write_file(path: str, content: str, *, force: bool) -> None:
    """Write a whole file or nothing: what was there stays until the new content is complete.

    Raises:
        OutputError: It exists and `force` is off, or the system refused.
    """
    check_writable(path, force=force)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=os.path.dirname(os.path.abspath(path)), prefix=".recoup-", delete=False
        ) as file:
            temporary = file.name
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def as_data(value: Any) -> Any:
    """What an object's `to_json()` says, as plain data."""
    data = value.to_json()
    return json.loads(data) if isinstance(data, str) else data


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
