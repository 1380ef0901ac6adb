"""Writer of table parts in a run folder: atomic, in little memory, and within a size limit.

Only the agent uses it. A part is written next to its place and renamed into it, so that a reader
never sees a partial one. Writing the same number again replaces the same rows. pyarrow's own
allocator keeps memory that it once had. It is configured to use the system's, on one thread.

At the size limit the oldest profiler windows are removed first, then the oldest spans. They are
examples, and the newest ones matter. Only when none are left are the oldest per-step sections
removed, and last the steps. The newest part of a table is never removed.
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
"""Maximum number of adjacent parts of one size class before they are merged.

Every node of a run has as many in each table, and a reader opens them all.
"""
_LARGE = 1 << 20
"""Size in bytes from which upward a part is not merged any more: over the limit of a run whole
parts are removed."""
_MOST_UNITED = 8 << 20
"""Maximum size in bytes of the part that is merged at a run's end."""
_GROUP_ROWS = 32_768
"""Maximum number of rows in memory while merging (besides one part)."""

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

# pyarrow's arrays are sequences too; it has no types for that.
Values = Sequence[Any] | np.ndarray[Any, Any]


def write_part(
    folder: Path | str, table: str, host: str, number: int, columns: Mapping[str, Values]
) -> Path:
    """Write one part of ``table`` and return its path; an existing one is replaced.

    All columns have the same length; None is a missing value. A column that may be null can be left
    out.

    Raises:
        StoreError: a column is unknown, missing or does not fit its type, or the disk refuses.
    """
    rows = _as_table(table, columns)
    return _write(Path(folder), table, part_name(host, number), [rows])


def write_pieces(
    folder: Path | str, table: str, host: str, number: int, pieces: Iterable[Mapping[str, Values]]
) -> Path:
    """Write one part of ``table`` of which only one piece at a time must be in memory.

    Raises:
        StoreError: as ``write_part``.
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
    """Merge the parts of ``host`` once more than ``over`` of one size class are adjacent.

    Readers see each row once at every moment. The merged part's name determines which ones no
    longer count, before they are removed. Return the merged part, or None if there was nothing to
    do.

    Raises:
        StoreError: a part cannot be read, or the disk refuses.
    """
    mine = _behind_large(_own_parts(folder, table, host))
    return _merge_run(folder, table, host, _mergeable(mine, over))


def merge_all(
    folder: Path | str, table: str, host: str, most_bytes: int = _MOST_UNITED
) -> Path | None:
    """Merge the newest parts of ``host``, up to a size, so that an ended run has few parts.

    Returns and raises what ``compact`` does.
    """
    mine = _own_parts(folder, table, host)
    return _merge_run(folder, table, host, _small_end(mine, most_bytes))


def _own_parts(folder: Path | str, table: str, host: str) -> list[TablePart]:
    place = table_folder(Path(folder), table)
    # First remove what a killed agent left: parts that a merged one covers are on the disk twice
    # until then. Only one agent writes for a host, so no other one accesses these files.
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
    # After the merged part has its name, which marks these as outdated: readers that list in
    # between see each row once.
    _remove(run)
    return path


def _behind_large(parts: list[TablePart]) -> list[TablePart]:
    small = takewhile(lambda part: part.path.stat().st_size < _LARGE, reversed(parts))
    return [*small][::-1]


def _small_end(parts: list[TablePart], most_bytes: int) -> list[TablePart]:
    """Return the newest parts whose total size is at most ``most_bytes``."""
    sizes = accumulate(part.path.stat().st_size for part in reversed(parts))
    few = sum(size <= most_bytes for size in sizes)
    return parts[len(parts) - few :]


def _mergeable(parts: list[TablePart], over: int) -> list[TablePart]:
    """Return the newest run of parts of one size class that is long enough.

    A class is a power of ``over`` in part numbers. A row is therefore written again once per class,
    and not with every merge.
    """
    run: list[TablePart] = []
    # From the newest backwards: old parts are large, and a run that starts with them would write
    # them again.
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
    held: list[pa.RecordBatch] = []
    with _replacing(path) as temporary, _open(temporary, table) as writer:
        for batch in _batches(paths, schema):
            held.append(batch)
            if sum(map(len, held)) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(held, schema))
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held, schema))


def _batches(paths: list[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_GROUP_ROWS, use_threads=False):
                yield batch if batch.schema.equals(schema) else _completed(batch, schema)


def _completed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add null columns to a batch of an earlier version, which lacks the columns added since."""
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
    """Wrap ``values`` without a copy if they are plain numbers of exactly that type."""
    # pa.array() loads numpy.ma for an array: 9 MB.
    if values.dtype != _NUMPY.get(kind):
        return None
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(plain), [None, pa.py_buffer(plain)])


def _schema(table: str) -> pa.Schema:
    return pa.schema(
        [pa.field(column.name, _TYPES[column.type], column.null) for column in TABLES[table]]
    )


def _open(path: str, table: str) -> pq.ParquetWriter:
    # Dictionaries of numbers and ids cost 12 MB of memory, and double the file size.
    words = [column.name for column in TABLES[table] if column.type == "word"]
    return pq.ParquetWriter(path, _schema(table), compression="zstd", use_dictionary=words)


def _replacing(path: Path) -> AbstractContextManager[str]:
    """Return a name next to ``path`` that readers ignore (see ``_remove_unfinished``)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    return replacing(path, is_durable=True, temporary=temporary)


def _remove_unfinished(place: Path, host: str) -> None:
    """Remove the files of an agent of this host that was killed while it wrote."""
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
"""Index of windows and the first table: removed spans of these are counted."""


def trim(folder: Path, host: str, most_bytes: int, windows: Sequence[str] = ()) -> int:
    """Remove parts of ``host`` until its tables need at most ``most_bytes``.

    ``windows`` stand for the host in parts of its profiler windows, the oldest first. Return the
    number of removed spans of sections and events (no roll-ups, no segments).
    """
    by_window = [part for window in windows for part in _own(folder, "spans", window)]
    parts = [by_window, *(_own(folder, table, host) for table in _REMOVAL_ORDER)]
    size = sum(part.path.stat().st_size for of_table in parts for part in of_table)
    removed = 0
    for place, of_table in enumerate(parts):
        # The newest part is kept whatever its size: a user may be viewing it.
        for part in of_table[:-1]:
            if size <= most_bytes:
                return removed
            size -= part.path.stat().st_size
            removed += _items(part) if place <= _SPANS else 0
            part.path.unlink(missing_ok=True)
    return removed


def _own(folder: Path, table: str, host: str) -> list[TablePart]:
    """Return the parts of ``host``, oldest first."""
    return live_parts(table_folder(folder, table), host)


def _items(part: TablePart) -> int:
    """Count the spans of a part; 0 for a damaged part, whose count is unknown."""
    try:
        kinds: list[str] = pq.read_table(part.path, columns=["kind"])["kind"].to_pylist()
    except (OSError, pa.ArrowException):
        return 0
    return kinds.count("section") + kinds.count("event")
