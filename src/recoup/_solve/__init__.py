"""Planners: a graph and a budget go in, a schedule comes out. One file each, one result type, no JAX.

`_check` is the model machine that every reported number comes from; `_brute` the oracle for tiny graphs;
`_bounds` what no schedule can beat.
"""

from recoup._solve._check import Checked, check
from recoup._solve._curve import Curve, curve
from recoup._solve._portfolio import solve
from recoup._solve._schedule import Schedule

__all__ = ["Checked", "Curve", "Schedule", "check", "curve", "solve"]
