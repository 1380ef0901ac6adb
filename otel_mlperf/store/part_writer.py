"""Writer of table parts in a run folder: atomic, with little memory, and within a size limit.

Only the agent uses this module. A part is written to a temporary file and renamed, so that readers
never see an incomplete part. Writing the same part number again replaces the same rows. pyarrow is
configured to use a single thread and the system's allocator, because pyarrow's own allocator never
releases memory.

At the size limit, parts are removed from one table after the other: profiler windows, then spans
(both are only examples, and new ones are the most useful), then other tables in the order of
``_REMOVAL_ORDER``, steps last. In each table the oldest parts are removed first, and the newest
part never.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_mlperf.errors import StoreError
from otel_mlperf.ids import safe_name
from otel_mlperf.store.parts import (
    SUFFIX,
    TablePart,
    covered_parts,
    live_parts,
    parse,
    part_name,
    table_folder,
)
from otel_mlperf.tables import TABLES
from otel_mlperf.whole_file import make_folder, replacing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from otel_mlperf.tables.row import Column

MERGE_OVER = 8
"""Maximum number of adjacent parts of one size class; more are merged.

It is limited because a reader opens all parts, and each node of a run may have this many in each
table.
"""
_LARGE = 1 << 20
"""Minimum size in bytes of parts that are excluded from merging.

Whole parts are removed at a run's size limit, so that parts must not become too large.
"""
_MAX_MERGED_BYTES = 8 << 20
"""Maximum total size in bytes of parts that are merged at a run's end."""
_GROUP_ROWS = 32_768
"""Approximate number of rows in memory while merging, in addition to one batch of a part."""

pa.set_memory_pool(pa.system_memory_pool())
pa.set_cpu_count(1)
pa.set_io_thread_count(1)

_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "word": pa.string(),
}
_NUMPY = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}

# pyarrow's arrays are sequences as well, but have no types that declare it.
Values = Sequence[Any] | np.ndarray[Any, Any]


def write_part(
    folder: Path | str, table: str, host: str, number: int, columns: Mapping[str, Values]
) -> Path:
    """Write one part of ``table`` and return the part's path; replace a part of the same number.

    All columns have the same length; None is a missing value. Columns that may be null can be
    omitted.

    Raises:
        StoreError: a column is unknown, missing or of the wrong type, or writing fails.
    """
    rows = _as_table(table, columns)
    return _write(Path(folder), table, part_name(host, number), [rows])


def write_pieces(
    folder: Path | str, table: str, host: str, number: int, pieces: Iterable[Mapping[str, Values]]
) -> Path:
    """Write one part of ``table`` with one piece in memory at a time; return the part's path.

    Raises:
        StoreError: a column is unknown, missing or of the wrong type, or writing fails.
    """
    rows = (_as_table(table, columns) for columns in pieces)
    return _write(Path(folder), table, part_name(host, number), rows)


def _write(folder: Path, table: str, name: str, pieces: Iterable[pa.Table]) -> Path:
    path = table_folder(folder, table) / name
    try:
        make_folder(path.parent)
        with _replacing(path) as temporary, _open(temporary, table) as writer:
            for rows in pieces:
                writer.write_table(rows)
    except OSError as error:
        raise StoreError(f"writing {path}: {error.strerror or error}") from error
    return path


def compact(folder: Path | str, table: str, host: str, over: int = MERGE_OVER) -> Path | None:
    """Merge parts of ``host`` if more than ``over`` parts of one size class are adjacent.

    Return the merged part, or None if nothing was merged. Readers see each row exactly once at any
    time: as soon as the merged part exists, its name marks the original parts as outdated, before
    they are removed.

    Raises:
        StoreError: a part cannot be read, or writing fails.
    """
    mine = _behind_large(_own_parts(folder, table, host))
    return _merge_run(folder, table, host, _mergeable(mine, over))


