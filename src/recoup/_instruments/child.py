"""A process of its own for one job: `python -m recoup._instruments.child FOLDER`.

Idea: memory of a process, and the compiler's dump flags, belong to a whole process; so the program travels as
the compiler's input (StableHLO, no Python) with its arguments as raw bytes, and the child does nothing else.
`run_job` is the parent's side. The folder holds `job.json`, `module`, `argumentN`, and afterwards
`answer.json`; the child's output goes to `log`.
Limits: one device. No pickle: arrays are raw bytes with shape and dtype beside them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recoup.errors import InstrumentError

TIMEOUT_SECONDS = 1800.0


@contextmanager
def job_folder() -> Iterator[Path]:
    """A folder for one job that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="recoup-") as folder:
        yield Path(folder)


def run_job(
    folder: Path,
    kind: str,
    module: bytes,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    *,
    flags: str = "",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Runs a job in a child process, and waits for its answer.

    Args:
      folder: an empty folder (see `job_folder`).
      kind: "compile" (compiles and ends) or "run" (also runs, and reports the process's memory).
      module, arguments: of `Subject.portable`; arrays, or `jax.ShapeDtypeStruct` for zeros.
      options: compiler options.
      flags: added to XLA_FLAGS.
      timeout_seconds: after which the child is ended.

    Raises:
      InstrumentError: it failed; the message ends with what it said last.
    """
    import jax
    import numpy as np

    (folder / "module").write_bytes(module)
    described = []
    for i, value in enumerate(arguments):
        described.append({"shape": list(value.shape), "dtype": str(np.dtype(value.dtype))})
        if kind == "run" and not isinstance(value, jax.ShapeDtypeStruct):
            np.asarray(value).tofile(folder / f"argument{i}")
    job = {"kind": kind, "arguments": described, "options": dict(options)}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    environment = os.environ | {
        **_same_backend(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # beside the parent on one device
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }
    command = [sys.executable, "-m", "recoup._instruments.child", str(folder)]
    log = folder / "log"
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InstrumentError(
                f"the measuring process took longer than {timeout_seconds:.0f} s"
            ) from error
    answer = folder / "answer.json"
    if done.returncode or not answer.exists():
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1][:300] if said else "it said nothing"
        raise InstrumentError(f"the measuring process ended with code {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def _same_backend() -> dict[str, str]:
    """What makes a child choose the backend that this process runs on.

    A GPU's backend is called "gpu", but "gpu" in JAX_PLATFORMS asks for every kind of GPU and fails for those
    that are not installed: there the child is left to choose as this process did.
    """
    import jax

    backend = jax.default_backend()
    if backend == "gpu":
        chosen: str | None = getattr(jax.config, "jax_platforms", None)
        return {"JAX_PLATFORMS": chosen} if chosen else {}
    return {"JAX_PLATFORMS": backend}


def main(folder: Path) -> None:
    """The child's side."""
    from recoup import _compat

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    executable = _compat.load_module((folder / "module").read_bytes(), job["options"])
    answer: dict[str, Any] = {}
    if job["kind"] == "run":
        answer = _run(folder, job["arguments"], executable)
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _run(folder: Path, described: Sequence[Mapping[str, Any]], executable: Any) -> dict[str, Any]:
    """Runs once to warm up and lets go of everything; then once more, watched."""
    from recoup import _compat
    from recoup._instruments.peak import PeakWatch

    warm = _arguments(folder, described)
    _compat.run_module(executable, warm)
    del warm
    runtime = PeakWatch()
    arguments = _arguments(folder, described)
    watch = PeakWatch()
    results = _compat.run_module(executable, arguments)
    found = watch.read()
    return {
        "runtime_bytes": runtime.before_bytes,
        "before_bytes": found.before_bytes,
        "peak_bytes": found.peak_bytes,
        "source": found.instrument,
        "resettable": watch.resettable,
        "results": len(results),
    }


def _arguments(folder: Path, described: Sequence[Mapping[str, Any]]) -> list[Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    made: list[jax.Array] = []
    for i, what in enumerate(described):
        shape, dtype = tuple(what["shape"]), jnp.dtype(what["dtype"])
        path = folder / f"argument{i}"
        if path.exists():
            host = np.fromfile(path, dtype=dtype).reshape(shape)
            made.append(jax.device_put(host).block_until_ready())
            del host
        else:
            made.append(jnp.zeros(shape, dtype).block_until_ready())
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
