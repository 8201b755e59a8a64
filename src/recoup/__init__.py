"""recoup fits a JAX training step into the memory you have: the public API and nothing else.

Names load when they are first used, so that `import recoup` costs little and the planners work without JAX.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS: dict[str, str] = {
    "Graph": "recoup._graph",
    "Schedule": "recoup._solve",
    "RecoupError": "recoup.errors",
    "BudgetError": "recoup.errors",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'recoup' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
