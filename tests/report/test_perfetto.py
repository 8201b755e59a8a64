"""The trace follows the Trace Event Format; where Perfetto's own processor is installed, it reads it too."""

import json
import shutil

import pytest

from recoup._report.perfetto import render
from tests.report.samples import picture_of


def events_of(picture):
    data = json.loads(render(picture))
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    return data["traceEvents"]


def test_every_event_has_what_its_phase_needs():
    for event in events_of(picture_of()):
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert isinstance(event["ts"], int) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0 and isinstance(event["tid"], int)
        elif event["ph"] == "C":
            assert set(event["args"]) == {"bytes"} and event["args"]["bytes"] >= 0
        elif event["ph"] in "be":
            assert event["cat"] and event["id"]
        else:
            assert event["ph"] == "M"


def test_asynchronous_slices_begin_and_end_once():
    begun = {}
    for event in events_of(picture_of()):
        key = (event.get("cat"), event.get("id"), event["name"])
        if event["ph"] == "b":
            assert key not in begun
            begun[key] = event["ts"]
        elif event["ph"] == "e":
            assert event["ts"] > begun.pop(key)
    assert not begun


def test_the_counter_is_the_timeline():
    picture = picture_of(operations=50)
    for pid, strip in enumerate(picture.strips, start=1):
        counter = [
            (e["ts"], e["args"]["bytes"])
            for e in events_of(picture)
            if e["ph"] == "C" and e["name"] == "memory (bytes)" and e["pid"] == pid
        ]
        steps = dict(counter)
        now = 0
        for at, total in enumerate(strip.totals()):
            now = steps.get(at, now)
            assert now == total


@pytest.mark.slow
def test_perfettos_own_processor_reads_it(tmp_path):
    processor = pytest.importorskip("perfetto.trace_processor", reason="needs the perfetto package")
    shell = shutil.which("trace_processor_shell")
    if shell is None:
        pytest.skip("needs Perfetto's trace_processor_shell on PATH; the package downloads it otherwise")
    path = tmp_path / "trace.json"
    path.write_text(render(picture_of()), encoding="utf-8")
    config = processor.TraceProcessorConfig(bin_path=shell)
    with processor.TraceProcessor(trace=str(path), config=config) as reader:
        slices = next(iter(reader.query("select count(*) as n from slice"))).n
        counters = next(iter(reader.query("select count(*) as n from counter"))).n
        errors = next(iter(reader.query("select sum(value) as n from stats where severity = 'error'"))).n
    assert slices >= 2 * (40 + 40) and counters > 40 and not errors
