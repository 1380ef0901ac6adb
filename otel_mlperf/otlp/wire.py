"""Protobuf encoder for the messages that all of OTLP's signals share, and a safe decoder.

The protobuf package is not used: it would cost a fifth of the agent's memory budget, and it is
slow, since it creates a Python object per message.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
LOCAL: Final = 0x101
"""Flags of a span or link: sampled, and the parent or target is in this process."""
REMOTE: Final = 0x301
"""Flags of a span or link: sampled, and the parent or target is in another process."""
INTERNAL: Final = 1
"""Default kind of spans, which represent neither a request nor a message."""
STATUS_OK: Final = 1
STATUS_ERROR: Final = 2

_SURROGATES = re.compile("[\ud800-\udfff]")
_MASK64 = (1 << 64) - 1
INT64 = range(-(1 << 63), 1 << 63)
_DEEPEST = 16
_SHORT: Final = tuple(bytes((number,)) for number in range(128))


def varint(number: int) -> bytes:
    """Encode an unsigned number as a varint (base 128, least significant group first)."""
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@cache
def tag(field: int, kind: int) -> bytes:
    """Encode the tag before a field's value; ``kind`` is the wire type, such as ``VARINT``."""
    return varint(field << 3 | kind)


def block(field: int, content: bytes) -> bytes:
    """Encode a length-delimited field: message, string, bytes or packed numbers."""
    return tag(field, BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Encode a string field. The result is empty for an empty string, which is the default."""
    return block(field, utf8(value)) if value else b""


def number(field: int, value: int) -> bytes:
    """Encode a varint field (int64), negative numbers in two's complement."""
    return tag(field, VARINT) + varint(value & _MASK64)


def signed(field: int, value: int) -> bytes:
    """Encode a signed number as a zigzag field (sint32)."""
    return tag(field, VARINT) + varint((value << 1 ^ value >> 63) & _MASK64)


def fixed64(field: int, value: int) -> bytes:
    """Encode an unsigned eight-byte field, such as a time in nanoseconds."""
    return tag(field, FIXED64) + struct.pack("<Q", value & _MASK64)


def fixed32(field: int, value: int) -> bytes:
    """Encode an unsigned four-byte field."""
    return tag(field, FIXED32) + struct.pack("<I", value)


def double(field: int, value: float) -> bytes:
    """Encode a floating point field of eight bytes."""
    return tag(field, FIXED64) + struct.pack("<d", value)


def utf8(value: str) -> bytes:
    """Encode a text as UTF-8, with each lone surrogate replaced by U+FFFD.

    Otherwise one invalid name would cause the loss of a whole batch.
    """
    try:
        return value.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", value).encode()


def any_value(value: object, depth: int = 0) -> bytes:
    """Encode the content of an ``AnyValue``.

    Integers beyond 64 bits become text. An object of another type becomes the name of its type,
    since calling methods of the object could run arbitrary code. ``depth`` counts the enclosing
    values.
    """
    # NumPy scalars except float64 are not instances of int or float: convert them.
    if isinstance(value, np.generic):
        value = value.item()
    for kind, encode in _SCALARS:
        if isinstance(value, kind):
            return encode(value)
    # The depth is limited, since a value may contain itself; deeper values become their type's
    # name.
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return block(5, b"".join(block(1, any_value(item, depth + 1)) for item in value))
    if isinstance(value, Mapping) and value.keys() == {names.BASE64}:
        return block(7, b64decode(value[names.BASE64]))
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return block(6, encode_attributes(value, 1, depth + 1))
    return block(1, utf8(type(value).__qualname__))


def _integer(value: int) -> bytes:
    if value in INT64:
        return number(3, value)
    # Python refuses to format integers with more than 4,300 decimal digits: use hexadecimal.
    words = str(value) if value.bit_length() < 8192 else hex(value)
    return block(1, words.encode())


_SCALARS: Final[tuple[tuple[type, Callable[[Any], bytes]], ...]] = (
    (type(None), lambda _: b""),
    (bool, lambda value: number(2, value)),  # must precede int: bool is a subclass of int
    (int, _integer),
    (float, lambda value: double(4, value)),
    (str, lambda value: block(1, utf8(value))),
    (bytes, lambda value: block(7, value)),
)


def key_value(key: str, value: object, depth: int = 0) -> bytes:
    """Encode the content of a ``KeyValue``; ``depth`` is as in ``any_value``."""
    return block(1, utf8(key)) + block(2, any_value(value, depth))


def encode_attributes(attributes: Mapping[str, object], field: int = 9, depth: int = 0) -> bytes:
    """Encode attributes as repeated ``KeyValue`` in ``field`` (9 for spans), without empty keys.

    ``depth`` is as in ``any_value``.
    """
    return b"".join(
        block(field, key_value(str(key), value, depth)) for key, value in attributes.items() if key
    )


def encode_resource(attributes: Mapping[str, object]) -> bytes:
    """Encode the content of a ``Resource`` for ``encode_spans`` and ``encode_metrics``."""
    return encode_attributes(attributes, 1)


def encode_scope(name: str, version: str = "") -> bytes:
    """Encode the content of an ``InstrumentationScope``."""
    return text(1, name) + text(2, version)


def envelope(
    resource: bytes,
    scope: bytes,
    items: int,
    schema_url: str = "",
    scope_schema_url: str | None = None,
) -> tuple[bytes, bytes]:
    """Return the bytes that precede and follow the spans or metrics (``items`` bytes) in a request.

    ``schema_url`` applies to the resource, and to the scope unless ``scope_schema_url`` is given.
    The field numbers are the same for traces and metrics: request.1 = resource block {1 resource, 2
    scope block {1 scope, 2 items, 3 schema}, 3 schema}. Concatenating requests merges them.
    """
    head = block(1, scope)
    schema = text(3, schema_url)
    of_scope = schema if scope_schema_url is None else text(3, scope_schema_url)
    scoped = len(head) + items + len(of_scope)
    before = block(1, resource) + tag(2, BYTES) + varint(scoped)
    whole = len(before) + scoped + len(schema)
    return tag(1, BYTES) + varint(whole) + before + head, of_scope + schema


def packed_varints(values: Iterable[int]) -> bytes:
    """Encode the content of a packed field of unsigned varints."""
    return b"".join(map(varint, values))


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield field number, wire type and value for each field of an untrusted message.

    The values together need no more memory than ``data``.

    Raises:
        ValueError: the bytes are not a protobuf message.
    """
    at = 0
    while at < len(data):
        # Lengths are compared with the available bytes before slicing, so that a message that
        # announces a gigabyte costs no memory.
        key, at = _read_varint(data, at)
        field, kind = key >> 3, key & 7
        if not field:
            raise ValueError("field number 0")
        value: int | bytes
        if kind == VARINT:
            value, at = _read_varint(data, at)
        else:
            size, at = _size(data, at, kind)
            if at + size > len(data):
                raise ValueError(f"field {field} is cut short")
            value, at = data[at : at + size], at + size
        yield field, kind, value


def _size(data: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == BYTES:
        return _read_varint(data, at)
    if kind in (FIXED64, FIXED32):
        return (8 if kind == FIXED64 else 4), at
    raise ValueError(f"wire type {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = 0
    # Ten bytes contain 64 bits and six more, which are dropped as in protobuf. More bytes are an
    # error, which bounds the loop.
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("number is cut short")
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result & _MASK64, at
    raise ValueError("number of more than ten bytes")
