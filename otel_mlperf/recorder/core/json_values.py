"""How do parameters of any kind become what every reader of JSON accepts?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from otel_mlperf.recorder.core.attribute_values import safe_value
from otel_mlperf.recorder.core.scrub import clean

_DEPTH = 32
_TEXT_BYTES = 1 << 16
_LOWEST, _HIGHEST = -(1 << 63), 1 << 64


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """``value`` as JSON can hold it: what has no number there ("inf", "nan") is text."""
    if isinstance(value, Mapping | list | tuple):
        if not depth:
            return f"<{type(value).__qualname__}>"
        if isinstance(value, Mapping):
            return {plain_key(key): plain(item, depth - 1) for key, item in value.items()}
        return [plain(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return _number_or_text(value)


def plain_key(key: Any) -> str:
    """A mapping's key as text."""
    return clean(str(key), _TEXT_BYTES)


def _number_or_text(value: Any) -> Any:
    if isinstance(value, str):
        return clean(str.__str__(value), _TEXT_BYTES)
    if isinstance(value, int):
        return int(value) if _LOWEST <= value < _HIGHEST else safe_value(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return _as_text(value)


def _as_text(value: Any) -> Any:
    """Arrays by their shape, because their content may be on a GPU; else what it prints as."""
    found = safe_value(value)
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(value, set | frozenset) or (isinstance(found, str) and found.startswith("<")):
        try:
            return clean(repr(value), _TEXT_BYTES)
        except Exception:  # noqa: BLE001 - __repr__ is the program's code
            return str(found)
    return found if isinstance(found, bool | int | float) else str(found)
