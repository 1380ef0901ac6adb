"""Reader of trace files: columns in bounded memory, and the full ``args`` of selected events.

The file is read once, as a stream: fields before the list of events, the list block by block, and
fields after the list. In addition to the columns, reading needs a few mebibytes, independent of the
file's size. ``Events`` has columns for commonly used values. All ``args`` of selected events
(shapes, grids, groups of collectives, stacks) are read from the file again, at the events'
positions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.blocks import BETWEEN, TraceText, decode, last_between
from otel_mlperf.kineto.reading.damage import DamageLog
from otel_mlperf.kineto.reading.damaged_blocks import LAST_ENTRY, LONGEST_ENTRY, DamagedBlocks
from otel_mlperf.kineto.reading.fields import Fields, find_distributed
from otel_mlperf.kineto.reading.foreign_formats import find_foreign, find_foreign_fields
from otel_mlperf.kineto.reading.repair import clean_text, is_cut, mend_value, parse_value
from otel_mlperf.kineto.reading.source import TraceSource
from otel_mlperf.kineto.reading.table import Table
from otel_mlperf.kineto.reading.times import UNIX_TIME_NS
from otel_mlperf.kineto.reading.value_columns import OTHER_NAMES, general_name
from otel_mlperf.kineto.trace_events import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MAX_BYTES: Final = 8 << 30


def read_trace(
    path: Path, *, max_bytes: int = MAX_BYTES, progress: Callable[[int], None] | None = None
) -> Trace:
    """Read a Chrome trace that PyTorch's profiler wrote, plain or gzip.

    ``progress`` is called with the number of bytes of the file read so far. Damage is skipped and
    listed in ``Trace.damage``. At most ``max_bytes`` of uncompressed text are read.

    Raises:
        TraceError: the file is missing, not a regular file, or has no list of events.
    """
    damage = DamageLog()
    table = Table(damage)
    with TraceSource(path, damage, max_bytes) as source, TraceText(source, progress) as text:
        text.more()
        if foreign := find_foreign(path, text.data):
            raise TraceError(f"cannot read the trace {path}: {foreign}")
        fields = Fields(text, damage)
        has_events = fields.open()
        if not has_events:
            raise _no_events(path, source, damage, fields)
        recovery = DamagedBlocks(table, damage, is_bare=fields.is_bare)
        while has_events:
            _read_events(text, table, recovery)
            has_events = fields.find_events()
        digest = source.digest()
    return _trace(path, table, fields.values, damage, digest)


def _read_events(text: TraceText, table: Table, recovery: DamagedBlocks) -> None:
    while True:
        between = last_between(text.data)
        if between is None:
            # An entry may be longer than a block; an entry longer than the limit is damage.
            if len(text.data) < LONGEST_ENTRY and text.more():
                continue
        else:
            end, begin = between
            block = decode(memoryview(text.data)[:end])
            if block is not None:
                table.add(block.entries, block.positions() + text.offset)
                text.drop(begin)
                text.more()
                continue
        taken = recovery.take(text.data, text.offset, is_last=text.ended)
        text.drop(taken.size)
        if taken.ended:
            return
        text.more()


def _trace(
    path: Path, table: Table, values: dict[str, Any], damage: DamageLog, digest: str
) -> Trace:
    base = values.get("baseTimeNanoseconds")
    base_ns = int(base) if isinstance(base, int | str) and str(base).isdecimal() else 0
    base_ns = base_ns if base_ns < 2**62 else 0
    table.close()
    events = table.events.finish(base_ns)
    distributed = find_distributed(values)
    devices = values.get("deviceProperties")
    return Trace(
        path=path,
        events=events,
        names=table.events.names(),
        categories=table.events.categories(),
        tracks=table.tracks.all(),
        flows=table.flows.finish(base_ns),
        flow_kinds=table.flows.kinds(),
        allocations=table.allocations.finish(base_ns),
        damage=damage.all(),
        counts=table.counts(),
        is_unix_time=bool(len(events) and events.start_ns[len(events) // 2] > UNIX_TIME_NS),
        rank=distributed.rank,
        world_size=distributed.world_size,
        backend=distributed.backend,
        devices=[d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else [],
        numbered=table.numbers.all(base_ns),
        silent_tracks=table.tracks.silent(),
        header={k: v for k, v in values.items() if isinstance(v, str | int | bool | None)},
        digest=digest,
        timeless_work=table.events.timeless_work,
    )


def _no_events(path: Path, source: TraceSource, damage: DamageLog, fields: Fields) -> TraceError:
    if foreign := find_foreign_fields(fields.values):
        return TraceError(f"cannot read the trace {path}: {foreign}")
    if source.is_cut_gzip or (source.is_gzip and "truncated" in damage):
        reason = f"its gzip data is cut off before the first event, after {source.file_bytes} bytes"
    elif not source.text_bytes:
        reason = "it is empty"
    else:
        kinds = ", ".join(sorted({item.kind for item in damage.all()} - {"truncated"}))
        reason = 'it contains no list "traceEvents"' + (f" ({kinds})" if kinds else "")
    return TraceError(
        f"cannot read the trace {path}: {reason}; pass a file that was exported by torch.profiler"
    )


_FIRST_BYTES: Final = 1 << 12
_NO_LIMIT: Final = 1 << 62


def read_details(trace: Trace, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the full ``args`` of the events in ``rows``, by row (empty if an event has none).

    A gzip file is decompressed up to the last of the events: request many rows in one call.

    Raises:
        TraceError: the file is missing, or has changed since ``trace`` was read.
    """
    return dict(each_detail(trace, rows))


def each_detail(trace: Trace, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield row and ``args`` of each event in ``rows``, in file order, one in memory at a time.

    Raises:
        TraceError: the file is missing, or has changed since ``trace`` was read.
    """
    positions = trace.events.position
    # In file order, because a compressed stream cannot be read backwards.
    ordered = sorted((int(positions[row]), int(row)) for row in rows)
    with TraceSource(trace.path, DamageLog(), _NO_LIMIT) as source:
        window = _Window(source)
        for position, row in ordered:
            entry = _read_entry(window, position)
            name = entry.get("name", "")
            known = trace.names[trace.events.name[row]]
            if isinstance(name, str) and not _is_called(clean_text(name, {}), known):
                raise TraceError(
                    f"cannot read the trace {trace.path} again: the event at byte {position} has "
                    "changed; import the trace again"
                )
            args = entry.get("args")
            yield row, args if isinstance(args, dict) else {}


def _is_called(name: str, known: str) -> bool:
    return known in {name, OTHER_NAMES} or known == general_name(name)


def _read_entry(window: _Window, position: int) -> dict[str, Any]:
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
    """Access to the text in ascending order: by position in a plain file, otherwise streamed."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._data = b""
        self._offset = 0

    def at(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes from ``position``; fewer at the end of the text."""
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
