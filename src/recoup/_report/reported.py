"""What can be drawn: `report(path)` as a page, a Perfetto trace or JSON, and how it shows in a notebook.
No JAX."""

import json
from collections.abc import Callable
from pathlib import Path

from recoup._report import notebook, page, perfetto
from recoup._report.picture import Picture

FORMATS: dict[str, Callable[[Picture], str]] = {
    "html": page.render,
    "perfetto": perfetto.render,
    "json": lambda picture: json.dumps(picture.to_dict()) + "\n",
}


class Reported:
    """Mixed into results that have a `picture()`."""

    def picture(self) -> Picture:
        """What a report shows, as plain data."""
        raise NotImplementedError

    def report(self, path: str | Path, *, format: str = "html", force: bool = False) -> None:
        """Writes a report to one file that needs nothing else: no network, no other file.

        Args:
          path: the file.
          format: "html", a page for a browser; "perfetto", a trace for ui.perfetto.dev; "json", the same
            data.
          force: overwrite a file that exists.

        Raises:
          FileExistsError: the file exists and `force` is not given.
          ValueError: `format` is none of these.
        """
        if format not in FORMATS:
            raise ValueError(f"format={format!r} is none of {', '.join(map(repr, FORMATS))}")
        if not force and Path(path).exists():
            raise FileExistsError(f"{path} exists; force=True overwrites it")
        text = FORMATS[format](self.picture())
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)

    def _repr_html_(self) -> str:
        return notebook.render(self)
