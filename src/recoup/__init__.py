"""recoup fits a JAX training step into the memory you have: the public API and nothing else.

Names load when they are first used, so that `import recoup` costs little and the planners work without JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what a type checker or an editor sees; at run time the names load when first used
    from recoup import instruments as instruments
    from recoup import policies as policies
    from recoup._agreement import Agreement as Agreement
    from recoup._calibrate import Roofline as Roofline
    from recoup._calibrate import calibrate as calibrate
    from recoup._check import check as check
    from recoup._checkpoint import checkpoint as checkpoint
    from recoup._checkpoint import keep as keep
    from recoup._compiling import CompiledMemory as CompiledMemory
    from recoup._compiling import Fitted as Fitted
    from recoup._config import config as config
    from recoup._fit import fit as fit
    from recoup._fit import plan as plan
    from recoup._frontier import Frontier as Frontier
    from recoup._frontier import frontier as frontier
    from recoup._graph import Graph as Graph
    from recoup._graph import Offload as Offload
    from recoup._host import HostMemory as HostMemory
    from recoup._jit import jit as jit
    from recoup._largest import Largest as Largest
    from recoup._largest import largest as largest
    from recoup._loops.api import fori_loop as fori_loop
    from recoup._loops.api import loop_plan as loop_plan
    from recoup._loops.api import scan as scan
    from recoup._loops.api import while_loop as while_loop
    from recoup._loops.disk import DiskStore as DiskStore
    from recoup._plan import Plan as Plan
    from recoup._regions.collect import collect as collect
    from recoup._regions.collect import diagnostic as diagnostic
    from recoup._regions.granularity import regions as regions
    from recoup._residuals import Residuals as Residuals
    from recoup._residuals import residuals as residuals
    from recoup._solve import Schedule as Schedule
    from recoup._solve import solve as solve
    from recoup._timeline import Timeline as Timeline
    from recoup._timeline import timeline as timeline
    from recoup.errors import BudgetError as BudgetError
    from recoup.errors import InfeasibleError as InfeasibleError
    from recoup.errors import RecoupError as RecoupError

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS: dict[str, str] = {
    "Agreement": "recoup._agreement",
    "check": "recoup._check",
    "CompiledMemory": "recoup._compiling",
    "Fitted": "recoup._compiling",
    "fit": "recoup._fit",
    "plan": "recoup._fit",
    "Frontier": "recoup._frontier",
    "frontier": "recoup._frontier",
    "Largest": "recoup._largest",
    "largest": "recoup._largest",
    "HostMemory": "recoup._host",
    "jit": "recoup._jit",
    "Plan": "recoup._plan",
    "Residuals": "recoup._residuals",
    "residuals": "recoup._residuals",
    "Timeline": "recoup._timeline",
    "timeline": "recoup._timeline",
    "Roofline": "recoup._calibrate",
    "calibrate": "recoup._calibrate",
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
    "instruments": "recoup.instruments",
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
