"""Plan a step into a budget, compile it, and have the compiler certify that it is inside. Nothing runs.

Prints the plan, whose sizes are predictions, and then the compiler's account of the step as it is (where it
was compiled on the way) and of the fitted one.
"""

import argparse

from recoup._cli.output import add_output, add_report, as_data, finish
from recoup._cli.plan import add_planning, planned
from recoup._cli.target import add_target

SUMMARY = "plan, compile and certify a step inside a budget"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_planning(parser)
    parser.add_argument(
        "--no-levers", action="store_true", help="never have the compiler order the step for less memory"
    )
    add_report(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    fitted = planned(options, "fit")
    from recoup._cli.certificate import certificate, memory_data

    data = {
        "plan": as_data(fitted.plan),
        "memory": memory_data(fitted.memory),
        "compiles": fitted.compiles,
    }
    if fitted.unplanned_memory is not None:
        data["unplanned_memory"] = memory_data(fitted.unplanned_memory)
    finish(options, fitted, f"{fitted.plan}\n\n{certificate(fitted)}", data)
    return 0
