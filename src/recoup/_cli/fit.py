"""Plan a step into a budget, compile it, and have the compiler certify that it is inside. Nothing runs.

Prints the plan, then the compiled memory of the certified step beside the prediction.
"""

import argparse

from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.plan import add_budget
from recoup._cli.target import add_target, load_target

SUMMARY = "plan, compile and certify a step inside a budget"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_budget(parser)
    parser.add_argument(
        "--donate",
        metavar="0,1",
        type=_indices,
        default=(),
        help="positions of arguments whose memory the step may reuse for its results",
    )
    parser.add_argument("--save", metavar="FILE", help="store the plan, for another process to apply")
    add_output(parser)


def _indices(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    check_writable(options.save, force=options.force)
    step, args = load_target(options.target)
    import recoup
    from recoup._cli.certificate import certificate, memory_data

    fitted = recoup.fit(step, *args, budget=budget.text, donate_argnums=options.donate)
    if options.save is not None:
        fitted.plan.save(options.save, force=options.force)
    data = {"plan": as_data(fitted.plan), "memory": memory_data(fitted.memory)} if options.json else None
    emit(options, f"{fitted.plan}\n\n{certificate(fitted)}", data)
    return 0
