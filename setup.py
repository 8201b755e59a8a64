"""The optional native part: the inner loops of the planners, compiled by Cython where a C compiler is found.

Without one, installation succeeds all the same: the modules run as the plain Python they are, with the same
results, only slower (`recoup.solve` says so in `Schedule.method`).
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = (
    "_solve._profile",
    "_solve._slots",
    "_solve._moves",
    "_solve._annealer",
    "_planner._core",
    "_memory._heap",
    "_memory._kernels",
)

# no contraction into fused multiply-adds: results do not depend on the machine
FLAGS = ["-O3", "-ffp-contract=off"]

extensions = cythonize(
    [
        Extension(f"recoup.{name}", [f"src/recoup/{name.replace('.', '/')}.py"], extra_compile_args=FLAGS)
        for name in MODULES
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