def merge_all(
    folder: Path | str, table: str, host: str, most_bytes: int = _MAX_MERGED_BYTES
) -> Path | None:
    """Merge the newest parts of ``host`` up to ``most_bytes``, so that an ended run has few parts.

    Return the merged part, or None if nothing was merged.

    Raises:
        StoreError: a part cannot be read, or writing fails.
    """
    mine = _own_parts(folder, table, host)
    return _merge_run(folder, table, host, _small_end(mine, most_bytes))


def _own_parts(folder: Path | str, table: str, host: str) -> list[TablePart]:
    place = table_folder(Path(folder), table)
    # First remove files that a killed agent left: unfinished parts, and parts whose rows are also
    # in a merged part. This is safe because only one agent writes the files of a host.
    _remove_unfinished(place, host)
    _remove(covered_parts(place, host))
    return live_parts(place, host)


def _merge_run(folder: Path | str, table: str, host: str, run: Sequence[TablePart]) -> Path | None:
    if len(run) <= 1:
        return None
    path = table_folder(Path(folder), table) / part_name(host, run[0].first, run[-1].last)
    try:
        _merge([part.path for part in run], path, table)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"merging {len(run)} parts into {path}: {error}") from error
    # Must follow the renaming of the merged part, whose name marks these parts as outdated, so that
    # readers that list the folder in between see each row once.
    _remove(run)
    return path


def _behind_large(parts: list[TablePart]) -> list[TablePart]:
    small = takewhile(lambda part: part.path.stat().st_size < _LARGE, reversed(parts))
    return [*small][::-1]


def _small_end(parts: list[TablePart], most_bytes: int) -> list[TablePart]:
    sizes = accumulate(part.path.stat().st_size for part in reversed(parts))
    few = sum(size <= most_bytes for size in sizes)
    return parts[len(parts) - few :]


def _mergeable(parts: list[TablePart], over: int) -> list[TablePart]:
    """Return the newest series of more than ``over`` adjacent parts of one size class, or [].

    Size classes are powers of ``over`` in the number of merged parts. Therefore a row is rewritten
    only once per class, and not in every merge.
    """
    run: list[TablePart] = []
    # Search starts at the newest part, because large, old parts should not be rewritten.
    for part in reversed(parts):
        if run and _size_class(part, over) > _size_class(run[-1], over):
            if len(run) > over:
                break
            run = []
        run.append(part)
    return run[::-1] if len(run) > over else []


def _size_class(part: TablePart, over: int) -> int:
    return math.ceil(math.log(part.last - part.first + 1, over))


def _merge(paths: list[Path], path: Path, table: str) -> None:
    schema = _schema(table)
    pending: list[pa.RecordBatch] = []
    with _replacing(path) as temporary, _open(temporary, table) as writer:
        for batch in _batches(paths, schema):
            pending.append(batch)
            if sum(map(len, pending)) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(pending, schema))
                pending = []
        if pending:
            writer.write_table(pa.Table.from_batches(pending, schema))


