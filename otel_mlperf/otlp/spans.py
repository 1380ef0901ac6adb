"""How do columns of spans become the bytes of an ``ExportTraceServiceRequest``?

A span is a head of fixed width, filled by numpy for all rows at once, and a *tail*: its name and
constant attributes, encoded once for all rows that share them. Rows of equal length form one
matrix, so the cost is a few copies of memory and no Python object per span. What keeps the width
fixed is all legal protobuf: numbers padded with continuation bytes, and a root, which has no parent
field, stating its span id twice.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf.otlp import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

_ERROR = 2
_INTERNAL = 1
_FLAGS = 0x101
"""Sampled; and the parent is known not to be remote."""
_LINK_FLAGS = 0x101
_SPAN_ID = b"\x12\x08"
_PARENT_ID = b"\x22\x08"
_PREFIX = 4
"""Bytes of the length in front of a span: 256 MiB at most."""
_SPREAD = (
    (np.uint64(4), np.uint64(0x000000000FFFFFFF)),
    (np.uint64(2), np.uint64(0x00003FFF00003FFF)),
    (np.uint64(1), np.uint64(0x007F007F007F007F)),
)


class Link(NamedTuple):
    """A reference to a span elsewhere."""

    trace_id: bytes
    span_id: int
    attributes: Mapping[str, object] = {}


class Event(NamedTuple):
    """Something that happened in a span, such as an exception."""

    time_ns: int
    name: str
    attributes: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """Spans of one resource and scope, a column for each field."""

    trace_id: NDArray[np.uint8]
    """Shape (n, 16), big-endian bytes."""
    span_id: NDArray[np.uint64]
    parent_id: NDArray[np.uint64]
    """0: a root."""
    start_ns: NDArray[np.uint64]
    end_ns: NDArray[np.uint64]
    tail: NDArray[np.int32]
    """Index into ``tails``."""
    tails: list[bytes]
    """What ``span_tail`` made: name and constant attributes."""
    extra: dict[int, bytes] = field(default_factory=dict)
    """Row to what ``span_extra`` made; a row that has one costs a Python step."""
    ints: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Integer attributes that every row has."""

    def __len__(self) -> int:
        return len(self.span_id)

    def rows(self, start: int, stop: int) -> SpanColumns:
        """The spans from ``start`` up to ``stop``, on the same memory."""
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


def span_tail(name: str, attributes: Mapping[str, object] = {}) -> bytes:
    """Name and constant attributes, ready to be shared by any number of spans."""
    return wire.text(5, name) + wire.encode_attributes(attributes)


def span_extra(
    attributes: Mapping[str, object] = {},
    links: Iterable[Link] = (),
    events: Iterable[Event] = (),
    error: str | None = None,
) -> bytes:
    """What one span has on top of its tail; ``error`` (``""``: without words) sets the status."""
    parts = [wire.encode_attributes(attributes)]
    parts += [wire.block(11, _event(event)) for event in events]
    parts += [wire.block(13, _link(link)) for link in links]
    if error is not None:
        parts.append(wire.block(15, wire.text(2, error) + wire.number(3, _ERROR)))
    return b"".join(parts)


def _event(event: Event) -> bytes:
    when = wire.fixed64(1, event.time_ns)
    return when + wire.text(2, event.name) + wire.encode_attributes(event.attributes, 3)


def _link(link: Link) -> bytes:
    ids = wire.block(1, link.trace_id) + wire.block(2, link.span_id.to_bytes(8, "big"))
    return ids + wire.encode_attributes(link.attributes, 4) + wire.fixed32(6, _LINK_FLAGS)


def encode_spans(
    resource: bytes, scope: bytes, columns: SpanColumns, schema_url: str = ""
) -> bytes:
    """A whole request; ``resource`` and ``scope`` come from ``wire``. The order is not kept."""
    sizes = span_sizes(columns)
    total = int(sizes.sum())
    before, after = wire.envelope(resource, scope, total, schema_url)
    # Written where it stays: a copy of megabytes costs more in page faults than the encoding.
    request = io.BytesIO(bytes(len(before) + total + len(after)))
    request.write(before)
    request.seek(len(before) + total)
    request.write(after)
    _fill(request.getbuffer()[len(before) : len(before) + total], columns, sizes)
    return request.getvalue()


def span_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """How many bytes each span takes in a request."""
    sizes = _tail_sizes(columns)[columns.tail] + _head_layout(columns).itemsize
    for row, more in columns.extra.items():
        sizes[row] += len(more)
    return sizes


def cut(columns: SpanColumns, max_bytes: int) -> Iterator[SpanColumns]:
    """Consecutive pieces whose spans take ``max_bytes`` at most, or hold one span alone."""
    ends = np.cumsum(span_sizes(columns))
    start = 0
    while start < len(columns):
        used = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, used + max_bytes, side="right")), start + 1)
        yield columns.rows(start, stop)
        start = stop


