"""Regions: the primitive behind `recoup.checkpoint` and its parts. The public face is `_checkpoint`.

Equations recorded through these files show the line of the user's call.
"""

import os

from recoup import _compat

_HERE = os.path.dirname(__file__)
_PACKAGE = os.path.dirname(_HERE)
_compat.hide_from_source_lines(_HERE + os.sep, os.path.join(_PACKAGE, "_checkpoint.py"))
_compat.hide_from_source_lines(os.path.join(_PACKAGE, "_barrier.py"))
