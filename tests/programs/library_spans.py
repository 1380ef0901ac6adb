"""What instrumented libraries do through the OpenTelemetry API; with ``--ours``, in a run."""

from __future__ import annotations

import sys
from contextlib import suppress

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

CALLER = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1,ot=th:8"}
ELSEWHERE = SpanContext(5 << 64 | 6, 7, is_remote=True, trace_flags=TraceFlags(1))


def play(tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> dict[str, str]:
    """Spans of two libraries; returns the headers of a request that one of them makes."""
    meter = meters.get_meter("library", "1.2.3", "https://example.org/schema/1")
    duration = meter.create_histogram("library.duration", "s")
    meters.get_meter("another").create_counter("library.calls").add(3, {"lang": "de"})
    library = tracers.get_tracer("library", "1.2.3", "https://example.org/schema/1")
    plain = tracers.get_tracer("plain")
    with library.start_as_current_span("GET", kind=SpanKind.CLIENT) as span:
        span.set_attribute("error.type", "500")
        span.set_attribute("body", b"\x00\xff")
        span.set_status(Status(StatusCode.ERROR, "server error"))
    with plain.start_as_current_span("handled") as span:
        span.add_event("cache.miss", {"key": "k"})
        with suppress(ValueError):
            try:
                raise ValueError("handled")
            except ValueError as error:
                span.record_exception(error, {"retry": 1})
    with library.start_as_current_span("settled") as span:
        span.set_status(StatusCode.OK)
        span.set_status(StatusCode.ERROR, "too late")
    with plain.start_as_current_span("linked", links=[Link(ELSEWHERE, {"why": "batch"})]):
        pass
    with suppress(KeyError), plain.start_as_current_span("failed"):
        raise KeyError("x")
    headers: dict[str, str] = {}
    caller = propagate.extract(CALLER)
    served = library.start_as_current_span("served", context=caller, kind=SpanKind.SERVER)
    with served, plain.start_as_current_span("inside"):
        propagate.inject(headers)
        duration.record(0.25)
    with plain.start_as_current_span("measured") as span:
        duration.record(0.5, {"by": "context"}, context=trace.set_span_in_context(span, Context()))
    return headers


if __name__ == "__main__":
    import otel_mlperf as om

    with om.start("library-spans", provider="install", console=False):
        print(play(trace.get_tracer_provider(), metrics.get_meter_provider()))
    sys.exit()
