"""What can be chosen about the demo: one dataclass, and its options on the command line. No JAX."""

import argparse
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """Sizes of the model and of the run. The defaults take well under a minute on two cores."""

    layers: int = 6
    width: int = 128
    heads: int = 4
    tokens: int = 128
    batch: int = 8
    steps: int = 20
    budget: str = "50%"
    seed: int = 0


_HELP = {
    "layers": "transformer blocks",
    "width": "width of the model",
    "heads": "attention heads; they divide the width",
    "tokens": "characters of context",
    "batch": "sequences a step",
    "steps": "training steps of each",
    "budget": 'for the whole step: bytes, "96MiB", "50%%" (of the plain step\'s total) or "device"',
    "seed": "of the parameters and the batches",
}


def add_settings(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    """One option for each field."""
    for field in fields(Settings):
        default = getattr(defaults, field.name)
        parser.add_argument(
            f"--{field.name}",
            type=str if field.name == "budget" else _count,
            default=default,
            metavar="SIZE" if field.name == "budget" else "N",
            help=f"{_HELP[field.name]} (default: {str(default).replace('%', '%%')})",
        )


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings among parsed options."""
    return Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number
