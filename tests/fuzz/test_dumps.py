"""Buffer tables, programs, dumps and captures from anywhere: damage gives an `InstrumentError`, quickly."""

import functools
import gzip
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._instruments.assignment import parse_assignment
from recoup._instruments.dump_files import parse_assignment_text, read_dump
from recoup._instruments.hlo import parse_module
from recoup._instruments.trace import read_capture
from recoup.errors import InstrumentError


@functools.cache
def compiled() -> Any:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2)

    return jax.jit(jax.grad(loss)).lower(jnp.ones((3, 8, 8)), jnp.ones((16, 8))).compile()


@functools.cache
def good(kind: str) -> bytes:
    if kind == "assignment":
        return bytes(compiled().memory_analysis().serialized_buffer_assignment_proto)
    return bytes(compiled().runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())


READERS: dict[str, Callable[[bytes], Any]] = {"assignment": parse_assignment, "module": parse_module}


def read(kind: str, data: bytes) -> Any:
    """What the reader makes of it, or None for the one error that is allowed; never long, never much."""
    start = time.perf_counter()
    try:
        return READERS[kind](data)
    except InstrumentError as error:
        assert str(error).startswith("[E-INSTR-001]")
        return None
    finally:
        assert time.perf_counter() - start < 30


@pytest.mark.parametrize("kind", READERS)
def test_the_real_one_is_read(kind: str) -> None:
    assert read(kind, good(kind))


@pytest.mark.parametrize("kind", READERS)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_truncated(kind: str, data: Any) -> None:
    read(kind, good(kind)[: data.draw(st.integers(0, len(good(kind)) - 1))])


@pytest.mark.parametrize("kind", READERS)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bits(kind: str, data: Any) -> None:
    content = bytearray(good(kind))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    read(kind, bytes(content))


@pytest.mark.parametrize("kind", READERS)
@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes(kind: str, content: bytes) -> None:
    read(kind, content)


def nested(depth: int, field: int) -> bytes:
    """A message in a message in a message, each in the same field."""
    found = b"\x08\x01"
    for _ in range(depth):
        length, size = len(found), bytearray()
        while True:
            size.append((length & 0x7F) | (0x80 if length > 0x7F else 0))
            length >>= 7
            if not length:
                break
        found = bytes([field << 3 | 2]) + bytes(size) + found
    return found


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("field", range(1, 13))
def test_deep_nesting_and_huge_counts(kind: str, field: int) -> None:
    key = bytes([field << 3 | 2])
    tracemalloc.start()
    try:
        read(kind, nested(3000, field))
        read(kind, key + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"abc")  # a length of 2**63
        read(kind, bytes([field << 3]) + b"\xff" * 9 + b"\x01")  # a number of 2**64
        read(kind, (key + b"\x00") * 50_000)  # many empty messages
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300 * 2**20


DUMP = """BufferAssignment:
allocation 0: size 2048, parameter 1, shape |f32[16,32]| at ShapeIndex {}:
 value: <3 x @0> (size=2048,offset=0): f32[16,32]{1,0}
allocation 1: size 4096, preallocated-temp:
 value: <5 tanh @0> (size=2048,offset=0): f32[16,32]{1,0}
 value: <6 dot @0> (size=2048,offset=2048): f32[16,32]{1,0}

Total bytes used: 6144 (6.0KiB)
"""


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_text_assignments_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    text = list(DUMP)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text))
        kind = rng.randrange(3)
        if kind == 0:
            text[at] = chr(rng.choice([0, 9, 48, 57, 60, 62, 64, 123, 0x2028, 0x1F600]))
        elif kind == 1:
            del text[at : at + rng.randint(1, 40)]
        else:
            text[at:at] = rng.choice(["9" * 5000, "<" * 1000, "allocation ", "\n" * 100, "(size=", "-1"])
    try:
        parse_assignment_text("".join(text), "dump.txt")
    except InstrumentError as error:
        assert "dump.txt" in str(error)


def test_folders_that_are_no_dump(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises((InstrumentError, OSError)):
            read_dump(place)
    (tmp_path / "module_0001.jit_step.cpu_after_optimizations-buffer-assignment.txt").write_bytes(
        b"\xff\xfe\x00"
    )
    with pytest.raises(InstrumentError):
        read_dump(tmp_path)


CAPTURES = {
    "empty": b"",
    "text": b"hello" * 100,
    "a compressed file": gzip.compress(json.dumps({"traceEvents": []}).encode()),
    "a program": b"program",
    "nested": nested(3000, 1),
    "a length of 2**63": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc",
}


@pytest.mark.parametrize("kind", CAPTURES)
def test_captures_without_the_region_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(good("module") if kind == "a program" else CAPTURES[kind])
    with pytest.raises(InstrumentError, match=r"host\.xplane\.pb"):
        read_capture(path, "step")
