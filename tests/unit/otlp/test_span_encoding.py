"""Encoded columns contain exactly the original spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_content import (
    OwnFields,
    SpanEvent,
    SpanLink,
    link_blocks,
    span_extra,
    span_tail,
)
from otel_mlperf.otlp.span_encoding import SpanColumns, cut, encode_spans, span_sizes

U64 = st.integers(1, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.lists(st.integers(-5, 5), max_size=3)
)
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=4)
EXTRAS = st.fixed_dictionaries(
    {
        "attributes": ATTRIBUTES,
        "links": st.lists(
            st.builds(SpanLink, st.binary(min_size=16, max_size=16), U64, ATTRIBUTES), max_size=2
        ),
        "events": st.lists(st.builds(SpanEvent, U64, TEXT, ATTRIBUTES), max_size=2),
        "error": st.none() | TEXT,
    }
)
ROWS = st.fixed_dictionaries(
    {
        "trace_id": st.binary(min_size=16, max_size=16),
        "span_id": U64,
        "parent_id": st.just(0) | U64,
        "start_ns": U64,
        "end_ns": U64,
        "tail": st.integers(0, 2),
        "extra": st.none() | EXTRAS,
    }
)
RESOURCE = wire.encode_resource({"service.name": "digits"})
SCOPE = wire.encode_scope("otel_mlperf")


def columns(
    rows: list[dict[str, Any]],
    tails: list[bytes],
    ints: dict[str, list[int]] | None = None,
) -> SpanColumns:
    """Rows of a test as columns."""
    ids = b"".join(row["trace_id"] for row in rows)
    column = {
        key: np.array([row[key] for row in rows], np.uint64)
        for key in ("span_id", "parent_id", "start_ns", "end_ns")
    }
    extras = {place: row.get("extra") for place, row in enumerate(rows)}
    return SpanColumns(
        trace_id=np.frombuffer(ids, np.uint8).reshape(-1, 16),
        tail=np.array([row["tail"] for row in rows], np.int32),
        tails=tails,
        extra={place: span_extra(OwnFields(**extra)) for place, extra in extras.items() if extra},
        ints={key: np.array(values, np.int64) for key, values in (ints or {}).items()},
        **column,
    )


def row(span_id: int, **changes: Any) -> dict[str, Any]:
    """A row of a test."""
    plain = {"trace_id": bytes(range(16)), "parent_id": 0, "start_ns": 1, "end_ns": 2, "tail": 0}
    return plain | {"span_id": span_id} | changes


def decode(request: bytes) -> list[Span]:
    """The spans of a request."""
    message = ExportTraceServiceRequest.FromString(request)
    return [
        span
        for group in message.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def value(message: Any) -> object:
    """The Python value of an ``AnyValue`` of these tests."""
    kind = message.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in message.array_value.values]
    return getattr(message, kind)


def attributes(message: Any) -> dict[str, object]:
    """The attributes of a span, event or link, none of them twice."""
    found = {pair.key: value(pair.value) for pair in message.attributes}
    assert len(found) == len(message.attributes)
    return found


def plain(span: Span) -> dict[str, Any]:
    """A received span in the words of the rows above."""
    return {
        "trace_id": span.trace_id,
        "span_id": int.from_bytes(span.span_id, "big"),
        "parent_id": int.from_bytes(span.parent_span_id, "big"),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "name": span.name,
        "attributes": attributes(span),
        "links": [
            SpanLink(link.trace_id, int.from_bytes(link.span_id, "big"), attributes(link))
            for link in span.links
        ],
        "events": [
            SpanEvent(event.time_unix_nano, event.name, attributes(event)) for event in span.events
        ],
        "error": span.status.message if span.status.code == 2 else None,
    }


def expected(
    source: dict[str, Any], names: list[str], constant: list[dict[str, object]]
) -> dict[str, Any]:
    """What a receiver must see of a row."""
    extra = source.get("extra") or {}
    same = ("trace_id", "span_id", "parent_id", "start_ns", "end_ns")
    return {key: source[key] for key in same} | {
        "name": names[source["tail"]],
        "attributes": constant[source["tail"]] | extra.get("attributes", {}),
        "links": extra.get("links", []),
        "events": extra.get("events", []),
        "error": extra.get("error"),
    }


@given(
    st.lists(ROWS, max_size=12, unique_by=lambda row: row["span_id"]),
    st.lists(TEXT, min_size=3, max_size=3),
    st.lists(ATTRIBUTES, min_size=3, max_size=3),
)
def test_a_receiver_reads_exactly_the_spans_that_were_encoded(rows, names, constant):
    """Ids, parents, times, names, attributes, links, events and status arrive unchanged."""
    constant = [{f"c.{key}": value for key, value in one.items()} for one in constant]
    tails = [span_tail(name, more) for name, more in zip(names, constant, strict=True)]

    found = decode(encode_spans(RESOURCE, SCOPE, columns(rows, tails)))

    key = lambda span: span["span_id"]  # noqa: E731
    assert sorted(map(plain, found), key=key) == sorted(
        (expected(one, names, constant) for one in rows), key=key
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
@example([0])
@example([127, 128])
@example([2**35])
def test_integer_columns_arrive_whatever_their_size(values):
    """A column's padded numbers are read as the numbers that they are, negative ones too."""
    rows = [row(place + 1) for place in range(len(values))]

    found = decode(
        encode_spans(RESOURCE, SCOPE, columns(rows, [span_tail("k")], {"gpu.stream": values}))
    )

    assert [attributes(span) for span in found] == [{"gpu.stream": one} for one in values]


