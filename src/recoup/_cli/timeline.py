"""Predict the memory of a step operation by operation, and who is alive at the peak. Nothing runs."""

import functools

from recoup._cli import listing

SUMMARY = "predict memory operation by operation (traces only)"

configure = listing.configure
run = functools.partial(listing.run, name="timeline")
