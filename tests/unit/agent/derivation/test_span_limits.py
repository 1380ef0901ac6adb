"""Limits that standard variables set cut spans as the SDK does, and count what is dropped."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import pytest
from by_hand import agent_folder
from fault_server import plain_spans
from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits as SdkLimits
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, TraceFlags

import otel_mlperf as om
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.analysis.steps.step_selection import Selected
from otel_mlperf.otlp.span_limits import SpanLimits, read_span_limits
from otel_mlperf.recorder.api.otel_tracer import JournalTracerProvider
from otel_mlperf.replay.span_requests import lines, requests
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

COUNTS = {
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "3",
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "2",
    "OTEL_SPAN_LINK_COUNT_LIMIT": "1",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "2",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "1",
}
LENGTHS = {
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "7",
}
GENERAL = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "2", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5"}
NOTHING = {**dict.fromkeys(COUNTS, "0"), **dict.fromkeys(LENGTHS, "0")}


def play(tracer):
    """Spans of a library that limits shorten."""
    callers = [SpanContext(5, n, is_remote=True, trace_flags=TraceFlags(1)) for n in (1, 2, 3)]
    links = [Link(caller, {"a": "long text", "b": caller.span_id}) for caller in callers]
    given = {f"key.{n}": n for n in range(4)} | {"text": "äöü long text", "list": ["long text"]}
    with suppress(LookupError), tracer.start_as_current_span("failed", links=links) as span:
        span.set_attributes(given)
        for n in range(3):
            span.add_event(f"event {n}", {"text": "long text", "n": n, "flag": True})
        raise KeyError("no such key")
    with tracer.start_as_current_span("plain") as span:
        span.set_attribute("key", b"long bytes")
        span.add_event("alone")


OURS = ("otel_mlperf.", "thread.", "ml.", "error.type", "exception.stacktrace", "exception.escaped")
"""How attributes begin that are added to those of a library, or differ by their text."""


def given(attributes):
    """Attributes that a library gave."""
    return {key: value for key, value in attributes.items() if not key.startswith(OURS)}


def shown(span):
    """All that limits may change in a span, but attributes of an exception, where counts hold."""
    events = [(name, given(about)) for _, name, about in span["points"] if name != "exception"]
    links = [(trace, flags & 0x300, about) for trace, flags, about in span["link_fields"]]
    attributes, no_links, of_events, of_links = span["dropped"]
    kinds = zip(of_events, span["events"], strict=True)
    of_events = [count for count, name in kinds if name != "exception"]
    counts = attributes, no_links, of_events, of_links, span["events_left_out"]
    return given(span["attributes"]), events, span["events"], links, counts, span["status"]


def message_of(span):
    """The message in the event of an exception."""
    return [about["exception.message"] for _, name, about in span["points"] if name == "exception"]


def of_sdk(environ, monkeypatch):
    """What the SDK sends of ``play`` in an environment."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, span_limits=SdkLimits())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    play(provider.get_tracer("library"))
    body = encode_spans(exporter.get_finished_spans()).SerializeToString()
    return {span["name"]: shown(span) for span in plain_spans(body)}


def run_of(tmp_path, environ):
    """The folder of a run in which ``play`` was recorded, delivered with an environment."""
    with om.start("digits", dir=tmp_path / "runs", agent="none", console=False) as run:
        play(JournalTracerProvider().get_tracer("library"))
        journal = run._recorder.journal
        tail = Tail(Path(journal.path).parent, {journal.path: journal.buffer})
        agent = Agent(agent_folder(run._recorder.meta), tail, read_options(environ))
        agent.tick()
        agent.mark()
    agent.run()
    return Path(run._recorder.meta.run_folder)


@pytest.mark.parametrize(
    "environ",
    [{}, COUNTS, LENGTHS, GENERAL, COUNTS | LENGTHS, NOTHING],
    ids=["none", "counts", "lengths", "general", "all", "zero"],
)
def test_limits_are_those_of_the_sdk(tmp_path, server, monkeypatch, environ):
    """The same attributes, events, links, status and counts; a replay sends the same again."""
    folder = run_of(tmp_path, {**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url})
    run = read_run(folder)
    store = Store(run.path)
    theirs = of_sdk(environ, monkeypatch)
    length = int(environ.get("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", 100))

    replayed = [span for _, body in requests(run, store) for span in plain_spans(body)]
    as_json = [span for _, text in lines(Selected(run, store)) for span in of_json(text)]
    for spans in (server.spans(), replayed, as_json):
        found = {span["name"]: shown(span) for span in spans}
        for name, span in theirs.items():
            assert json.dumps(found[name]) == json.dumps(span), name
        (failed,) = (span for span in spans if span["name"] == "failed")
        assert message_of(failed) == ["'no such key'"[:length]][: len(failed["events"])]


def of_json(text):
    """The spans of lines of OTLP/JSON."""
    for line in text.splitlines():
        content = json.loads(line)
        for group in content["resourceSpans"]:
            for span in [span for scope in group["scopeSpans"] for span in scope["spans"]]:
                for holder in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in holder:
                            holder[key] = b64encode(bytes.fromhex(holder[key])).decode()
        request = json_format.ParseDict(content, ExportTraceServiceRequest())
        yield from plain_spans(request.SerializeToString())


def test_limits_above_ours_are_named_in_one_warning():
    """And do not hold; those at our bounds do."""
    limits, warnings = read_span_limits({
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "65",
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "20",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": "8",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4097",
        "OTEL_SPAN_LINK_COUNT_LIMIT": "1000",
    })  # fmt: skip
    assert warnings == [
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT, OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT: otel_mlperf limits "
        "spans to 64 attributes of 4,096 bytes and 8 events of 16 attributes"
    ]
    assert limits == SpanLimits(events=8, links=1000, link_attributes=20)


def test_limit_that_is_no_number_is_named():
    """Nothing is limited by it."""
    limits, warnings = read_span_limits({"OTEL_SPAN_LINK_COUNT_LIMIT": "-1"})
    assert warnings == [
        "OTEL_SPAN_LINK_COUNT_LIMIT=-1 is not a number of at least 0 and is ignored"
    ]
    assert limits == SpanLimits()
