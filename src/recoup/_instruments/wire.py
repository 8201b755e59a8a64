"""Reads protocol buffers without their schema: fields by number, as XLA's own messages are stored. No JAX.

Idea: no generated classes ship with jaxlib, and the few fields needed are stable numbers of XLA's `hlo.proto`
(field numbers of a published message never change meaning).
Source: https://protobuf.dev/programming-guides/encoding.
Limits: input may be damaged or hostile: every length is checked against what is left, and a message larger
than `LIMIT_BYTES` is refused.
"""

from collections.abc import Iterator

from recoup.errors import InstrumentError

LIMIT_BYTES = 1 << 30

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes, what: str) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: (number, value), an int or the bytes of what is inside.

    Args:
      message: the bytes.
      what: the message's name, for errors.

    Raises:
      InstrumentError: it is truncated, not a protocol buffer, or too large.
    """
    if len(message) > LIMIT_BYTES:
        raise InstrumentError(f"{what} is {len(message)} bytes, more than the limit of {LIMIT_BYTES}")
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at, what)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise InstrumentError(f"{what} is not a protocol buffer: field 0 at byte {at}")
        if kind == _VARINT:
            value, at = _varint(message, at, what)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at, what)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise InstrumentError(f"{what} is not a protocol buffer: wire type {kind} at byte {at}")
        if length > size - at:
            raise InstrumentError(
                f"{what} is truncated: {length} bytes expected at byte {at}, {size - at} left"
            )
        yield number, message[at : at + length]
        at += length


def inner(value: int | bytes, what: str) -> bytes:
    """A field that must hold a message, a text or a packed list."""
    if isinstance(value, int):
        raise InstrumentError(f"{what} is damaged: a number where a message belongs")
    return value


def number(value: int | bytes, what: str) -> int:
    """A field that must hold a number; 64-bit two's complement, as XLA stores signed ones."""
    if isinstance(value, bytes):
        raise InstrumentError(f"{what} is damaged: a message where a number belongs")
    return value - (1 << 64) if value >> 63 else value


def numbers(value: int | bytes, what: str) -> list[int]:
    """A repeated number: one value, or many packed into bytes."""
    if isinstance(value, int):
        return [number(value, what)]
    found, at = [], 0
    while at < len(value):
        item, at = _varint(value, at, what)
        found.append(number(item, what))
    return found


def text(value: int | bytes, what: str) -> str:
    """A field that must hold text."""
    return inner(value, what).decode("utf-8", errors="replace")


def _varint(message: bytes, at: int, what: str) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(message):
            raise InstrumentError(f"{what} is truncated at byte {at}")
        byte = message[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result & ((1 << 64) - 1), at
        shift += 7
        if shift > 63:
            raise InstrumentError(f"{what} is not a protocol buffer: a number of more than 64 bits")
