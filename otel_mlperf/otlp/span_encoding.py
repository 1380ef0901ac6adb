"""Columns of spans, and their encoding as the bytes of an ``ExportTraceServiceRequest``.

An encoded span consists of a *head* and a *tail* (``span_content``). The tail contains the span's
name and constant attributes, and is encoded once for all rows that share it. Heads have the same
size in all rows, so that NumPy fills all heads together, as one structured array. They are valid
protobuf in spite of that: numbers are padded with continuation bytes, and a root span repeats its
span id in the place of the missing parent. Spans of equal size form one matrix. This costs a few
copies of memory, but no Python object per span.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf.otlp import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SPAN_ID = b"\x12\x08"
_PARENT_ID = b"\x22\x08"
_PREFIX = 4
"""Bytes of the length that precedes a span, which limits a span to 256 MiB."""
_SPREAD = (
    (np.uint64(4), np.uint64(0x000000000FFFFFFF)),
    (np.uint64(2), np.uint64(0x00003FFF00003FFF)),
    (np.uint64(1), np.uint64(0x007F007F007F007F)),
)


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """Spans of one resource and scope, as one column per field."""

    trace_id: NDArray[np.uint8]
    """Trace ids as an array of shape (spans, 16), big-endian."""
    span_id: NDArray[np.uint64]
    parent_id: NDArray[np.uint64]
    """Span id of the parent; 0 for a root span."""
    start_ns: NDArray[np.uint64]
    end_ns: NDArray[np.uint64]
    tail: NDArray[np.int32]
    """Index of each span's tail in ``tails``."""
    tails: list[bytes]
    """Results of ``span_tail``: a span's name and constant attributes."""
    extra: dict[int, bytes] = field(default_factory=dict)
    """Results of ``span_extra`` by row; each row that has one costs a Python iteration."""
    ints: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Integer attributes that all rows have, by attribute name."""

    def __len__(self) -> int:
        return len(self.span_id)

    def rows(self, start: int, stop: int) -> SpanColumns:
        """Return the spans from ``start`` to before ``stop``, as views of the same memory."""
        part = slice(start, stop)
        return SpanColumns(
            trace_id=self.trace_id[part],
            span_id=self.span_id[part],
            parent_id=self.parent_id[part],
            start_ns=self.start_ns[part],
            end_ns=self.end_ns[part],
            tail=self.tail[part],
            tails=self.tails,
            extra={row - start: more for row, more in self.extra.items() if start <= row < stop},
            ints={key: column[part] for key, column in self.ints.items()},
        )


@dataclass(slots=True)
class HeadLayout:
    """Layout of the heads of spans: constant bytes, and the offsets of the columns' values."""

    template: bytearray = field(default_factory=bytearray)
    slots: dict[str, tuple[str, int]] = field(default_factory=dict)
    """NumPy format and offset of each column's values, by the column's name."""

    @property
    def itemsize(self) -> int:
        """Return the size of a head in bytes."""
        return len(self.template)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Return the NumPy type of heads as a structured array."""
        formats, offsets = zip(*self.slots.values(), strict=True)
        return np.dtype(
            {
                "names": list(self.slots),
                "formats": list(formats),
                "offsets": list(offsets),
                "itemsize": self.itemsize,
            }
        )

    def slot(self, name: str, kind: str) -> None:
        """Append space for one value of column ``name``, in NumPy format ``kind``."""
        self.slots[name] = kind, len(self.template)
        self.template += bytes(np.dtype(kind).itemsize)


def head_layout(columns: SpanColumns) -> HeadLayout:
    """Return the layout of the heads of ``columns``, which depends on the integer attributes."""
    # Fields of Span in opentelemetry/proto/trace/v1: 1 trace id, 2 span id, 4 parent id, 6 kind, 7
    # and 8 times, 9 attributes, 16 flags. The name (5) is in the tail.
    layout = HeadLayout()
    layout.template += wire.tag(2, wire.BYTES)
    layout.slot("length", "<u4")
    layout.template += b"\x0a\x10"
    layout.slot("trace_id", "V16")
    layout.template += _SPAN_ID
    layout.slot("span_id", ">u8")
    layout.slot("parent_tag", "u1")
    layout.template += _PARENT_ID[1:]
    layout.slot("parent_id", ">u8")
    layout.template += wire.number(6, wire.INTERNAL) + wire.tag(7, wire.FIXED64)
    layout.slot("start_ns", "<u8")
    layout.template += wire.tag(8, wire.FIXED64)
    layout.slot("end_ns", "<u8")
    layout.template += wire.fixed32(16, wire.LOCAL)
    for key, column in columns.ints.items():
        # All values of a column have the size of the longest value.
        width = _width(column)
        value = wire.tag(3, wire.VARINT) + bytes(width)
        pair = wire.block(9, wire.block(1, wire.utf8(key)) + wire.block(2, value))
        layout.template += pair[:-width]
        layout.slot(f"low {key}", f"<u{min(width, 8)}")
        if width > 8:
            layout.slot(f"high {key}", "<u2")
    return layout


def fill_heads(columns: SpanColumns, sizes: NDArray[np.int64]) -> NDArray[np.void]:
    """Return the heads of all spans; ``sizes`` are the sizes of the whole spans in bytes."""
    layout = head_layout(columns)
    raw = np.full(len(columns), np.void(bytes(layout.template)), f"V{layout.itemsize}")
    heads = raw.view(layout.dtype)
    # A root span must not have a parent id of zeros, and the field cannot be omitted in a head of
    # fixed size. It is replaced by a repetition of field 2, the span's own id, which is valid.
    root = columns.parent_id == 0
    heads["length"] = _padded(sizes - 1 - _PREFIX, _PREFIX)
    heads["trace_id"] = np.ascontiguousarray(columns.trace_id).view("V16").ravel()
    heads["span_id"] = columns.span_id
    heads["parent_tag"] = np.where(root, _SPAN_ID[0], _PARENT_ID[0])
    heads["parent_id"] = np.where(root, columns.span_id, columns.parent_id)
    heads["start_ns"] = columns.start_ns
    heads["end_ns"] = columns.end_ns
    for key, column in columns.ints.items():
        width = np.dtype(layout.slots[f"low {key}"][0]).itemsize
        heads[f"low {key}"] = _padded(column, width)
        if f"high {key}" in layout.slots:
            # A varint of ten bytes: the eighth byte has the continuation bit, and the last two
            # contain the highest eight bits.
            heads[f"low {key}"] |= np.uint64(1 << 63)
            heads[f"high {key}"] = _padded(column.astype(np.uint64) >> np.uint64(56), 2)
    return raw


def _width(column: NDArray[np.int64]) -> int:
    """Return how many bytes each of a column's varints needs: 1, 2, 4, 8 or 10.

    The result is 10 if any value is negative or has more than 56 bits.
    """
    if not len(column):
        return 1
    if int(column.min()) < 0:
        return 10
    bits = int(column.max()).bit_length()
    return next((width for width in (1, 2, 4, 8) if bits <= 7 * width), 10)


def _padded(column: NDArray[np.integer[Any]], width: int) -> NDArray[np.uint64]:
    """Encode numbers as varints of ``width`` bytes, padded with continuation bytes.

    Groups of seven bits are spread over the bytes by repeated halving: 56 bits into two groups of
    28, then into four groups of 14, then into eight groups of 7.
    """
    bits = column.astype(np.uint64)
    for shift, keep in _SPREAD[3 - (width.bit_length() - 1) :]:
        bits = (bits & keep) | ((bits & ~keep) << shift)
    more = int.from_bytes(b"\x80" * (width - 1), "little")
    return bits & np.uint64((1 << 8 * width) - 1) | np.uint64(more)


def encode_spans(
    resource: bytes,
    scope: bytes,
    columns: SpanColumns,
    schema_url: str = "",
    scope_schema_url: str | None = None,
) -> bytes:
    """Encode a whole request; all arguments except ``columns`` are as in ``wire.envelope``.

    The order of the spans is not preserved.
    """
    sizes = span_sizes(columns)
    total = int(sizes.sum())
    before, after = wire.envelope(resource, scope, total, schema_url, scope_schema_url)
    # Written in place: page faults of a copy of megabytes would cost more than the encoding.
    request = io.BytesIO(bytes(len(before) + total + len(after)))
    request.write(before)
    request.seek(len(before) + total)
    request.write(after)
    _fill(request.getbuffer()[len(before) : len(before) + total], columns, sizes)
    return request.getvalue()


def span_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """Return the encoded size of each span in bytes."""
    sizes = _tail_sizes(columns)[columns.tail] + head_layout(columns).itemsize
    for row, more in columns.extra.items():
        sizes[row] += len(more)
    return sizes


def cut(columns: SpanColumns, max_bytes: int) -> Iterator[SpanColumns]:
    """Yield consecutive pieces of at most ``max_bytes`` encoded bytes, but at least one span."""
    ends = np.cumsum(span_sizes(columns))
    start = 0
    while start < len(columns):
        used = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, used + max_bytes, side="right")), start + 1)
        yield columns.rows(start, stop)
        start = stop


def _fill(target: memoryview, columns: SpanColumns, sizes: NDArray[np.int64]) -> None:
    """Write all spans: first the spans with extra fields, then one matrix per size of spans."""
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
    """Write the spans with extra fields one by one; return the number of bytes written."""
    parts: list[bytes] = []
    for row, more in columns.extra.items():
        parts += (heads[row].tobytes(), columns.tails[columns.tail[row]], more)
    joined = b"".join(parts)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)


def _tails_of(columns: SpanColumns, rows: NDArray[np.intp]) -> NDArray[np.void]:
    """Return the tail of each row in ``rows``; all tails must have the same length."""
    wanted = columns.tail[rows]
    known = _used(columns, wanted)
    tails = [columns.tails[index] for index in known.tolist()]
    matrix = np.frombuffer(b"".join(tails), f"V{len(tails[0])}")
    return matrix[np.searchsorted(known, wanted)]


def _used(columns: SpanColumns, tail: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the distinct values of ``tail`` in ascending order."""
    used = np.zeros(len(columns.tails), bool)
    used[tail] = True
    return np.flatnonzero(used)


def _groups(columns: SpanColumns, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Yield the rows without extra fields, grouped by encoded size."""
    plain = np.ones(len(columns), bool)
    plain[list(columns.extra)] = False
    rows = np.flatnonzero(plain)
    keys = sizes[rows]
    # NumPy sorts 16-bit integers with a radix sort, which is fifteen times as fast.
    small = len(keys) and int(keys.max()) < 1 << 16
    order = np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    for group in np.split(rows[order], edges):
        if len(group):
            yield group


def _tail_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """Return the length of each tail in ``tails``; 0 for a tail that no row uses."""
    used = _used(columns, columns.tail)
    sizes = np.zeros(len(columns.tails), np.int64)
    sizes[used] = [len(columns.tails[index]) for index in used.tolist()]
    return sizes
