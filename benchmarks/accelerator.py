"""recoup on whatever device JAX finds: what was only reasoned about off the CPU, run and measured.

    python -m benchmarks.accelerator [--scale device] [--seconds 330] [--only zoo,loops] [--tests FILES]

Regions under plain `jax.jit`, `recoup.fit` on the zoo, long loops with a second store in host memory, the
instruments, the allocator's peak of plain and fitted steps, `budget="device"` in a process that may not use
enough memory for the plain step, and a selection of the tests. Each check is a process (`accelerator_checks`)
that compiles beside the others and is timed alone. Writes `accelerator.json` and `accelerator.md`. What has
not ended when the time is up is ended, and what it had found is kept. On a CPU, small sizes: a rehearsal.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = str(Path(__file__).resolve().parent.parent) + os.sep  # results name no place of this machine
MODELS = ("mlp", "gpt", "gpt_scan", "vit", "unet", "lstm", "resnet")
PEAKS = ("mlp", "gpt", "resnet", "lstm")
TESTS = ("tests/regions", "tests/spine", "tests/loops")
DETERMINISTIC = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"


@dataclass
class Child:
    """A check in a process of its own."""

    kind: str
    name: str
    process: subprocess.Popen[str]
    file: Path
    ready: bool = False

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}".strip()

    def found(self) -> dict[str, Any]:
        """What it recorded and, if it did not end, the last error that it printed."""
        text = self.file.read_text() if self.file.exists() else '{"rows": [], "log": []}'
        data: dict[str, Any] = json.loads(text.replace(ROOT, ""))
        log = self.file.with_suffix(".log")
        if not data.get("done"):
            lines = log.read_text(errors="replace").replace(ROOT, "").splitlines() if log.exists() else []
            errors = [line for line in lines if re.search(r"Error\b|RESOURCE_EXHAUSTED", line)]
            data["failed"] = errors[-1][:300] if errors else "out of time"
        return data | {"kind": self.kind, "name": self.name.partition("/")[0]}


class Run:
    """Processes of this run, and its clock."""

    def __init__(self, folder: Path, scale: str, seconds: float, jobs: int):
        self.folder, self.scale, self.jobs = folder, scale, threading.Semaphore(jobs)
        self.began, self.until = time.monotonic(), time.monotonic() + seconds
        self.children: list[Child] = []

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def start(self, kind: str, name: str, environment: dict[str, str] | None = None) -> Child:
        file = self.folder / (re.sub(r"[^a-z_]+", "-", f"{kind}-{name.partition('/')[0]}") + ".json")
        command = [sys.executable, "-m", "benchmarks.accelerator_checks", kind, name, self.scale, str(file)]
        with file.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | (environment or {}),
            )
        child = Child(kind, name, process, file)
        self.children.append(child)
        return child

    def prepare(self, jobs: list[tuple[str, str, dict[str, str]]], share: float) -> list[Child]:
        """Starts these checks, so many at once, and waits until all are ready or their share is over."""
        until = time.monotonic() + share * self.left()
        made: list[Child] = []

        def one(job: tuple[str, str, dict[str, str]]) -> None:
            with self.jobs:
                if time.monotonic() >= until:
                    return
                child = self.start(*job)
                made.append(child)
                assert child.process.stdout is not None
                child.ready = child.process.stdout.readline().startswith("ready")
                self.say(f"{child.label}: {'ready' if child.ready else 'failed'}")

        threads = [threading.Thread(target=one, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for child in made:
            if not child.ready:
                child.process.kill()
        return [child for child in made if child.ready]

    def finish(self, ready: list[Child]) -> None:
        """Lets each ready check time itself, one after the other."""
        for child in ready:
            try:
                child.process.communicate("go\n", timeout=max(1.0, self.left()))
                self.say(f"{child.label}: done")
            except subprocess.TimeoutExpired:
                child.process.kill()
                self.say(f"{child.label}: ended, out of time")


def start_tests(
    run: Run, files: list[str], seconds: float, on_gpu: bool
) -> list[tuple[str, subprocess.Popen[str], Path]]:
    """The tests, a process for each file, under flags that make results depend on the program only."""
    environment = os.environ | {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip(),
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        **({"JAX_PLATFORMS": "cuda,cpu"} if on_gpu else {}),  # callbacks go through the CPU's backend
    }
    started = []
    for file in files:
        log = run.folder / (re.sub(r"[^a-z_]+", "-", file.removesuffix(".py")) + ".log")
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:xdist"]
        command += ["-p", "no:cacheprovider", "-W", "default", file]
        command = ["timeout", f"{seconds:.0f}", *command]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment
            )
        started.append((file, process, log))
    return started


def test_results(started: list[tuple[str, subprocess.Popen[str], Path]], wait: float) -> list[dict[str, Any]]:
    """What each file's run said last, and its failures."""
    until, rows = time.monotonic() + wait, []
    for file, process, log in started:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        failures = [line.replace(ROOT, "") for line in lines if line.startswith(("FAILED", "ERROR"))]
        marks = "".join(
            line.split("[")[0].strip() for line in lines if re.fullmatch(r"[.FEsx]+( +\[.*)?", line)
        )
        row = {"file": file, "finished": process.returncode in (0, 1, 5), "failures": failures}
        row |= {"passed": marks.count("."), "failed": marks.count("F") + marks.count("E")}
        rows.append(row | {"skipped": marks.count("s")})
    return rows


