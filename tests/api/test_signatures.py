"""The public API: its signatures are pinned, and every name says what a user must know.

After a change that is meant, `python tests/api/test_signatures.py` writes `signatures.txt` again.
"""

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import recoup

PINNED = Path(__file__).with_name("signatures.txt")
_CLASSES = {"Policy", "Candidate"}


def public() -> dict[str, Any]:
    """Every public function and class, those of public modules too, by dotted name."""
    found: dict[str, Any] = {}
    for name in recoup.__all__:
        value = getattr(recoup, name)
        if isinstance(value, ModuleType):
            for inner, part in vars(value).items():
                own = getattr(part, "__module__", "") == value.__name__ or not callable(part)
                # of a module's classes those that its functions and values do not stand for
                shown = inner[0].islower() or inner in _CLASSES
                if shown and own and not inspect.ismodule(part):
                    found[f"{name}.{inner}"] = part
        else:
            found[name] = value
    return found


def members(cls: type) -> dict[str, Any]:
    """Public methods and properties of one of our classes, inherited ones too."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("recoup"):
            found |= {n: v for n, v in vars(base).items() if not n.startswith("_") or n == "__call__"}
    return {n: v for n, v in found.items() if callable(v) or isinstance(v, property | staticmethod)}


def signature(value: Any) -> str:
    """Parameters, defaults and kinds, without annotations (those are the type checker's)."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    text = str(inspect.Signature(bare))
    return re.sub(r"<([\w.]+)[^>]* at 0x[0-9a-f]+>", r"<\1>", text)


def listing() -> str:
    lines = []
    for name, value in sorted(public().items()):
        if inspect.isclass(value):
            bases = [b.__name__ for b in value.__bases__ if b is not object]
            fields = getattr(value, "__dataclass_fields__", {})
            shown = f"({', '.join(fields)})" if fields else signature(value)
            lines.append(f"class {name}{shown}" + (f" is {', '.join(bases)}" if bases else ""))
            for part, inner in sorted(members(value).items()):
                is_property = isinstance(inner, property)
                inner = inner.__func__ if isinstance(inner, staticmethod) else inner
                lines.append(f"    {part}" + ("" if is_property else signature(inner)))
        elif callable(value):
            lines.append(f"{name}{signature(value)}")
        else:
            lines.append(f"{name} = {type(value).__name__}")
    return "\n".join(lines) + "\n"


def test_signatures_are_pinned() -> None:
    assert listing() == PINNED.read_text(encoding="utf-8"), (
        "the public API changed; if that is meant, run `python tests/api/test_signatures.py`"
    )


def test_all_names_load_and_are_listed() -> None:
    assert set(recoup.__all__) <= set(dir(recoup))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = recoup.fitt  # type: ignore[attr-defined]


FUNCTIONS = [n for n, v in public().items() if inspect.isroutine(v)]
CLASSES = [n for n, v in public().items() if inspect.isclass(v)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_document_arguments_results_and_errors(name: str) -> None:
    fun = public()[name]
    doc = inspect.getdoc(fun) or ""
    assert len(doc.splitlines()[0]) > 10, f"{name} has no docstring"
    missing = [
        p.name
        for p in inspect.signature(fun).parameters.values()
        if not re.search(rf"\b{re.escape(p.name)}\b", doc) and not p.name.startswith("_")
    ]
    assert not missing, f"{name} does not document {missing}"
    returns = inspect.signature(fun).return_annotation
    assert returns in (None, "None") or re.search(r"(?i)\breturns?\b|^an? |^the |^\w+s ", doc), name


@pytest.mark.parametrize("name", CLASSES)
def test_classes_document_themselves_and_their_parts(name: str) -> None:
    cls = public()[name]
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), f"{name} has no docstring"
    for field in getattr(cls, "__dataclass_fields__", {}):
        text = " ".join(inspect.getdoc(base) or "" for base in cls.__mro__ if base is not object)
        assert field.startswith("_") or re.search(rf"\b{field}\b", text) or field.endswith("_bytes"), (
            f"{name}.{field} is not documented"
        )
    undocumented = [part for part, value in members(cls).items() if not inspect.getdoc(value)]
    assert not undocumented, f"{name} does not document {undocumented}"


def test_sizes_say_that_they_are_bytes() -> None:
    """An attribute that is a size in bytes ends in `_bytes` (or is called bytes)."""
    for name in CLASSES:
        for field in getattr(public()[name], "__dataclass_fields__", {}):
            assert not re.search(r"(_memory|_mem|_mib|_kb)$", field), f"{name}.{field}"


def test_errors_have_stable_codes_of_their_own_and_builtin_bases() -> None:
    from recoup import errors

    found = [
        v
        for v in vars(errors).values()
        if inspect.isclass(v) and issubclass(v, errors.RecoupError) and v is not errors.RecoupError
    ]
    codes: dict[str, type] = {}
    for cls in found:
        assert re.fullmatch(r"E-[A-Z]+-\d{3}", cls.code), cls
        owner = codes.setdefault(cls.code, cls)
        assert issubclass(cls, owner) or issubclass(owner, cls), f"{cls} and {owner} share {cls.code}"
        bases = [b for b in cls.__mro__ if b.__module__ == "builtins" and b not in (object, BaseException)]
        assert bases[0] is not Exception, f"{cls.__name__} resembles no built-in error"


if __name__ == "__main__":
    PINNED.write_text(listing(), encoding="utf-8")
