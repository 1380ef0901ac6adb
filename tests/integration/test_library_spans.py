"""Spans that libraries make arrive as the OpenTelemetry SDK would have sent them.

The same program runs twice: under the SDK, and in a run with ``provider="install"``.
"""

from __future__ import annotations

import ast
import importlib.util
import json

import pytest
from fault_server import plain_spans
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runs import PROGRAMS, run_program

from otel_mlperf import names
from otel_mlperf.replay.span_requests import requests
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

PROGRAM = "library_spans.py"
REMOTE = 0x300
"""Bits of the flags that say whether a parent or target is remote."""
SAME = ("kind", "scope", "trace_state", "status", "dropped", "events_left_out")
"""Fields that must be equal; the others are compared one by one."""


@pytest.fixture(scope="module")
def library_spans():
    spec = importlib.util.spec_from_file_location("library_spans", PROGRAMS / PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def of_sdk(library_spans):
    """The spans of the SDK by name, and the headers of its request."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    headers = library_spans.play(provider, NoOpMeterProvider())
    body = encode_spans(exporter.get_finished_spans()).SerializeToString()
    return {span["name"]: span for span in plain_spans(body)}, headers


@pytest.fixture
def ours(server, tmp_path):
    """The same of a run, as its server got them."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    ended = run_program(tmp_path / "runs", program=PROGRAM, **endpoint).settled()
    assert ended.code == 0, ended.errors
    assert _replayed(ended.folder) == sorted(server.spans(), key=str)
    spans = {span["name"]: span for span in server.spans()}
    return spans, ast.literal_eval(ended.output), server.points()


def test_fields_are_those_of_the_sdk(of_sdk, ours):
    """Kind, scope, status, attributes, events, links and flags of each span are equal."""
    theirs, sent = of_sdk[0], ours[0]
    assert set(theirs) <= set(sent)
    for name, span in theirs.items():
        same = {key: sent[name][key] for key in SAME}
        assert same == {key: span[key] for key in SAME}, name
        assert span["attributes"].items() <= sent[name]["attributes"].items(), name
        assert _events(sent[name]) == _events(span), name
        assert _links(sent[name]) == _links(span), name
        assert sent[name]["flags"] & REMOTE == span["flags"] & REMOTE, name


def test_failures_are_not_invented(ours):
    """A status without an exception is no exception, and a handled exception no failure."""
    sent = ours[0]
    assert sent["GET"]["attributes"]["error.type"] == "500"
    assert sent["GET"]["events"] == []
    assert "error.type" not in sent["handled"]["attributes"]
    assert sent["failed"]["attributes"]["error.type"] == "KeyError"


def test_callers_headers_are_handed_on(of_sdk, ours, library_spans):
    """Trace id, flags and tracestate of a request that is made in a served one are its caller's."""
    headers = ours[1]
    assert headers["tracestate"] == of_sdk[1]["tracestate"] == library_spans.CALLER["tracestate"]
    assert headers["traceparent"].split("-")[1::2] == ["ab" * 16, "01"]


def test_metrics_have_the_scope_of_their_library(ours):
    """As under the SDK, which does not make it an attribute; those of this package have its own."""
    points = {point["name"]: point for point in ours[2]}
    assert points["library.duration"]["scope"] == [
        "library", "1.2.3", "https://example.org/schema/1",
    ]  # fmt: skip
    assert points["library.duration"]["attributes"] in ({}, {"by": "context"})
    assert points["library.calls"]["scope"] == ["another", "", ""]
    assert points["library.calls"]["attributes"] == {"lang": "de"}
    assert points[names.RUN_START_TIME.name]["scope"] == [
        names.SCOPE,
        names.VERSION,
        names.SCHEMA_URL,
    ]


def test_exemplars_lead_to_the_spans_in_which_was_measured(ours):
    """Also to one of a caller's trace, and to one that is told by a context."""
    spans, _, points = ours
    found = {
        tuple(exemplar)
        for point in points
        if point["name"] == "library.duration"
        for exemplar in point["exemplars"]
    }
    assert found == {
        (spans[name]["trace_id"], spans[name]["span_id"]) for name in ("inside", "measured")
    }


def _links(span):
    """Trace, attributes and whether its target is remote, of each link."""
    return [(trace, about, flags & REMOTE) for trace, flags, about in span["link_fields"]]


def _replayed(folder):
    """What ``otel-mlperf export --otlp`` would send, which is what the agent sent."""
    run = read_run(folder)
    bodies = [body for _, body in requests(run, Store(run.path))]
    spans = [span for body in bodies for span in plain_spans(body)]
    return sorted(json.loads(json.dumps(spans)), key=str)


def _events(span):
    """Name and attributes of each event, without stacks and an attribute that is deprecated."""
    left_out = ("exception.stacktrace", "exception.escaped")
    return [
        (name, {key: value for key, value in about.items() if key not in left_out})
        for _, name, about in span["points"]
    ]
