"""Prints the random program of a seed: `python -m benchmarks.programs SEED [SIZE]`."""

import sys

from benchmarks import programs

case = programs.draw(int(sys.argv[1]), *sys.argv[2:3])
print(case.description)
print("# donated:", case.donate, "primitives:", ", ".join(sorted(case.primitives)))
