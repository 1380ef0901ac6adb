"""The SDK's exporters get of a span what an OTLP server gets."""

from __future__ import annotations

from fault_server import plain_spans
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import SpanItem
from otel_mlperf.otlp.sdk_spans import to_readable_span, to_resource

TRACE = "0000000000000005ffffffffffffffff"
ITEM = SpanItem(
    rank=1,
    restart=0,
    trace_id=TRACE,
    span_id="00000000000000ab",
    parent_id="00000000000000cd",
    name="GET",
    category="library",
    phase="train",
    thread="MainThread",
    thread_id=7,
    start_ns=1_000,
    end_ns=2_000,
    status="error",
    attributes={
        "error.type": "KeyError",
        "body": {names.BASE64: "AP8="},
        "sizes": [1, 2],
        "huge": 1 << 70,
        "nothing": None,
        names.SPAN_KIND: "client",
        names.SCOPE_FIELDS[0]: "library",
        names.SCOPE_FIELDS[1]: "1.2.3",
        names.SCOPE_FIELDS[2]: "https://example.org/schema/1",
        names.EXCEPTION_MESSAGE: "x",
        names.DROPPED_EVENTS: 2,
        names.REMOTE_PARENT: True,
        names.TRACE_STATE: "vendor=1,ot=th:8",
    },
    links=[(TRACE, "00000000000000ef", {"why": "batch"}, 0x300), (TRACE, "00000000000000ee")],
    events=[(1_500, "cache.miss", {"key": "k"})],
    marks=[(1_600, "lr halved", "train", 103)],
    marks_left_out=3,
)


def sent(item, resource):
    (span,) = plain_spans(
        encode_spans([to_readable_span(item, to_resource(resource))]).SerializeToString()
    )
    return span


def test_each_field_is_there():
    """As the SDK's own encoder writes the span."""
    span = sent(ITEM, {"service.name": "digits", names.RANK: 1})
    expected = {
        "trace_id": TRACE,
        "span_id": ITEM.span_id,
        "parent_id": ITEM.parent_id,
        "name": "GET",
        "start_ns": 1_000,
        "end_ns": 2_000,
        "status": [2, "x"],
        "kind": 3,
        "flags": 0x300,  # the SDK's encoder leaves out whether a trace is sampled
        "trace_state": "vendor=1,ot=th:8",
        "scope": ["library", "1.2.3", "https://example.org/schema/1"],
        "events_left_out": 5,
        "link_fields": [[TRACE, 0x300, {"why": "batch"}], [TRACE, 0x100, {}]],
        "resource": {"service.name": "digits", names.RANK: 1},
        "points": [
            [2_000, "exception", {names.EXCEPTION_MESSAGE: "x"}],
            [1_500, "cache.miss", {"key": "k"}],
            [1_600, "lr halved", {names.TRAINING_STEP: 103, names.ML_PHASE: "train"}],
        ],
    }
    assert {key: span[key] for key in expected} == expected
    assert span["attributes"] == {
        names.SECTION_CATEGORY: "library",
        names.ML_PHASE: "train",
        names.THREAD_ID: 7,
        names.THREAD_NAME: "MainThread",
        "error.type": "KeyError",
        "body": "00ff",
        "sizes": [1, 2],
        "huge": str(1 << 70),
    }


def test_span_of_the_package_has_its_scope():
    """Its kind is internal, its status unset, and it has no parent."""
    bare = SpanItem(
        rank=0, restart=0, trace_id=TRACE, span_id="1" * 16, name="run", category="run",
        start_ns=1, end_ns=2,
    )  # fmt: skip
    span = sent(bare, {})
    assert span["scope"] == [names.SCOPE, names.VERSION, names.SCHEMA_URL]
    assert (span["kind"], span["status"], span["parent_id"]) == (1, [0, ""], "")
