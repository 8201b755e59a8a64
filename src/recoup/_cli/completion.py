"""`recoup --print-completion SHELL`: completion of commands, options and files, written by shtab.

recoup --print-completion bash > ~/.local/share/bash-completion/completions/recoup
"""

import argparse
from collections.abc import Sequence
from typing import Any


class PrintCompletion(argparse.Action):
    """Prints the script for the parser that it belongs to, and exits. shtab is imported only then."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            parser.error("completion needs shtab: pip install 'recoup[completion]'")
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()
