"""The largest batch (or any one size) at which a step fits a budget: predicted, compiled and certified.

Here NAME of TARGET is called with a size: `name(size)` returns `(step, args)`. Give args as
jax.ShapeDtypeStruct, so that nothing is allocated for sizes that are only looked at.
"""

import argparse

from recoup._cli.output import add_output, check_writable, emit
from recoup._cli.plan import add_steps
from recoup._cli.target import add_target, load_maker

SUMMARY = "find the largest size that fits, with its plan"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("-b", "--budget", required=True, help='for the whole step: bytes, "4GiB" or "device"')
    parser.add_argument("--minimum", type=int, default=1, help="smallest size to try (default: 1)")
    parser.add_argument("--maximum", type=int, help="largest size to try")
    parser.add_argument("--multiple-of", type=int, default=1, metavar="N", help="only multiples of N")
    parser.add_argument(
        "--max-overhead", type=_percent, metavar="30%", help="refuse plans with more extra FLOPs"
    )
    add_steps(parser)
    parser.add_argument("--save", metavar="FILE", help="store the plan, for another process to apply")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    check_writable(options.save, force=options.force)
    make_step = load_maker(options.target)
    import recoup

    limits = {} if options.maximum is None else {"maximum": options.maximum}
    found = recoup.largest(
        make_step,
        budget=budget.text,
        minimum=options.minimum,
        multiple_of=options.multiple_of,
        max_overhead=options.max_overhead,
        donate_argnums=options.donate,
        regions=options.regions,
        **limits,
    )
    if options.save is not None:
        found.plan.save(options.save, force=options.force)
    emit(options, str(found), found.to_dict() if options.json else None)
    return 0


def _percent(text: str) -> float:
    share = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or share < 0:
        raise ValueError(text)
    return share
