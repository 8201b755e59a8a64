"""The modules that installation compiles, as the plain Python they are: `python -m pytest -p tests.pure`.

For measuring their coverage, and for comparing both forms (`tests/breaking/test_plain_python.py`).
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[1] / "src" / "recoup"
COMPILED = sorted(".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in PACKAGE.rglob("*.pxd"))


class Plain(importlib.abc.MetaPathFinder):
    """Finds the source of a compiled module before what was made of it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.removeprefix("recoup.") not in COMPILED or not path:
            return None
        return importlib.util.spec_from_file_location(name, Path(path[0]) / f"{name.rpartition('.')[2]}.py")


sys.meta_path.insert(0, Plain())