@pytest.mark.fault("F52")
def test_names_with_lone_surrogates_cost_neither_their_span_nor_others():
    """One name that is no Unicode is repaired, and the batch around it arrives."""
    rows = [row(1, tail=0), row(2, tail=1)]
    tails = [span_tail("bad\ud800"), span_tail("good")]

    found = decode(encode_spans(RESOURCE, SCOPE, columns(rows, tails)))

    assert sorted(span.name for span in found) == ["bad\ufffd", "good"]


def test_spans_are_internal_sampled_and_of_a_local_parent():
    """Backends that look at kind and flags see recorded work within one process."""
    (span,) = decode(encode_spans(RESOURCE, SCOPE, columns([row(1)], [span_tail("s")])))

    assert (span.kind, span.flags) == (Span.SPAN_KIND_INTERNAL, 0x101)


def test_a_span_of_megabytes_is_encoded_whole():
    """A length that the short prefix cannot hold takes the long one."""
    rows = [row(1, extra={"attributes": {"big": "x" * 3_000_000}}), row(2, parent_id=1)]

    found = decode(encode_spans(RESOURCE, SCOPE, columns(rows, [span_tail("s")])))

    assert sorted(len(span.attributes) for span in found) == [0, 1]


def test_requests_of_several_resources_may_be_joined():
    """Concatenated requests are one request with both resources."""
    one, two = (
        encode_spans(
            wire.encode_resource({"rank": rank}), SCOPE, columns([row(rank + 1)], [span_tail("s")])
        )
        for rank in range(2)
    )

    groups = ExportTraceServiceRequest.FromString(one + two).resource_spans

    assert [value(group.resource.attributes[0].value) for group in groups] == [0, 1]


@pytest.mark.fault("F09")
@given(
    st.lists(ROWS, min_size=1, max_size=30, unique_by=lambda row: row["span_id"]),
    st.integers(1, 600),
)
def test_pieces_hold_every_span_once_and_stay_below_their_size(rows, limit):
    """Cutting loses no span and repeats none; a piece is too large only for one span alone."""
    tails = [span_tail("a"), span_tail("b" * 50), span_tail("c", {"k": "v" * 100})]
    whole = columns(rows, tails, {"n": list(range(len(rows)))})
    overhead = len(encode_spans(RESOURCE, SCOPE, whole.rows(0, 0)))

    pieces = list(cut(whole, limit))

    sent = [encode_spans(RESOURCE, SCOPE, piece) for piece in pieces]
    ids = [int.from_bytes(span.span_id, "big") for part in sent for span in decode(part)]
    assert sorted(ids) == sorted(one["span_id"] for one in rows)
    # Three length prefixes of the envelope grow by up to three bytes each.
    room = limit + overhead + 9
    assert all(
        len(part) <= room or len(piece) == 1 for part, piece in zip(sent, pieces, strict=True)
    )


@pytest.mark.fault("F09")
def test_sizes_are_never_less_than_what_is_sent():
    """A batch cut by these sizes stays below a receiver's limit."""
    rows = [row(1), row(2, parent_id=1, extra={"error": "boom"})]
    batch = columns(rows, [span_tail("s", {"a": 1})])
    empty = len(encode_spans(RESOURCE, SCOPE, batch.rows(0, 0)))

    assert len(encode_spans(RESOURCE, SCOPE, batch)) - empty <= int(span_sizes(batch).sum()) + 9


def test_no_spans_make_an_empty_request():
    """Encoding nothing is no error."""
    assert decode(encode_spans(RESOURCE, SCOPE, columns([], []))) == []


@given(found=st.lists(st.tuples(st.binary(min_size=16, max_size=16), U64), max_size=5))
def test_many_links_are_what_single_ones_are(found):
    """Links that are made of columns have the bytes of those made one by one."""
    traces = np.frombuffer(b"".join(trace for trace, _ in found), np.uint8).reshape(-1, 16)
    spans = np.array([span for _, span in found], np.uint64)

    blocks = link_blocks(traces, spans)

    assert blocks == [span_extra(OwnFields(links=[SpanLink(trace, span)])) for trace, span in found]
