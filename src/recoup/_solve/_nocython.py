"""What the compiled modules use of Cython, for running them as the plain Python they are."""

import contextlib

compiled = False
nogil = contextlib.nullcontext()
