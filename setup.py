"""The optional native part: the inner loops of the planners, compiled by Cython where a C compiler is found.

Without one, installation succeeds all the same: the modules run as the plain Python they are, with the same
results, only slower (`recoup.solve` says so in `Schedule.method`).
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = Path("src")
# Every module with C types beside it.
MODULES = sorted(path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.pxd"))

# no contraction into fused multiply-adds: results do not depend on the machine
FLAGS = ["-O3", "-ffp-contract=off"]

extensions = cythonize(
    [
        Extension(".".join(module.parts), [f"{SOURCE / module}.py"], extra_compile_args=FLAGS)
        for module in MODULES
    ],
    build_dir="build/cython",
    compiler_directives={
        "language_level": "3",
        "annotation_typing": False,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
    },
)
for extension in extensions:
    extension.optional = True  # here, because cythonize does not carry it over

setup(ext_modules=extensions)
