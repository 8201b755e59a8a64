"""Every test runs under strict dtype promotion; compiled programs are dropped after each module.

Warnings are errors (pyproject). Without the clearing, XLA's executables of a whole suite stay in memory.
Property tests try the same examples every time, so that a result depends on the code alone; with
`--hypothesis-profile default` they draw new ones.
"""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.load_profile("same")


def pytest_configure() -> None:
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="module")
def _drop_compiled_programs() -> Iterator[None]:
    yield
    if "jax" in sys.modules:
        import jax

        jax.clear_caches()
