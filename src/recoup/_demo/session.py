"""Drives the demo's two processes and says what they answer, as it happens. No JAX in this process.

Both prepare one after the other, then take their steps in turn, so that the times compare.
"""

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Self

from recoup import errors
from recoup._demo.settings import Settings

Event = dict[str, Any]


class WorkerError(errors.RecoupError, RuntimeError):
    """A process of the demo ended before its work was done."""

    code = "E-DEMO-001"


class Worker:
    """One of the two processes; a context manager that leaves no process behind."""

    def __init__(self, kind: str, settings: Settings) -> None:
        self.kind = kind
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recoup._demo.worker", kind, json.dumps(dataclasses.asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def until(self, last: str) -> Iterator[Event]:
        """The answers up to and with the first one called `last`.

        Raises:
            RecoupError: What the process reported, or that it ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "error":
                raise _error_of(event["code"])(event["message"])
            yield event
            if event["event"] == last:
                return
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        raise WorkerError(f"the {self.kind} process ended: {lines[-1] if lines else 'it said nothing'}")

    def ask(self, order: str, answer: str) -> Event:
        """Send one line and return its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, or its absence, says what happened
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        *_, event = self.until(answer)
        return event


def run_demo(settings: Settings, say: Callable[[Event], None]) -> Event:
    """Prepare both steps, train them in turn, and return everything as plain data.

    Args:
        settings: Sizes and budget. say: Called with each event as it happens: "start", "residuals", "plan",
        "ready", "step", "done". Events of
            a process carry its `kind`; "step" carries both losses and times.
    """
    result: Event = {"settings": dataclasses.asdict(settings), "plain": {}, "fitted": {}, "steps": []}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for kind in ("fitted", "plain"):
            say({"event": "prepare", "kind": kind})
            workers[kind] = stack.enter_context(Worker(kind, settings))
            for event in workers[kind].until("ready"):
                event["kind"] = kind
                result[kind][event["event"]] = {k: v for k, v in event.items() if k not in ("event", "kind")}
                say(event)
        for i in range(settings.steps):
            answers = {kind: workers[kind].ask(str(i), "step") for kind in ("plain", "fitted")}
            row = {"event": "step", "step": i}
            for kind, answer in answers.items():
                row[f"{kind}_loss"] = float.fromhex(answer["loss"])
                row[f"{kind}_seconds"] = answer["seconds"]
            row["equal"] = answers["plain"]["loss"] == answers["fitted"]["loss"]
            result["steps"].append({k: v for k, v in row.items() if k != "event"})
            say(row)
        for kind, worker in workers.items():
            peak = worker.ask("end", "peak")
            result[kind]["peak"] = {k: v for k, v in peak.items() if k != "event"}
    result["equal_losses"] = sum(row["equal"] for row in result["steps"])
    if result["steps"]:
        for kind in ("plain", "fitted"):
            times = [row[f"{kind}_seconds"] for row in result["steps"]]
            result[kind]["median_step_seconds"] = statistics.median(times)
    return result


def _error_of(code: str) -> type[errors.RecoupError]:
    """recoup's error class with this code."""
    known = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RecoupError)]
    return next((c for c in known if c.code == code), errors.RecoupError)
