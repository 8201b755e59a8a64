"""List what reverse mode keeps from the forward pass for the backward pass. Nothing compiles or runs.

Each value with its bytes, shape, the operation that made it and its source line; values inside a loop with
bytes per iteration and in total.
"""

import functools

from recoup._cli import listing

SUMMARY = "list what reverse mode keeps (traces only)"

configure = listing.configure
run = functools.partial(listing.run, name="residuals")
