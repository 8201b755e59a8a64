"""The documentation site: `make docs`. A public name that no page documents fails the build."""

import re

import recoup

project, author, copyright = "recoup", "The recoup authors", "The recoup authors"
release = recoup.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "recoup"
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
suppress_warnings = ["misc.highlighting_failure"]


def _check_names(app, env):
    """Every name of `recoup.__all__` has an entry."""
    known = env.domains.python_domain.objects
    missing = [name for name in recoup.__all__ if f"recoup.{name}" not in known]
    if missing:
        from sphinx.errors import ExtensionError

        raise ExtensionError(f"public names without documentation: {', '.join(missing)}")


def _as_rst(app, what, name, obj, options, lines):
    """Docstrings have Markdown's code spans; a star before a name is a parameter's.

    A list of parameters that goes on in the next line becomes one line.
    """
    text = re.sub(r"(?m)^( +[\w*, ]+,)\n +(?=[\w*, ]+: )", r"\1 ", "\n".join(lines))
    lines[:] = text.split("\n")
    for i, line in enumerate(lines):
        line = re.sub(
            r"(?<!`)`([^`]+)`(?!`)(\w?)", lambda m: f"``{m[1]}``" + (f"\\ {m[2]}" if m[2] else ""), line
        )
        lines[i] = re.sub(r"(?<![\w`\\*])(\*{1,2})(?=\w+[:,)])", lambda m: m[1].replace("*", "\\*"), line)


def setup(app):
    app.connect("autodoc-process-docstring", _as_rst, priority=400)
    app.connect("env-check-consistency", _check_names)
