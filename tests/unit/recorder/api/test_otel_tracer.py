"""Spans that other libraries make through the OpenTelemetry API become sections.

The API takes a provider once in a process, so it is tried with one that is not installed.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, StatusCode

import otel_mlperf as om
from otel_mlperf.recorder.api.otel_tracer import JournalTracerProvider

REMOTE = 0x200


@pytest.fixture
def tracer():
    return JournalTracerProvider().get_tracer("library", "1.0")


def test_current_span(recording, tracer):
    """A library's span is a section, parent and child of ours as they nest."""
    with om.span("outer"), tracer.start_as_current_span("query", attributes={"rows": 1}) as span:
        span.set_attribute("more", 2)
        with om.span("inner"):
            assert trace.get_current_span() != span
        assert trace.get_current_span() == span
        assert trace.get_current_span().get_span_context() == span.get_span_context()

    query = recording.one("query")
    assert query.parent == recording.one("outer").span
    assert query.attributes == {"rows": 1, "more": 2}
    assert recording.one("inner").parent == query.span == span.get_span_context().span_id
    assert recording.open() == ["run"]


def test_span_that_is_not_current(recording, tracer):
    """A span that is only started ends when it is told to, once, wherever that is."""
    with om.step():
        span = tracer.start_span("request")
        assert span.is_recording()
    span.end()
    span.end()
    span.set_attribute("late", 1)

    row = recording.one("request")
    assert row.parent == row.root == recording.one("train.step").span
    assert row.attributes == {}


def test_error(recording, tracer):
    """An exception that leaves the block is recorded."""
    with pytest.raises(KeyError), tracer.start_as_current_span("query"):
        raise KeyError("x")
    with tracer.start_as_current_span("status") as span:
        span.set_status(StatusCode.ERROR, "no")

    assert recording.one("query").error[0] == "KeyError"
    assert recording.one("status").payload["s"] == (StatusCode.ERROR.value, "no")
    assert recording.one("status").is_error


def test_given_context_and_links(recording, tracer):
    """A context that is given is the parent; links are kept."""
    with om.span("outer"):
        given = trace.set_span_in_context(trace.get_current_span(), context.Context())
    with om.span("other"):
        link = Link(SpanContext((1 << 128) - 6, (1 << 64) - 7, True))
        with om.span("open") as section:
            given = context.get_current()
        del section
        tracer.start_span("query", context=given, links=[link]).end()

    ids = [(1 << 64) - 1, (1 << 64) - 6, (1 << 64) - 7]
    assert recording.one("query").payload["l"] == [(*ids, REMOTE, {})]
    assert recording.one("query").parent == recording.one("other").span


def test_decorator(recording, tracer):
    """``start_as_current_span`` decorates, too."""

    @tracer.start_as_current_span("work")
    def work():
        return 7

    assert [work(), work()] == [7, 7]
    assert len(recording.sections("work")) == 2


def test_without_a_run(tracer):
    """Without a run the provider's spans do nothing."""
    with tracer.start_as_current_span("query") as span:
        assert not span.is_recording()


def test_span_of_another_provider_without_a_run(tracer):
    """Without a run a span around ours goes on being its owner's: ours does not end it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("app").start_as_current_span("theirs") as theirs:
        with tracer.start_as_current_span("query") as span:
            span.set_attribute("rows", 1)
            assert span.get_span_context() == theirs.get_span_context()
        assert theirs.is_recording()

    (exported,) = exporter.get_finished_spans()
    assert dict(exported.attributes) == {}


def test_decorated_coroutine(recording, tracer):
    """A coroutine's span lasts until it has ended, and its attributes are there."""

    @tracer.start_as_current_span("work", attributes={"rows": 1})
    async def work():
        with om.span("inside"):
            await asyncio.sleep(0)
        return 7

    assert asyncio.run(work()) == 7
    row = recording.one("work")
    assert row.attributes == {"rows": 1}
    assert recording.one("inside").parent == row.span


def test_decorator_from_before_the_run(tracer, request):
    """A function that was decorated before the run began is recorded in it."""

    @tracer.start_as_current_span("early")
    def work():
        return 7

    recording = request.getfixturevalue("recording")
    assert work() == 7
    assert len(recording.sections("early")) == 1


def test_span_that_ends_before_its_block(recording, tracer):
    """A span that is told to end within its block has ended then, once, and no later."""
    with om.span("outer"):
        with tracer.start_as_current_span("query") as span:
            span.end()
            ended = time.monotonic_ns()
            assert not span.is_recording()
        with om.span("next"):
            pass

    row = recording.one("query")
    assert row.end <= ended
    assert recording.one("next").parent == recording.one("outer").span
    assert recording.open() == ["run"]


def test_block_that_does_not_end_its_span(recording, tracer):
    """``end_on_exit=False`` leaves the span open when its block is left."""
    with tracer.start_as_current_span("query", end_on_exit=False) as span:
        pass
    assert span.is_recording()
    span.end()

    assert len(recording.sections("query")) == 1


def test_times_that_are_given(recording, tracer, request):
    """Start and end that a library gives are the section's, as far as they lie in the run."""
    meta = om.recorder.core.recording.active().meta
    start = meta.unix_ns + 1000
    tracer.start_span("request", start_time=start).end(start + 500)
    tracer.start_span("before", start_time=meta.unix_ns - 10**12).end(1 << 62)

    row, before = recording.one("request"), recording.one("before")
    assert (row.start, row.end) == (start - meta.shift_ns, start + 500 - meta.shift_ns)
    assert before.start == meta.monotonic_ns
    assert before.end <= time.monotonic_ns()


def test_names_and_attributes_of_any_kind(recording, tracer):
    """What is no name, or no attribute, changes nothing for the program."""
    with tracer.start_as_current_span(None, attributes=7), tracer.start_as_current_span([]):
        pass
    tracer.start_span({}, attributes=object()).end()
    tracer.start_span("times", start_time="x").end(float("nan"))
    unopened = tracer.start_as_current_span("unopened")
    unopened.set_attribute("a", 1)
    assert not unopened.is_recording()
    unopened.__exit__(None, None, None)
    with tracer.start_as_current_span("query", attributes={"a": [1, 2], 3: None}):
        pass

    assert recording.one("query").attributes == {"a": [1, 2]}
    assert len(recording.sections("times")) == 1
    assert recording.sections("unopened") == []
    assert recording.open() == ["run"]
