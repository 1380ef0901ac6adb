"""How do columns of spans become the bytes of an ``ExportTraceServiceRequest``?

A span is a head of fixed width (``heads``) and a *tail*: its name and constant attributes, encoded
once for all rows that share them. Rows of equal length form one matrix, so the cost is a few copies
of memory and no Python object per span.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.heads import fill_heads, head_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

_ERROR = 2
"""The status code of a span that failed."""
_LINK_FLAGS = 0x101


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


def link_blocks(trace_id: NDArray[np.uint8], span_id: NDArray[np.uint64]) -> list[bytes]:
    """For many spans what ``span_extra`` makes of one link without attributes."""
    template = wire.block(13, _link(Link(bytes(range(16)), 0x1011121314151617)))
    rows = np.tile(np.frombuffer(template, np.uint8), (len(span_id), 1))
    trace, span = template.index(bytes(range(16))), template.index(bytes(range(16, 24)))
    rows[:, trace : trace + 16] = trace_id
    rows[:, span : span + 8] = span_id.astype(">u8").view(np.uint8).reshape(-1, 8)
    joined, size = rows.tobytes(), len(template)
    return [joined[at : at + size] for at in range(0, len(joined), size)]


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
    sizes = _tail_sizes(columns)[columns.tail] + head_layout(columns).itemsize
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
    """Write the spans that have something extra, one by one; the bytes written."""
    parts: list[bytes] = []
    for row, more in columns.extra.items():
        parts += (heads[row].tobytes(), columns.tails[columns.tail[row]], more)
    joined = b"".join(parts)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)


def _tails_of(columns: SpanColumns, rows: NDArray[np.intp]) -> NDArray[np.void]:
    """The tails of rows whose tails have one length."""
    wanted = columns.tail[rows]
    known = _used(columns, wanted)
    tails = [columns.tails[index] for index in known.tolist()]
    matrix = np.frombuffer(b"".join(tails), f"V{len(tails[0])}")
    return matrix[np.searchsorted(known, wanted)]


def _used(columns: SpanColumns, tail: NDArray[np.int32]) -> NDArray[np.intp]:
    """The indices in ``tail``, sorted, each once."""
    used = np.zeros(len(columns.tails), bool)
    used[tail] = True
    return np.flatnonzero(used)


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
    """The length of each tail that a row has; 0 of the others."""
    used = _used(columns, columns.tail)
    sizes = np.zeros(len(columns.tails), np.int64)
    sizes[used] = [len(columns.tails[index]) for index in used.tolist()]
    return sizes
