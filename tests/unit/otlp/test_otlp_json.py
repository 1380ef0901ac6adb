"""Lines of OTLP/JSON are equivalent to the same spans as protobuf."""

from __future__ import annotations

import base64
import json
import math

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from run_folders import MS, RunFolderBuilder

from otel_mlperf import names
from otel_mlperf.otlp.otlp_json import LINE_BYTES, encode_lines
from otel_mlperf.replay.span_requests import requests
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

TEXT = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
IDS = ("traceId", "spanId", "parentSpanId")


def row(**fields):
    """A row of table ``spans``."""
    return {
        "trace_id": "ab" * 16,
        "span_id": "cd" * 8,
        "parent_id": "",
        "name": "forward",
        "category": names.FORWARD,
        "phase": names.TRAIN,
        "track": 100,
        "thread_id": 4242,
        "thread": "MainThread",
        "start_ns": 2,
        "end_ns": 3,
        "status": "unset",
        "interrupted": False,
        "attributes": "{}",
        "links": "[]",
    } | fields


def encode_line(resource, rows):
    """The only line."""
    [line] = encode_lines(resource, rows)
    return line


def one_span(line):
    """The only span of a line."""
    [resource] = json.loads(line)["resourceSpans"]
    [scope] = resource["scopeSpans"]
    [span] = scope["spans"]
    return span


def parse(line):
    """A line as the message that it stands for, by protobuf's own JSON rules."""
    said = json.loads(line)
    for resource in said["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for item in (span, *span.get("links", ())):
                    for key in IDS:
                        if key in item:  # OTLP departs from protobuf here: hexadecimal, not base64
                            item[key] = _base64(item[key])
    return json_format.ParseDict(said, ExportTraceServiceRequest())


def _base64(text):
    return base64.b64encode(bytes.fromhex(text)).decode()


def spans_of(message):
    """Its spans by id, attributes and all."""
    found = {}
    for resource in message.resource_spans:
        assert resource.schema_url == names.SCHEMA_URL
        for scope in resource.scope_spans:
            assert (scope.scope.name, scope.schema_url) == (names.SCOPE, names.SCHEMA_URL)
            for span in scope.spans:
                if span.parent_span_id == span.span_id:  # how our protobuf writes a root
                    span.parent_span_id = b""
                found[span.span_id] = span
    return found


def test_a_line_and_a_request_say_the_same(tmp_path):
    """Names, ids, times, attributes, events, links and status are those that are sent."""
    run = RunFolderBuilder(tmp_path)
    given = {
        "note": "x",
        "count": 2**60,
        "loss": 0.5,
        "shape": [1, 2],
        "is_first": True,
        "body": {"base64": "AP8="},
    }
    failed = {names.EXCEPTION_TYPE: "ValueError", names.EXCEPTION_MESSAGE: "bad", "epoch": 1}
    root = run.span(
        2, "train.step", 0, 50 * MS, attributes=json.dumps(given),
        links=json.dumps([["0" * 28 + "abcd", "0" * 14 + "ef"]]),
    )  # fmt: skip
    run.span(
        2, "forward", 0, MS, parent_id=root, status="error", attributes=json.dumps(failed), phase=""
    )
    run.span(2, "backward", MS, MS, parent_id=root, status="error", interrupted=True)
    path = run.write()
    [(count, body)] = requests(read_run(path), Store(path))

    line = encode_line({"service.name": "digits"}, Store(path).records("SELECT * FROM spans"))

    sent = ExportTraceServiceRequest.FromString(body)
    assert count == 3
    assert spans_of(parse(line)) == spans_of(sent)


@pytest.mark.fault("S18")
@given(value=VALUES)
def test_every_value_that_a_row_can_hold_has_a_form(value):
    """Nested, large, beyond Unicode: what comes out is JSON that protobuf's own parser accepts."""
    line = encode_line({}, [row(attributes=json.dumps({"key": value}))])

    [span] = spans_of(parse(line)).values()
    assert span.attributes[-1].key == "key"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**63 - 1, {"intValue": "9223372036854775807"}),
        (2**63, {"stringValue": "9223372036854775808"}),
        (math.inf, {"doubleValue": "Infinity"}),
        (math.nan, {"doubleValue": "NaN"}),
        ("\ud800x", {"stringValue": "\ufffdx"}),
        ([1, [None]], {"arrayValue": {"values": [
            {"intValue": "1"}, {"arrayValue": {"values": [{}]}}]}}),
    ],
)  # fmt: skip
def test_values_are_written_as_the_collector_writes_them(value, written):
    """Integers as text, so that no reader rounds them; what JSON cannot carry has words."""
    span = one_span(encode_line({}, [row(attributes=json.dumps({"key": value}))]))

    assert span["attributes"][-1] == {"key": "key", "value": written}


def test_a_line_is_one_line():
    """However many spans, and whatever is in them."""
    line = encode_line({"service.name": "a\nb"}, [row(name="x\ny"), row(name="\u2028")])

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_lines_are_short_enough_for_the_collector():
    """A line is cut before it grows over a mebibyte; a span that is larger alone stays whole."""
    note = json.dumps({"note": "x" * 1000})
    rows = [row(span_id=f"{n:016x}", attributes=note) for n in range(1500)]
    rows.insert(700, row(span_id="f" * 16, attributes=json.dumps({"note": "x" * LINE_BYTES})))

    lines = list(encode_lines({"service.name": "digits"}, rows))

    spans = [span for line in lines for span in spans_of(parse(line))]
    assert [span.hex() for span in spans] == [one["span_id"] for one in rows]
    assert sorted(len(line) > LINE_BYTES for line in lines) == [False] * (len(lines) - 1) + [True]
    assert len(lines) == 4


def test_no_text_of_a_line_commands_a_terminal():
    """Controls and characters that turn text are escaped: readers get the name unchanged."""
    name = "a\x1b[2J\u202egpj\x9b\x7f\U000e0001é🙂"

    line = encode_line({"service.name": name}, [row(name=name)])

    assert line.decode().rstrip("\n").isprintable()
    assert one_span(line)["name"] == name