@dataclass(slots=True)
class _HeadLayout:
    """What all heads have in common, and where in them the columns go."""

    template: bytearray = field(default_factory=bytearray)
    slots: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name to format and offset."""

    @property
    def itemsize(self) -> int:
        return len(self.template)

    @property
    def dtype(self) -> np.dtype[np.void]:
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
        """Leave room for a column's values."""
        self.slots[name] = kind, len(self.template)
        self.template += bytes(np.dtype(kind).itemsize)


def _head_layout(columns: SpanColumns) -> _HeadLayout:
    layout = _HeadLayout()
    layout.template += wire.tag(2, wire.BYTES)
    layout.slot("length", "<u4")
    layout.template += b"\x0a\x10"
    layout.slot("trace_id", "V16")
    layout.template += _SPAN_ID
    layout.slot("span_id", ">u8")
    layout.slot("parent_tag", "u1")
    layout.template += _PARENT_ID[1:]
    layout.slot("parent_id", ">u8")
    layout.template += wire.number(6, _INTERNAL) + wire.tag(7, wire.FIXED64)
    layout.slot("start_ns", "<u8")
    layout.template += wire.tag(8, wire.FIXED64)
    layout.slot("end_ns", "<u8")
    layout.template += wire.fixed32(16, _FLAGS)
    for key, column in columns.ints.items():
        width = _width(column)
        value = wire.tag(3, wire.VARINT) + bytes(width)
        pair = wire.block(9, wire.block(1, wire.utf8(key)) + wire.block(2, value))
        layout.template += pair[:-width]
        layout.slot(f"low {key}", f"<u{min(width, 8)}")
        if width > 8:
            layout.slot(f"high {key}", "<u2")
    return layout


def _heads(columns: SpanColumns, sizes: NDArray[np.int64]) -> NDArray[np.void]:
    """The heads of all spans, filled column by column."""
    layout = _head_layout(columns)
    raw = np.full(len(columns), np.void(bytes(layout.template)), f"V{layout.itemsize}")
    heads = raw.view(layout.dtype)
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
            heads[f"low {key}"] |= np.uint64(1 << 63)
            heads[f"high {key}"] = _padded(column.astype(np.uint64) >> np.uint64(56), 2)
    return raw


def _fill(target: memoryview, columns: SpanColumns, sizes: NDArray[np.int64]) -> None:
    """Write all spans: those with something extra first, then a matrix for each size."""
    out = np.frombuffer(target, np.uint8)
    heads = _heads(columns, sizes)
    at = _fill_special(out, columns, heads)
    tail_sizes = _tail_sizes(columns)
    for rows in _groups(columns, sizes):
        size = int(sizes[rows[0]])
        matrix = out[at : at + size * len(rows)]
        at += len(matrix)
        if size == heads.itemsize:
            matrix.view(heads.dtype)[:] = heads[rows]
            continue
        alike = np.flatnonzero(tail_sizes == size - heads.itemsize)
        spans = matrix.view([("head", heads.dtype), ("tail", f"V{size - heads.itemsize}")])
        spans["head"] = heads[rows]
        spans["tail"] = _tails_of(columns, alike, rows)


def _fill_special(out: NDArray[np.uint8], columns: SpanColumns, heads: NDArray[np.void]) -> int:
    """Write the spans that have something extra, one by one; the bytes written."""
    parts: list[bytes] = []
    for row, more in columns.extra.items():
        parts += (heads[row].tobytes(), columns.tails[columns.tail[row]], more)
    joined = b"".join(parts)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)


def _tails_of(
    columns: SpanColumns, alike: NDArray[np.intp], rows: NDArray[np.intp]
) -> NDArray[np.void]:
    """The tail of each row, all of the same length: those of the indices ``alike``."""
    tails = [columns.tails[index] for index in alike.tolist()]
    known = np.frombuffer(b"".join(tails), f"V{len(tails[0])}")
    return known[np.searchsorted(alike, columns.tail[rows])]


def _groups(columns: SpanColumns, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """The rows without anything extra, those of one size together."""
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
    """The length of each tail that a row has; -1 of the others."""
    used = np.zeros(len(columns.tails), bool)
    used[columns.tail] = True
    sizes = np.full(len(columns.tails), -1, np.int64)
    sizes[used] = [len(columns.tails[index]) for index in np.flatnonzero(used).tolist()]
    return sizes


def _width(column: NDArray[np.int64]) -> int:
    """The bytes that hold each of the column's varints; ten if one is negative or enormous."""
    if not len(column):
        return 1
    if int(column.min()) < 0:
        return 10
    bits = int(column.max()).bit_length()
    return next((width for width in (1, 2, 4, 8) if bits <= 7 * width), 10)


def _padded(column: NDArray[np.integer[Any]], width: int) -> NDArray[np.uint64]:
    """Base 128 in ``width`` bytes, all but the last saying that another one follows.

    Seven bits are moved into each byte by halving: 56 bits into two of 32, those into four of 16,
    those into eight.
    """
    bits = column.astype(np.uint64)
    for shift, keep in _SPREAD[3 - (width.bit_length() - 1) :]:
        bits = (bits & keep) | ((bits & ~keep) << shift)
    more = int.from_bytes(b"\x80" * (width - 1), "little")
    return bits & np.uint64((1 << 8 * width) - 1) | np.uint64(more)
