"""What else does the file say about some of the events?

``Events`` has columns for what everybody asks for. All ``args`` of chosen events (shapes, grids,
groups of collectives, stacks) are read from the file again, at the events' positions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.blocks import BETWEEN
from otel_mlperf.kineto.reading.damage import DamageLog
from otel_mlperf.kineto.reading.damaged_blocks import LAST_ENTRY, LONGEST_ENTRY
from otel_mlperf.kineto.reading.repair import clean_text, is_cut, mend_value, parse_value
from otel_mlperf.kineto.reading.source import TraceSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.kineto.trace_events import Trace

_FIRST_BYTES: Final = 1 << 12
_NO_LIMIT: Final = 1 << 62


def read_details(trace: Trace, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The full ``args`` of the events in these rows; empty where an event has none.

    A gzip file is decompressed up to the last of them, so ask once for many.

    Raises:
        TraceError: the file is gone, or is not the one that ``trace`` was read from.
    """
    positions = trace.events.position
    ordered = sorted((int(positions[row]), int(row)) for row in rows)
    details = {}
    with TraceSource(trace.path, DamageLog(), _NO_LIMIT) as source:
        window = _Window(source)
        for position, row in ordered:
            entry = _read_entry(window, position)
            name = entry.get("name", "")
            known = trace.names[trace.events.name[row]]
            if isinstance(name, str) and clean_text(name, {}) != known:
                raise TraceError(
                    f"cannot read the trace {trace.path} again: at byte {position} is not "
                    "the event that was there before; import it anew"
                )
            args = entry.get("args")
            details[row] = args if isinstance(args, dict) else {}
    return details


def _read_entry(window: _Window, position: int) -> dict[str, Any]:
    """The entry that begins at ``position``, mended as the reader does; empty if there is none."""
    size = _FIRST_BYTES
    while True:
        data = window.at(position, size)
        text = data.decode("utf-8", "surrogateescape")
        try:
            value = parse_value(text, floats=float, strict=False).value
        except RecursionError:
            return {}
        except json.JSONDecodeError as error:
            if is_cut(error, text) and size < 2 * LONGEST_ENTRY and len(data) == size:
                size *= 4
                continue
            value = _mended(data)
        return value if isinstance(value, dict) else {}


def _mended(data: bytes) -> Any:
    end = BETWEEN.search(data) or LAST_ENTRY.search(data)
    if end is None:
        return None
    mended = mend_value(data[: end.start() + 1].decode("utf-8", "surrogateescape"), floats=float)
    return mended.value if mended else None


class _Window:
    """Parts of the text in ascending order: from their place in a plain file, else as a stream."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._data = b""
        self._offset = 0

    def at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes, fewer at the end of the text."""
        if not self._source.is_gzip:
            return self._source.read_at(position, size)
        while self._offset + len(self._data) < position + size:
            piece = self._source.read()
            if not piece:
                break
            behind = min(len(self._data), position - self._offset)
            self._data = self._data[behind:] + piece
            self._offset += behind
        begin = position - self._offset
        return self._data[begin : begin + size]
