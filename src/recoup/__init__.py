"""recoup fits a JAX training step into the memory you have: the public API and nothing else.

Names load when they are first used, so that `import recoup` costs little and the planners work without JAX.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS: dict[str, str] = {
    "CompiledMemory": "recoup._compiling",
    "Fitted": "recoup._compiling",
    "fit": "recoup._fit",
    "plan": "recoup._fit",
    "jit": "recoup._jit",
    "Plan": "recoup._plan",
    "Residuals": "recoup._residuals",
    "residuals": "recoup._residuals",
    "Timeline": "recoup._timeline",
    "timeline": "recoup._timeline",
    "Graph": "recoup._graph",
    "Offload": "recoup._graph",
    "Schedule": "recoup._solve",
    "solve": "recoup._solve",
    "checkpoint": "recoup._checkpoint",
    "keep": "recoup._checkpoint",
    "diagnostic": "recoup._regions.collect",
    "collect": "recoup._regions.collect",
    "regions": "recoup._regions.granularity",
    "policies": "recoup.policies",
    "config": "recoup._config",
    "scan": "recoup._loops.api",
    "fori_loop": "recoup._loops.api",
    "while_loop": "recoup._loops.api",
    "loop_plan": "recoup._loops.api",
    "DiskStore": "recoup._loops.disk",
    "RecoupError": "recoup.errors",
    "BudgetError": "recoup.errors",
    "InfeasibleError": "recoup.errors",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'recoup' has no attribute {name!r}")
    loaded = importlib.import_module(module)
    value = loaded if module == f"{__name__}.{name}" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
