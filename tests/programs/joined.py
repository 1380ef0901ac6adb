"""A program with a tracer provider and exporters of its own; its run joins that provider.

It prints what its exporters got: ids, parent and name of each span, by exporter.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

import otel_mlperf as om

SAMPLED = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
UNSAMPLED = {"traceparent": f"00-{'ef' * 16}-{'cd' * 8}-00"}
ELSEWHERE = SpanContext(5 << 64 | 6, 7, is_remote=True, trace_flags=TraceFlags(1))


class Custom(SpanExporter):
    """An exporter as somebody would write it."""

    def __init__(self) -> None:
        self.spans = []

    def export(self, spans):
        self.spans += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Print what came before the end."""
        if "late" in sys.argv:
            print(json.dumps([span.name for span in self.spans]))


def make_provider(*exporters: SpanExporter) -> trace.TracerProvider:
    """Return a provider whose first exporter gets each span as it ends, the others batches."""
    resource = Resource.create({"service.name": "trainer", "team": "vision"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(SimpleSpanProcessor(exporters[0]))
    for exporter in exporters[1:]:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def play(tracer: trace.Tracer) -> None:
    """Sections around spans of the SDK, inside them, and in traces of callers."""
    for _ in om.steps(range(3)):
        with om.span("forward", layers=3):
            current = trace.get_current_span()
            current.add_event("cache.miss", {"key": "k"})
            current.add_link(ELSEWHERE, {"why": "batch"})
            with tracer.start_as_current_span("attention"), om.span("kernel"):
                pass
    with suppress(KeyError), om.span("failed"):
        raise KeyError("x")
    with om.request("predict"):
        pass
    for name, caller in (("served", SAMPLED), ("dropped", UNSAMPLED)):
        context = propagate.extract(caller)
        with (
            tracer.start_as_current_span(name, context=context, kind=SpanKind.SERVER),
            om.span(f"in_{name}"),
        ):
            pass
    if (child := os.fork()) == 0:
        with om.span("forked"):
            pass
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Play to the end, be killed, go on until told, or end by itself after a late provider."""
    memory, custom = InMemorySpanExporter(), Custom()
    if "late" in sys.argv:
        om.start("joined", provider="join", console=False)
        with om.span("before"):
            pass
        trace.set_tracer_provider(make_provider(memory, custom))
        while not memory.get_finished_spans():
            time.sleep(0.01)
        return
    trace.set_tracer_provider(make_provider(memory, custom, OTLPSpanExporter()))
    with om.start("joined", console=False, **({} if "both" in sys.argv else {"provider": "join"})):
        if "on" in sys.argv:
            until = Path(sys.argv[sys.argv.index("--until") + 1])
            for _ in om.steps(iter(until.exists, True)):
                time.sleep(0.02)
            return
        play(trace.get_tracer("theirs"))
        if "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    got = {"memory": memory.get_finished_spans(), "custom": custom.spans}
    print(json.dumps({name: list(map(_plain, spans)) for name, spans in got.items()}))


def _plain(span):
    parent = span.parent.span_id if span.parent else 0
    ids = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
    return [*ids, f"{parent:016x}" if parent else "", span.name]


if __name__ == "__main__":
    main()
