"""Encoding of span columns as the bytes of an ``ExportTraceServiceRequest``.

A span is a head of fixed width (``span_columns``) and a *tail* (``span_content``): its name and
constant attributes, encoded once for all rows that share them. Rows of equal length form one
matrix. The cost is a few copies of memory and no Python object per span.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_columns import fill_heads, head_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.otlp.span_columns import SpanColumns


def encode_spans(
    resource: bytes,
    scope: bytes,
    columns: SpanColumns,
    schema_url: str = "",
    scope_schema_url: str | None = None,
) -> bytes:
    """Encode a whole request; the arguments besides ``columns`` are those of ``wire.envelope``.

    The order of the spans is not preserved.
    """
    sizes = span_sizes(columns)
    total = int(sizes.sum())
    before, after = wire.envelope(resource, scope, total, schema_url, scope_schema_url)
    # Written in place: a copy of megabytes costs more in page faults than the encoding.
    request = io.BytesIO(bytes(len(before) + total + len(after)))
    request.write(before)
    request.seek(len(before) + total)
    request.write(after)
    _fill(request.getbuffer()[len(before) : len(before) + total], columns, sizes)
    return request.getvalue()


def span_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """Return the size of each span in a request, in bytes."""
    sizes = _tail_sizes(columns)[columns.tail] + head_layout(columns).itemsize
    for row, more in columns.extra.items():
        sizes[row] += len(more)
    return sizes


def cut(columns: SpanColumns, max_bytes: int) -> Iterator[SpanColumns]:
    """Yield consecutive pieces whose spans need at most ``max_bytes``, or with a single span."""
    ends = np.cumsum(span_sizes(columns))
    start = 0
    while start < len(columns):
        used = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, used + max_bytes, side="right")), start + 1)
        yield columns.rows(start, stop)
        start = stop


def _fill(target: memoryview, columns: SpanColumns, sizes: NDArray[np.int64]) -> None:
    """Write all spans: those with something extra first, then a matrix for each size."""
    out = np.frombuffer(target, np.uint8)
    heads = fill_heads(columns, sizes)
    at = _fill_special(out, columns, heads)
    for rows in _groups(columns, sizes):
        size = int(sizes[rows[0]])
        matrix = out[at : at + size * len(rows)]
        at += len(matrix)
        if size == heads.itemsize:
            matrix.view(heads.dtype)[:] = heads[rows]
            continue
        spans = matrix.view([("head", heads.dtype), ("tail", f"V{size - heads.itemsize}")])
        spans["head"] = heads[rows]
        spans["tail"] = _tails_of(columns, rows)


def _fill_special(out: NDArray[np.uint8], columns: SpanColumns, heads: NDArray[np.void]) -> int:
    """Write the spans that have something extra, one by one; return the number of bytes written."""
    parts: list[bytes] = []
    for row, more in columns.extra.items():
        parts += (heads[row].tobytes(), columns.tails[columns.tail[row]], more)
    joined = b"".join(parts)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)


def _tails_of(columns: SpanColumns, rows: NDArray[np.intp]) -> NDArray[np.void]:
    """Return the tails of rows whose tails have one length."""
    wanted = columns.tail[rows]
    known = _used(columns, wanted)
    tails = [columns.tails[index] for index in known.tolist()]
    matrix = np.frombuffer(b"".join(tails), f"V{len(tails[0])}")
    return matrix[np.searchsorted(known, wanted)]


def _used(columns: SpanColumns, tail: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the indices in ``tail``, sorted, each once."""
    used = np.zeros(len(columns.tails), bool)
    used[tail] = True
    return np.flatnonzero(used)


def _groups(columns: SpanColumns, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Yield the rows without anything extra, grouped by size."""
    plain = np.ones(len(columns), bool)
    plain[list(columns.extra)] = False
    rows = np.flatnonzero(plain)
    keys = sizes[rows]
    # Sixteen bits are sorted by radix, fifteen times as fast.
    small = len(keys) and int(keys.max()) < 1 << 16
    order = np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    for group in np.split(rows[order], edges):
        if len(group):
            yield group


def _tail_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """Return the length of each tail that a row has; 0 for unused tails."""
    used = _used(columns, columns.tail)
    sizes = np.zeros(len(columns.tails), np.int64)
    sizes[used] = [len(columns.tails[index]) for index in used.tolist()]
    return sizes
