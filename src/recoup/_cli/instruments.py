"""List the instruments, ordered by what they cost: what each answers, covers and leaves out."""

import argparse
import textwrap
from dataclasses import asdict

from recoup._cli.output import add_output, check_writable, emit

SUMMARY = "list the instruments and what each of them covers"


def configure(parser: argparse.ArgumentParser) -> None:
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._instruments.catalogue import INSTRUMENTS, listing

    check_writable(options.output, force=options.force)
    lines = [listing()]
    for instrument in INSTRUMENTS:
        lines += ["", instrument.name, f"  covers {instrument.covers}"]
        lines.append(f"  leaves out {instrument.does_not_cover}")
    lines = [lines[0], *(textwrap.fill(line, 79, subsequent_indent="    ") for line in lines[1:])]
    emit(options, "\n".join(lines), [asdict(instrument) for instrument in INSTRUMENTS])
    return 0
