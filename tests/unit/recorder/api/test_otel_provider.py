"""With ``provider="install"``, do spans of other libraries land in the journal?

The API takes a provider once in a process, so most of it is tried with a provider that is not
installed, and installing in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, StatusCode

import otel_mlperf as om
from otel_mlperf.recorder.api.otel_provider import JournalTracerProvider

ROOT = Path(__file__).parents[4]


@pytest.fixture
def tracer():
    return JournalTracerProvider().get_tracer("library", "1.0")


def test_current_span(recording, tracer):
    """A library's span is a section, parent and child of ours as they nest."""
    with om.span("outer"), tracer.start_as_current_span("query", attributes={"rows": 1}) as span:
        span.set_attribute("more", 2)
        with om.span("inner"):
            assert trace.get_current_span() is not span
        assert trace.get_current_span() is span

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
    assert recording.one("status").error[:2] == ["error", "no"]


def test_given_context_and_links(recording, tracer):
    """A context that is given is the parent; links are kept."""
    with om.span("outer"):
        given = trace.set_span_in_context(trace.get_current_span(), context.Context())
    with om.span("other"):
        link = Link(SpanContext(5 << 64 | 6, 7, True))
        with om.span("open") as section:
            given = context.get_current()
        del section
        tracer.start_span("query", context=given, links=[link]).end()

    assert recording.one("query").payload["l"] == [[5, 6, 7]]
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


PROGRAM = """
import sys
from opentelemetry import trace
import otel_mlperf as om
{before}
with om.start("x", provider="install", agent="none", console=False, dir=sys.argv[1]) as run:
    with trace.get_tracer("library").start_as_current_span("query"): pass
import os
from otel_mlperf.journal.journal_reader import JournalReader
reader = JournalReader(run._recorder.journal.path, run._recorder.journal.buffer)
print([entry[1] for entry in reader.new_entries().values() if entry[0] == "section"])
os.unlink(run._recorder.journal.path); os.rmdir(os.path.dirname(run._recorder.journal.path))
"""
OWN = """
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.fault("F59")
@pytest.mark.parametrize(("before", "is_ours"), [("", True), (OWN, False)], ids=["none", "own"])
def test_install(tmp_path, before, is_ours):
    """It is installed where the application has none; one that it has is left alone, and said."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ("'query'" in done.stdout) is is_ours
    assert ("has a tracer provider already" in done.stderr) is not is_ours
