"""Measure what operations cost on this device: products, convolutions, memory, functions, random bits.

Measured once (seconds) and kept in the cache directory (RECOUP_CACHE_DIR, else ~/.cache/recoup), for plans
whose objective is time.
"""

import argparse
from dataclasses import asdict

from recoup._cli.output import add_output, check_writable, emit

SUMMARY = "measure this device's rates, for plans by time"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--again", action="store_true", help="measure again even if it is cached")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    check_writable(options.output, force=options.force)
    import recoup

    found = recoup.calibrate(force=options.again)
    emit(options, str(found), asdict(found))
    return 0
