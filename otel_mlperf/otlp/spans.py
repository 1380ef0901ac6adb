"""How do columns of spans become the bytes of an ``ExportTraceServiceRequest``?

A span is a head of fixed width, filled by numpy for all rows at once, and a *tail*: its name and
constant attributes, encoded once for all rows that share them. Rows of equal length form one
matrix, so the cost is a few copies of memory and no Python object per span. What keeps the width
fixed is all legal protobuf: numbers padded with continuation bytes, and a root, which has no parent
field, stating its span id twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

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
_GROUPED = 1 << 15
"""Rows per matrix: bounds the memory that encoding takes beyond its result."""


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
    head = _Head(columns)
    lengths = head.lengths(columns)
    if len(columns) and int(lengths.max()) >= 1 << 7 * head.prefix:
        head = _Head(columns, prefix=5)
        lengths = head.lengths(columns)
    start = 1 + head.prefix
    total = int(lengths.sum()) + start * len(columns)
    before, after = wire.envelope(resource, scope, total, schema_url)
    out = np.empty(len(before) + total + len(after), np.uint8)
    out[: len(before)] = np.frombuffer(before, np.uint8)
    out[len(out) - len(after) :] = np.frombuffer(after, np.uint8)
    _fill(out[len(before) : len(before) + total], columns, head, lengths)
    return out.tobytes()


def span_sizes(columns: SpanColumns) -> NDArray[np.int64]:
    """How many bytes each span takes in a request, at most."""
    head = _Head(columns, prefix=5)
    return head.lengths(columns) + 1 + head.prefix


def cut(columns: SpanColumns, max_bytes: int) -> Iterator[SpanColumns]:
    """Consecutive pieces whose spans take ``max_bytes`` at most, or hold one span alone."""
    ends = np.cumsum(span_sizes(columns))
    start = 0
    while start < len(columns):
        used = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, used + max_bytes, side="right")), start + 1)
        yield columns.rows(start, stop)
        start = stop


class _Head:
    """The bytes of fixed width that begin each span: a template, and where its columns go."""

    def __init__(self, columns: SpanColumns, prefix: int = 3) -> None:
        self.prefix = prefix
        """Bytes of the length in front of a span."""
        self.ints: list[tuple[int, int, str]] = []
        body = bytearray(wire.tag(2, wire.BYTES) + bytes(prefix))
        self.trace_id = self._slot(body, b"\x0a\x10", 16)
        self.span_id = self._slot(body, _SPAN_ID, 8)
        self.parent_id = self._slot(body, _PARENT_ID, 8)
        body += wire.number(6, _INTERNAL)
        self.start_ns = self._slot(body, wire.tag(7, wire.FIXED64), 8)
        self.end_ns = self._slot(body, wire.tag(8, wire.FIXED64), 8)
        body += wire.fixed32(16, _FLAGS)
        for key, column in columns.ints.items():
            width = _widest(column)
            value = wire.tag(3, wire.VARINT) + bytes(width)
            pair = wire.block(1, wire.utf8(key)) + wire.block(2, value)
            body += wire.block(9, pair)
            self.ints.append((len(body) - width, width, key))
        self.template = np.frombuffer(bytes(body), np.uint8)

    @staticmethod
    def _slot(body: bytearray, key: bytes, width: int) -> int:
        body += key + bytes(width)
        return len(body) - width

    def lengths(self, columns: SpanColumns) -> NDArray[np.int64]:
        """The length of each span's message: what its prefix says."""
        tails = np.fromiter(map(len, columns.tails), np.int64, len(columns.tails))
        lengths = tails[columns.tail] + (len(self.template) - 1 - self.prefix)
        for row, more in columns.extra.items():
            lengths[row] += len(more)
        return lengths

    def fill(
        self,
        out: NDArray[np.uint8],
        columns: SpanColumns,
        rows: NDArray[np.intp],
        lengths: NDArray[np.int64],
    ) -> None:
        """Write the heads of ``rows`` into a matrix of one row each."""
        out[:, : len(self.template)] = self.template
        _put_varint(out, 1, self.prefix, lengths[rows].astype(np.uint64))
        out[:, self.trace_id : self.trace_id + 16] = columns.trace_id[rows]
        span_id, parent_id = columns.span_id[rows], columns.parent_id[rows]
        root = parent_id == 0
        _put(out, self.span_id, span_id, ">u8")
        _put(out, self.parent_id, np.where(root, span_id, parent_id), ">u8")
        out[root, self.parent_id - 2] = _SPAN_ID[0]
        _put(out, self.start_ns, columns.start_ns[rows], "<u8")
        _put(out, self.end_ns, columns.end_ns[rows], "<u8")
        for at, size, key in self.ints:
            _put_varint(out, at, size, columns.ints[key][rows].astype(np.uint64))


def _fill(
    out: NDArray[np.uint8], columns: SpanColumns, head: _Head, lengths: NDArray[np.int64]
) -> None:
    """Write all spans: first those with something extra, then matrices of equal length."""
    special = np.fromiter(columns.extra, np.intp, len(columns.extra))
    matrix = np.empty((len(special), len(head.template)), np.uint8)
    head.fill(matrix, columns, special, lengths)
    at = _join(out, matrix, columns, special)
    for rows in _groups(columns, lengths):
        width = len(head.template)
        size = 1 + head.prefix + int(lengths[rows[0]])
        matrix = out[at : at + size * len(rows)].reshape(len(rows), size)
        head.fill(matrix, columns, rows, lengths)
        _put_tails(matrix[:, width:], columns, rows)
        at += matrix.size


def _join(
    out: NDArray[np.uint8],
    heads: NDArray[np.uint8],
    columns: SpanColumns,
    rows: NDArray[np.intp],
) -> int:
    parts: list[bytes] = []
    for place, row in enumerate(rows.tolist()):
        parts += (heads[place].tobytes(), columns.tails[columns.tail[row]], columns.extra[row])
    joined = b"".join(parts)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)


def _groups(columns: SpanColumns, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """The rows without anything extra, those of one length together."""
    plain = np.ones(len(columns), bool)
    plain[list(columns.extra)] = False
    rows = np.flatnonzero(plain)
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    edges = [0, *(np.flatnonzero(np.diff(lengths[rows])) + 1).tolist(), len(rows)]
    for start, stop in pairwise(edges):
        for first in range(start, stop, _GROUPED):
            yield rows[first : min(first + _GROUPED, stop)]


def _put_tails(out: NDArray[np.uint8], columns: SpanColumns, rows: NDArray[np.intp]) -> None:
    used, place = np.unique(columns.tail[rows], return_inverse=True)
    known = np.frombuffer(b"".join(columns.tails[index] for index in used.tolist()), np.uint8)
    if len(known):
        out[:] = known.reshape(len(used), -1)[place]


def _put(out: NDArray[np.uint8], at: int, column: NDArray[np.uint64], order: str) -> None:
    out[:, at : at + 8] = column.astype(order).view(np.uint8).reshape(-1, 8)


def _put_varint(out: NDArray[np.uint8], at: int, width: int, column: NDArray[np.uint64]) -> None:
    """Base 128 in exactly ``width`` bytes; all but the last say that another one follows."""
    for place in range(width):
        group = (column >> np.uint64(7 * place)) & np.uint64(127)
        out[:, at + place] = group | np.uint64(128 if place < width - 1 else 0)


def _widest(column: NDArray[np.int64]) -> int:
    """The bytes that the column's longest varint takes; ten if one is negative."""
    if not len(column):
        return 1
    if int(column.min()) < 0:
        return 10
    return max(1, -(-int(column.max()).bit_length() // 7))
