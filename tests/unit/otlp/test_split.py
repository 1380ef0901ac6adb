"""Splitting a refused request keeps everything that was in it."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.histogram import ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.http_client import Outcome, ServerAnswer
from otel_mlperf.otlp.metric_encoding import (
    ExponentialPoints,
    GaugePoints,
    HistogramPoints,
    MetricData,
    NumberPoint,
    SumPoints,
    encode_metrics,
)
from otel_mlperf.otlp.span_content import span_tail
from otel_mlperf.otlp.span_encoding import SpanColumns, encode_spans
from otel_mlperf.otlp.split import count_items, halves, post_in_parts

RESOURCE = wire.encode_resource({"service.name": "digits"})
SCOPE = wire.encode_scope("otel_mlperf")
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"


def spans(count: int) -> bytes:
    """A request of spans with ids from 1."""
    ids = np.arange(1, count + 1, dtype=np.uint64)
    columns = SpanColumns(
        trace_id=np.ones((count, 16), np.uint8),
        span_id=ids,
        parent_id=ids - 1,
        start_ns=ids,
        end_ns=ids,
        tail=np.zeros(count, np.int32),
        tails=[span_tail("forward")],
    )
    return encode_spans(RESOURCE, SCOPE, columns, SCHEMA)


def metrics() -> bytes:
    """A request of four metrics with five points."""
    point = NumberPoint(attributes={}, time_ns=1, value=1)
    kinds = {
        "g": GaugePoints([point, point]),
        "s": SumPoints([point]),
        "h": HistogramPoints([ExplicitBuckets().point({}, 1, 2)]),
        "e": ExponentialPoints([ExponentialBuckets().point({}, 1, 2)]),
    }
    found = [MetricData(name, "", "", data) for name, data in kinds.items()]
    return encode_metrics(RESOURCE, SCOPE, found, SCHEMA)


def leaves(body: bytes) -> list[bytes]:
    """A request halved until nothing can be halved."""
    parts = halves(body)
    return [body] if parts is None else [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.fault("F05", "F09")
@pytest.mark.parametrize("count", [1, 2, 7])
def test_halving_isolates_every_span(count):
    """Each span ends up alone, under its resource, scope and schema."""
    parts = [ExportTraceServiceRequest.FromString(leaf) for leaf in leaves(spans(count))]

    groups = [part.resource_spans[0] for part in parts]
    found = [span.span_id for group in groups for span in group.scope_spans[0].spans]
    assert sorted(found) == [place.to_bytes(8, "big") for place in range(1, count + 1)]
    assert {group.resource.attributes[0].value.string_value for group in groups} == {"digits"}
    assert {group.scope_spans[0].scope.name for group in groups} == {"otel_mlperf"}
    assert {group.schema_url for group in groups} == {SCHEMA}


@pytest.mark.fault("F05", "F09")
def test_halving_isolates_every_metric():
    """Each metric ends up alone, with all its points."""
    parts = [ExportMetricsServiceRequest.FromString(leaf) for leaf in leaves(metrics())]

    names = [part.resource_metrics[0].scope_metrics[0].metrics[0].name for part in parts]
    assert names == ["g", "s", "h", "e"]


def test_items_are_spans_and_points():
    """The accounting counts spans of a trace request, and the points of a metric request."""
    assert count_items(spans(7), "traces") == 7
    assert count_items(metrics(), "metrics") == 5


def test_halves_hold_all_items():
    """No item is in both halves or in none."""
    for body, signal in ((spans(7), "traces"), (metrics(), "metrics")):
        parts = halves(body)
        assert parts is not None
        assert sum(count_items(part, signal) for part in parts) == count_items(body, signal)


class Picky:
    """A server that takes requests of a few spans, but none with a certain one."""

    def __init__(self, most: int = 100, bad: int = 0, refused: int = 0, away_after: int = 1000):
        self.taken: list[int] = []
        self._most, self._bad, self._refused, self._away_after = most, bad, refused, away_after

    def __call__(self, body: bytes) -> ServerAnswer:
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            int.from_bytes(span.span_id, "big")
            for span in request.resource_spans[0].scope_spans[0].spans
        ]
        if len(self.taken) >= self._away_after:
            return ServerAnswer(Outcome.RETRY, "away")
        if len(found) > self._most:
            return ServerAnswer(Outcome.TOO_LARGE, "too large")
        if self._bad in found:
            return ServerAnswer(Outcome.REJECTED, "not readable")
        self.taken += found
        return ServerAnswer(Outcome.DELIVERED, rejected=self._refused)


@pytest.mark.fault("F05", "F97")
@pytest.mark.parametrize(
    ("server", "taken", "lost"),
    [
        (Picky(), [1, 2, 3, 4, 5, 6, 7], {}),
        (Picky(most=2), [1, 2, 3, 4, 5, 6, 7], {}),
        (Picky(bad=3), [1, 2, 4, 5, 6, 7], {"rejected": 1}),
        (Picky(most=0), [], {"too_large": 7}),
        (Picky(most=4, refused=1), [1, 2, 3, 4, 5, 6, 7], {"rejected": 2}),
        (Picky(refused=3 * 10**12), [1, 2, 3, 4, 5, 6, 7], {"rejected": 7}),
    ],
    ids=[
        "whole",
        "too large",
        "one is bad",
        "none fits",
        "some are refused",
        "more than there are",
    ],
)
def test_all_but_the_bad_is_taken(server, taken, lost):
    """Each span once and in order; what is refused for good is counted by its reason."""
    refused: dict[str, int] = {}
    answer = post_in_parts(server, spans(7), "traces", refused)

    assert answer.outcome is Outcome.DELIVERED
    assert (server.taken, refused) == (taken, lost)


def test_a_part_that_is_to_be_tried_later_ends_it():
    """The answer says so; what comes after that part is not sent."""
    server = Picky(most=2, away_after=3)
    answer = post_in_parts(server, spans(7), "traces", {})

    assert (answer.outcome, server.taken) == (Outcome.RETRY, [1, 2, 3])
