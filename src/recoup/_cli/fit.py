"""Plan a step into a budget, compile it, and have the compiler certify that it is inside. Nothing runs.

Prints the plan, whose sizes are predictions, and then the compiler's account of the step as it is (where it
was compiled on the way) and of the fitted one.
"""

import argparse

from recoup._cli.output import add_output, as_data, check_writable, emit
from recoup._cli.plan import add_planning
from recoup._cli.target import add_target, load_target

SUMMARY = "plan, compile and certify a step inside a budget"


def configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_planning(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget

    budget = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    check_writable(options.save, force=options.force)
    step, args = load_target(options.target)
    import recoup
    from recoup._cli.certificate import certificate, memory_data

    fitted = recoup.fit(
        step, *args, budget=budget.text, donate_argnums=options.donate, regions=options.regions
    )
    if options.save is not None:
        fitted.plan.save(options.save, force=options.force)
    data = None
    if options.json:
        data = {
            "plan": as_data(fitted.plan),
            "memory": memory_data(fitted.memory),
            "compiles": fitted.compiles,
        }
        if fitted.unplanned_memory is not None:
            data["unplanned_memory"] = memory_data(fitted.unplanned_memory)
    emit(options, f"{fitted.plan}\n\n{certificate(fitted)}", data)
    return 0