def about() -> dict[str, Any]:
    """Versions and device, read in a process that ends: this one must not hold the device."""
    code = (
        "import json, jax, jaxlib, recoup, numpy; d = jax.devices()[0]; "
        "print(json.dumps({'jax': jax.__version__, 'jaxlib': jaxlib.__version__, 'numpy': numpy.__version__, "
        "'recoup': recoup.__version__, 'backend': jax.default_backend(), 'device': d.device_kind, "
        "'runtime': d.client.platform_version.splitlines()[0], "
        "'memory_kinds': [m.kind for m in d.addressable_memories()], 'memory_stats': d.memory_stats()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found | {"python": platform.python_version(), "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", choices=("device", "small"), help="default: small on a CPU, else device")
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--only", default="regions,zoo,loops,instruments,allocator,device,tests")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files or folders of tests")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("build/accelerator"), help="logs and plan files")
    options = parser.parse_args()
    versions = about()
    on_cpu = versions["backend"] == "cpu"
    scale = options.scale or ("small" if on_cpu else "device")
    only, models = options.only.split(","), options.models.split(",")
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options.work, scale, options.seconds, options.jobs)
    run.say(f"{versions['device']}, JAX {versions['jax']}, scale {scale}")

    tests = []
    if "tests" in only:
        files = sorted(
            str(f)
            for t in options.tests
            for f in ([Path(t)] if t.endswith(".py") else Path(t).glob("test_*.py"))
        )
        tests = start_tests(run, files, 0.5 * options.seconds, versions["backend"] == "gpu")
    jobs: list[tuple[str, str, dict[str, str]]] = []
    jobs += [("zoo", name, {}) for name in models if "zoo" in only]
    jobs += [("loops", "", {})] if "loops" in only else []
    jobs += [("regions", name, {}) for name in ("dense", "attention", "convolution") if "regions" in only]
    jobs += [("instruments", "", {})] if "instruments" in only else []
    ready = run.prepare(jobs, 0.65)
    tested = test_results(tests, 0.1 * run.left())
    for row in tested:
        run.say(f"{row['file']}: {row['passed']} passed, {row['failed']} failed")
    run.finish(ready)
    late: list[tuple[str, str, dict[str, str]]] = []
    for name in [m for m in PEAKS if m in models and "allocator" in only]:
        plan = (options.work / f"zoo-{name}.plan").resolve()
        if plan.exists():
            late += [("allocator", f"{name}:plain", {}), ("allocator", f"{name}:{plan}", {})]
    if "device" in only:
        limited = {} if on_cpu else {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.03"}
        late.append(("device", "", limited))
    run.finish(run.prepare(late, 0.9))

    whole = {"versions": versions, "date": time.strftime("%Y-%m-%d"), "scale": scale, "tests": tested}
    whole["checks"] = [child.found() for child in run.children]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accelerator.json").write_text(json.dumps(whole, indent=1) + "\n")
    from benchmarks.accelerator_table import markdown

    text = markdown(whole)
    (options.out / "accelerator.md").write_text(text)
    run.say("written")
    print(text)


if __name__ == "__main__":
    main()
