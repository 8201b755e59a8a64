"""Schedule any graph of costs and bytes within a budget: what to keep and what to compute again. No JAX.

FILE is JSON: {"costs": [...], "sizes": [...], "edges": [[u, v], ...]}, one cost and one size (bytes) for each
operation in a legal order; v reads the output of u.
"""

import argparse
import json

from recoup._cli.output import add_output, check_writable, emit
from recoup.errors import PlanError

SUMMARY = "schedule a graph of costs and bytes within a budget"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a graph as JSON")
    parser.add_argument(
        "-b", "--budget", required=True, help='bytes, "4GiB", or a share of the peak of one pass: "80%%"'
    )
    parser.add_argument(
        "--order", choices=("free", "given"), default="free", help="may first computations change their order"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from recoup._budget import parse_budget
    from recoup._graph import Graph
    from recoup._solve import solve
    from recoup._solve._bounds import given_profile

    wanted = parse_budget(options.budget)
    check_writable(options.output, force=options.force)
    with open(options.file, encoding="utf-8") as file:
        try:
            data = json.load(file)
            costs, sizes, edges = data["costs"], data["sizes"], data["edges"]
        except (ValueError, KeyError, TypeError) as error:
            raise PlanError(
                f"{options.file} is not a graph with costs, sizes and edges: {error!r}"
            ) from error
    graph = Graph(costs, sizes, edges)
    unplanned = int(given_profile(graph).max(initial=0))
    if wanted.kind == "device":
        raise PlanError("a graph knows no device: give the budget in bytes or as a share")
    budget = wanted.resolve(unplanned_bytes=unplanned)
    found = solve(graph, budget, time_limit=options.seconds, order=options.order, seed=options.seed)
    data = None
    if options.json:
        data = {
            "order": found.order.tolist(),
            "cost": found.cost,
            "overhead": found.overhead,
            "peak_bytes": found.peak_bytes,
            "unplanned_bytes": unplanned,
            "lower_bound": found.lower_bound,
            "optimal": found.optimal,
            "method": found.method,
            "seconds": found.seconds,
        }
    steps = " ".join(map(str, found.order.tolist()))
    emit(options, f"{found}\none pass holds {unplanned} bytes\norder: {steps}", data)
    return 0
