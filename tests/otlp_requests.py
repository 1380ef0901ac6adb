"""Requests of a few spans, or of a point, for tests of what carries them."""

from __future__ import annotations

import numpy as np

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.metric_encoding import GaugePoints, MetricData, NumberPoint, encode_metrics
from otel_mlperf.otlp.span_content import span_tail
from otel_mlperf.otlp.span_encoding import SpanColumns, encode_spans


def spans(count: int = 1, padding: int = 0, bad: int = 0) -> bytes:
    """A request of ``count`` spans with ids 1, 2 and so on; the one of id ``bad`` is named so."""
    ids = np.arange(1, count + 1, dtype=np.uint64)
    columns = SpanColumns(
        trace_id=np.ones((count, 16), np.uint8),
        span_id=ids,
        parent_id=ids - 1,
        start_ns=ids,
        end_ns=ids + 1,
        tail=(ids == bad).astype(np.int32),
        tails=[span_tail("forward", {"padding": "x" * padding}), span_tail("bad")],
    )
    return encode_spans(wire.encode_resource({}), wire.encode_scope("otel_mlperf"), columns)


def metrics() -> bytes:
    """A request of one point."""
    data = GaugePoints([NumberPoint(attributes={}, time_ns=1, value=0.5)])
    metric = MetricData("ml.training.loss", "", "", data)
    return encode_metrics(wire.encode_resource({}), wire.encode_scope("otel_mlperf"), [metric])
