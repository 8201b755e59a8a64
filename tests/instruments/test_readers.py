"""What the compiler and the profiler store is read without schemas: damaged input gives one clear error."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup import _compat
from recoup._instruments import wire
from recoup._instruments.assignment import parse_assignment
from recoup._instruments.dump_files import parse_assignment_text, read_dump
from recoup._instruments.hlo import parse_module
from recoup._instruments.occupancy import occupancy
from recoup._instruments.trace import read_capture
from recoup.errors import InstrumentError


@pytest.fixture(scope="module")
def stored() -> tuple[bytes, bytes]:
    """A module and its buffer assignment, serialized."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w + x), None

        return jnp.sum(jax.lax.scan(cell, x[0], x)[0])

    args = jnp.ones((16, 16)), jnp.ones((5, 4, 16))
    compiled = jax.jit(jax.grad(loss)).lower(*args).compile()
    return _compat.optimized_module(compiled), compiled.memory_analysis().serialized_buffer_assignment_proto


def test_a_program_and_its_buffers_are_read(stored: tuple[bytes, bytes]) -> None:
    module, allocations = parse_module(stored[0]), parse_assignment(stored[1])
    assert module.computations[module.entry].root in module.instructions
    assert set(module.schedule[module.entry]) == set(module.computations[module.entry].instructions)
    assert {"dot", "while", "dynamic-update-slice"} <= {i.opcode for i in module.instructions.values()}
    lines = {module.source(i.frame) for i in module.instructions.values()}
    assert any("test_readers.py" in line and "cell)" in line for line in lines)
    kinds = [a.kind for a in allocations]
    assert kinds.count("parameter") == 2 and "temporary" in kinds and "output" in kinds
    assert sorted(a.parameter for a in allocations if a.kind == "parameter") == [0, 1]


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0.01, 0.99), which=st.sampled_from([0, 1]))
def test_a_truncated_message_is_refused(stored: tuple[bytes, bytes], cut: float, which: int) -> None:
    data = stored[which][: int(len(stored[which]) * cut)]
    try:
        found = parse_module(data) if which == 0 else parse_assignment(data)
    except InstrumentError as error:
        assert error.code == "E-INSTR-001"
    else:  # cut between two fields of a list: a shorter list, which is still one
        assert which == 1 and len(found) < len(parse_assignment(stored[1])) + 1


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200))
def test_garbage_is_refused_or_empty(data: bytes) -> None:
    for parse in (parse_module, parse_assignment):
        try:
            parse(data)
        except InstrumentError:
            continue


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), which=st.sampled_from([0, 1]))
def test_one_wrong_byte_never_escapes_as_another_error(
    stored: tuple[bytes, bytes], at: int, byte: int, which: int
) -> None:
    changed = [bytearray(part) for part in stored]
    changed[which][at % len(stored[which])] = byte
    try:
        occupancy(parse_module(bytes(changed[0])), parse_assignment(bytes(changed[1])))
    except InstrumentError:
        return


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch, stored: tuple[bytes, bytes]) -> None:
    monkeypatch.setattr(wire, "LIMIT_BYTES", 100)
    with pytest.raises(InstrumentError, match="more than the limit of 100"):
        parse_module(stored[0])


def test_an_assignment_of_another_program_is_refused(stored: tuple[bytes, bytes]) -> None:
    other = jax.jit(lambda x: jnp.sum(x)).lower(jnp.ones((8, 8))).compile()
    with pytest.raises(InstrumentError, match="names other instructions"):
        occupancy(parse_module(_compat.optimized_module(other)), parse_assignment(stored[1]))


TEXT = """BufferAssignment:
allocation 0: size 262144, parameter 0, shape |f32[256,256]| at ShapeIndex {}:
 value: <8 p.1 @0> (size=262144,offset=0): f32[256,256]{1,0}
allocation 1: size 4, output shape is |f32[]|, maybe-live-out:
 value: <9 fusion @0> (size=4,offset=0): f32[]
allocation 2: size 1048576, preallocated-temp:
 value: <2 dot @0> (size=524288,offset=524288): f32[256,512]{1,0}
 value: <3 add @0> (size=1048576,offset=0): f32[512,512]{1,0}

Total bytes used: 1310724 (1.25MiB)
"""


def test_the_text_of_a_buffer_assignment() -> None:
    first, second, third = parse_assignment_text(TEXT, "a.txt")
    assert (first.kind, first.parameter, first.size_bytes) == ("parameter", 0, 262144)
    assert (second.kind, second.parameter) == ("output", -1)
    assert (third.kind, [v.instruction for v in third.values]) == ("temporary", ["dot", "add"])
    assert (third.values[0].offset_bytes, third.values[0].shape) == (524288, "f32[256,512]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a buffer assignment"),
        ("HloModule jit_f\n", "not a buffer assignment"),
        (TEXT[:-9], "cut off inside its last line"),
        (TEXT.replace("size 4,", "size four,"), "not understood: 'allocation 1"),
    ],
)
def test_damaged_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InstrumentError, match=message):
        parse_assignment_text(text, "a.txt")


def test_a_folder_that_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(InstrumentError, match=r"holds no module .*XLA_FLAGS"):
        read_dump(tmp_path)
    with pytest.raises(InstrumentError, match="not a folder"):
        read_dump(tmp_path / "none")
    report = tmp_path / "module_0001.jit_f.cpu_after_optimizations-memory-usage-report.txt"
    report.write_text("Memory Sp")
    with pytest.raises(InstrumentError, match="no total"):
        read_dump(tmp_path)
    report.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InstrumentError, match="not text"):
        read_dump(tmp_path)


def test_a_damaged_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"\x0a\xff\xff\xff\x7fhello")
    with pytest.raises(InstrumentError, match="not a profiler capture"):
        read_capture(path, "jit_f")
    path.write_bytes(b"")
    with pytest.raises(InstrumentError, match="no region labelled"):
        read_capture(path, "jit_f")


def test_what_reads_stored_data_needs_no_jax() -> None:
    modules = (
        "arena assignment catalogue dump_files hlo intervals liveness occupancy origin peak reading wire"
    )
    names = ", ".join(f"recoup._instruments.{name}" for name in modules.split())
    program = f"import {names}, sys; assert not {{'jax', 'jaxlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
