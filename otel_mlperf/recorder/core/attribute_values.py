"""Conversion of arbitrary values to attributes that every backend accepts.

Numbers, text and short lists of both are stored unchanged, truncated to the limits. A tensor or an
array is stored as its type and shape alone, because reading its content would wait for the GPU. Any
other value is stored as the name of its type, because its ``repr`` would run the program's code.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.scrub import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME_BYTES = 256
TEXT_BYTES = 4096
MAX_ATTRIBUTES = 64
UNNAMED = "unnamed"
_MAX_ITEMS = 128
_INT64 = 1 << 63
_LISTS = (list, tuple, set, frozenset, range)


def safe_attributes(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return at most 64 attributes that every backend accepts, without ``None`` values."""
    if len(given) <= MAX_ATTRIBUTES and all(map(_is_safe, given, given.values())):
        return dict(given)
    attributes: dict[str, Any] = {}
    for key, value in given.items():
        if len(attributes) >= MAX_ATTRIBUTES:
            break
        if value is not None:
            attributes[safe_name_text(key)] = safe_value(value)
    return attributes


def _is_safe(key: Any, value: Any) -> bool:
    """Return whether an attribute certainly needs no conversion; most attributes pass this test."""
    kind = type(value)
    if type(key) is not str or not key or len(key) > NAME_BYTES or not key.isascii():
        return False
    if kind is str:
        return len(value) <= NAME_BYTES and value.isascii()
    return kind is float or kind is bool or (kind is int and -_INT64 <= value < _INT64)


def safe_name_text(name: Any) -> str:
    """Return a section's or attribute's name as text of 1 to 256 bytes; ``unnamed`` if empty."""
    if type(name) is str and name.isascii() and 0 < len(name) <= NAME_BYTES and "\0" not in name:
        return name
    text = name if isinstance(name, str) else _type_name(name) if name is not None else ""
    return clean(text, NAME_BYTES) or UNNAMED


def safe_value(value: Any) -> Any:
    """Convert a value to bool, int, float, text or a list; bytes become ``{"base64": text}``."""
    kind = type(value)
    if kind is bool or kind is float:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else _long(value)
    if kind is str:
        return value if len(value) <= 64 and value.isascii() else clean(value, TEXT_BYTES)
    try:
        return _other_value(value)
    except Exception as error:  # noqa: BLE001 - properties and __len__ are the program's code
        raise_foreign(error)
        return _type_name(value)


def _other_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return safe_value(value.value) if not isinstance(value.value, Enum) else value.name
    if isinstance(value, bool | int | float | str):
        plain = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return safe_value(plain(value))
    if isinstance(value, bytes):
        return {names.BASE64: b64encode(value[:TEXT_BYTES]).decode()}
    if isinstance(value, os.PathLike):
        return clean(str(os.fspath(value)), TEXT_BYTES)
    if isinstance(value, _LISTS):
        return _list(islice(value, _MAX_ITEMS))
    return _by_shape(value)


def _list(items: Iterable[Any]) -> list[Any]:
    """Return items of a single type, as OpenTelemetry requires; mixed types become text."""
    values = [
        _nested(item) if isinstance(item, _LISTS) else safe_value(item)
        for item in items
        if item is not None
    ]
    kinds = {type(item) for item in values}
    if kinds == {int, float}:
        return [float(item) for item in values]
    if len(kinds) <= 1:
        return values
    return [str(item) for item in values]


def _nested(value: Any) -> str:
    """Return a nested list as text. Lists in it become type names: a list can contain itself."""
    items = islice(value, _MAX_ITEMS)
    values = [_type_name(i) if isinstance(i, _LISTS) else safe_value(i) for i in items]
    return clean(str(values), TEXT_BYTES)


def _by_shape(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return safe_value(value.item())
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return _type_name(value)
    sizes = ", ".join(str(int(size)) for size in shape)
    return clean(f"{type(value).__name__}({str(dtype).removeprefix('torch.')}, [{sizes}])", 256)


def _long(value: int) -> str:
    # Python refuses str() of an integer with more than 4,300 digits; for shorter ones it is slow.
    return str(value) if value.bit_length() < 4096 else hex(value)[:TEXT_BYTES]


def _type_name(value: Any) -> str:
    return clean(f"<{type(value).__qualname__}>", NAME_BYTES)