def _batches(paths: list[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_GROUP_ROWS, use_threads=False):
                yield batch if batch.schema.equals(schema) else _completed(batch, schema)


def _completed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema``; columns that ``batch`` lacks are null."""
    known = batch.schema.names
    columns = [
        batch.column(field.name) if field.name in known else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_table(table: str, columns: Mapping[str, Values]) -> pa.Table:
    try:
        declared = TABLES[table]
    except KeyError:
        raise StoreError(
            f"writing table {table!r}: no such table; tables: {', '.join(TABLES)}"
        ) from None
    unknown = sorted(set(columns) - {column.name for column in declared})
    if unknown:
        raise StoreError(f"writing table {table}: no such column: {', '.join(unknown)}")
    rows = len(next(iter(columns.values()), ()))
    arrays = [_as_array(table, column, columns.get(column.name), rows) for column in declared]
    return pa.Table.from_arrays(arrays, schema=_schema(table))


def _as_array(table: str, column: Column, values: Values | None, rows: int) -> pa.Array:
    kind = _TYPES[column.type]
    try:
        if values is None and column.null:
            return pa.nulls(rows, kind)
        if values is None or len(values) != rows:
            length = "nothing" if values is None else f"{len(values)} values"
            raise ValueError(f"{length} for {rows} rows")
        array = _numbers(values, kind) if isinstance(values, np.ndarray) else None
        if array is None:
            array = pa.array(values, kind)
        if array.null_count and not column.null:
            raise ValueError("a missing value where none is allowed")
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise StoreError(f"writing table {table}, column {column.name}: {error}") from error
    return array


def _numbers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array | None:
    """Return ``values`` as an Arrow array of type ``kind``; None if they have another type."""
    # pa.array() is avoided, because it imports numpy.ma for NumPy arrays, which needs 9 MB.
    if values.dtype != _NUMPY.get(kind):
        return None
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(plain), [None, pa.py_buffer(plain)])


def _schema(table: str) -> pa.Schema:
    return pa.schema(
        [pa.field(column.name, _TYPES[column.type], column.null) for column in TABLES[table]]
    )


def _open(path: str, table: str) -> pq.ParquetWriter:
    # Dictionary encoding of numbers and ids would cost 12 MB of memory, and double the file size.
    dictionary_columns = [column.name for column in TABLES[table] if column.type == "word"]
    return pq.ParquetWriter(
        path, _schema(table), compression="zstd", use_dictionary=dictionary_columns
    )


def _replacing(path: Path) -> AbstractContextManager[str]:
    """Return a context with a temporary file, which replaces ``path`` at the end of the context.

    Readers ignore the temporary name; ``_remove_unfinished`` removes leftovers.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    return replacing(path, is_durable=True, temporary=temporary)


def _remove_unfinished(place: Path, host: str) -> None:
    """Remove temporary files of an agent of this host that was killed while writing."""
    for path in place.glob(f".*{SUFFIX}.*"):
        name, _, pid = path.name[1:].rpartition(".")
        part = parse(place / name)
        if part is not None and part.host == safe_name(host) and pid != str(os.getpid()):
            path.unlink(missing_ok=True)


def _remove(parts: Iterable[TablePart]) -> None:
    for part in parts:
        part.path.unlink(missing_ok=True)


_REMOVAL_ORDER: Final = ("spans", "readings", "sections", "values", "marks", "durations", "steps")
_SPANS: Final = 1
"""Index in ``trim``'s lists of parts up to which removed spans are counted (windows, ``spans``)."""


def trim(folder: Path, host: str, most_bytes: int, windows: Sequence[str] = ()) -> int:
    """Remove parts of ``host`` until the host's tables have at most ``most_bytes``, if possible.

    Return the number of removed spans of sections and events, without roll-ups and segments.
    ``windows`` are the results of ``window_host`` for the host's profiler windows, oldest first.
    """
    by_window = [part for window in windows for part in _own(folder, "spans", window)]
    parts = [by_window, *(_own(folder, table, host) for table in _REMOVAL_ORDER)]
    size = sum(part.path.stat().st_size for of_table in parts for part in of_table)
    removed = 0
    for place, of_table in enumerate(parts):
        # The newest part is never removed, because a user may be viewing its data.
        for part in of_table[:-1]:
            if size <= most_bytes:
                return removed
            size -= part.path.stat().st_size
            removed += _items(part) if place <= _SPANS else 0
            part.path.unlink(missing_ok=True)
    return removed


def _own(folder: Path, table: str, host: str) -> list[TablePart]:
    return live_parts(table_folder(folder, table), host)


def _items(part: TablePart) -> int:
    """Return the number of section and event spans in a part; 0 for a damaged part."""
    try:
        kinds: list[str] = pq.read_table(part.path, columns=["kind"])["kind"].to_pylist()
    except (OSError, pa.ArrowException):
        return 0
    return kinds.count("section") + kinds.count("event")
