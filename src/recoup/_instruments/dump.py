"""The `dump` instrument: has XLA write its dump of a step in a child process, and reads it.

Idea: dump flags are read once per process, so the step is compiled in a process of its own.
Limits: as `dump_files` reads it. One device.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recoup._compiling import Fitted
from recoup._instruments.child import job_folder, run_job
from recoup._instruments.dump_files import Dump, read_dump
from recoup._instruments.subject import Subject, prepare
from recoup.errors import InstrumentError


def dump(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    folder: str | Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Dump:
    """Compiles a step in a child process that dumps, and reads the dump. Nothing runs.

    Args:
      step, *args: as for `compiled`.
      folder: where the dump's files are left for you to look at; by default they are deleted. It must not
        exist or be empty.
      kwargs, donate_argnums, static_argnums, static_argnames, compiler_options: as for `compiled`.

    Raises:
      InstrumentError: the folder holds files, the step cannot be moved to a child, or the child failed.
    """
    subject = prepare(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return dump_of(subject, folder)


def dump_of(subject: Subject, folder: str | Path | None = None) -> Dump:
    """The dump of a prepared subject."""
    if folder is not None and Path(folder).exists() and any(Path(folder).iterdir()):
        raise InstrumentError(f"{folder} holds files; a dump needs a folder of its own")
    module, arguments = subject.portable()
    with job_folder() as job:
        written = job / "dump"
        flags = f"--xla_dump_to={written} --xla_dump_hlo_as_text"
        run_job(job, "compile", module, arguments, subject.options, flags=flags)
        found = read_dump(written)
        if folder is not None:
            shutil.copytree(written, folder, dirs_exist_ok=True)
    return found
