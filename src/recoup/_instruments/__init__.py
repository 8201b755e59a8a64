"""Instruments: each asks one question about memory or time and answers with the numbers and its own name.

The public names are in `recoup.instruments`. `reading` holds what every instrument returns, `catalogue` the
list of them ordered by cost; `arena`, `assignment`, `hlo`, `occupancy`, `dump_files` and `intervals` work on
plain data and import no JAX.
"""
