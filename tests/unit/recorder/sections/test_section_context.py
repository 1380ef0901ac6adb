"""Sections and the OpenTelemetry API see each other, both ways."""

from __future__ import annotations

import contextvars
import threading

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
)

import otel_mlperf as om
from otel_mlperf import ids
from otel_mlperf.journal.layout import Kind

REMOTE = 0x200


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exported):
    """An application's own SDK tracer."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider.get_tracer("app")


def current():
    return trace.get_current_span().get_span_context()


def test_current_span(recording):
    """Inside a section the current span is valid, recording, and has the section's id."""
    meta = recording.recorder.meta
    with om.span("forward"):
        span = trace.get_current_span()
        seen = span.get_span_context()
        assert span.is_recording()
        assert trace.get_current_span() is span

    assert seen.span_id == recording.one("forward").span
    assert seen.trace_id == ids.run_trace_id(meta.run_id, meta.restart)
    assert not span.is_recording()


def test_trace_of_a_step(recording):
    """In a step the trace is the step's, the same that every rank computes."""
    meta = recording.recorder.meta
    with om.step():
        pass
    with om.phase("validate"), om.step(), om.span("inside"):
        seen = current()

    assert seen.trace_id == ids.trace_id(meta.run_id, meta.restart, "validate", 0)


def test_sampled_flag(recording):
    """Scheduled steps are marked sampled for those who are called, the others are not."""
    flags = [int(current().trace_flags) for _ in om.steps(range(102))]

    assert [i for i, flag in enumerate(flags) if flag & 1] == [0, 1, 2, 3, 4, 100]


@pytest.mark.fault("S14")
def test_trace_headers_of_a_stranger(start, monkeypatch):
    """Whatever they say, in a variable or in the context of a request: steps have their trace."""
    header = f"00-{7:032x}-{9:016x}-01"
    monkeypatch.setenv("TRACEPARENT", header)
    monkeypatch.setenv("TRACESTATE", "vendor=" + "x" * 10_000)
    meta = start().recorder.meta
    with om.span("work"):
        of_run = current()
    with context_of(propagate.extract({"traceparent": header})):
        assert current().trace_id == 7
        with om.step():
            of_step = current()

    assert of_run.trace_id == ids.run_trace_id(meta.run_id, meta.restart)
    assert of_step.trace_id == ids.trace_id(meta.run_id, meta.restart, "train", 0)
    assert not of_run.trace_state


def test_attributes_through_the_api(recording):
    """What is set on the current span lands in the section."""
    with om.span("forward", layer=1):
        span = trace.get_current_span()
        span.set_attribute("rows", 7)
        span.set_attributes({"layer": 2})

    assert recording.one("forward").attributes == {"layer": 2, "rows": 7}


def test_name_status_and_exception_through_the_api(recording):
    """Name, status, exception and links set through the API are recorded."""
    link = SpanContext(5 << 64 | 6, 7, True)
    with om.span("before"):
        span = trace.get_current_span()
        span.update_name("after")
        span.add_link(link)
        span.record_exception(KeyError("x"), {"retry": 1})
    with om.span("status"):
        trace.get_current_span().set_status(Status(StatusCode.ERROR, "no"))
    with om.span("fine"):
        trace.get_current_span().set_status(StatusCode.ERROR)
        trace.get_current_span().set_status(StatusCode.OK)
        trace.get_current_span().set_status(StatusCode.ERROR, "too late")

    after = recording.one("after")
    (event,) = after.events
    told = {"exception.type": "KeyError", "exception.message": "'x'", "retry": 1}
    assert event == ("exception", told)
    assert not after.is_error
    assert after.payload["l"] == [(5, 6, 7, REMOTE, {})]
    status = recording.one("status")
    assert (status.is_error, status.error) == (True, [])
    assert status.payload["s"] == (StatusCode.ERROR.value, "no")
    fine = recording.one("fine")
    assert (fine.is_error, fine.payload["s"]) == (False, (StatusCode.OK.value, ""))


def test_status_ok_outlasts_an_exception(recording):
    """OK is final: an exception that crosses the section later is recorded, and no failure."""

    def settle():
        with om.span("settled"):
            trace.get_current_span().set_status(StatusCode.OK)
            raise KeyError("x")

    with pytest.raises(KeyError):
        settle()

    settled = recording.one("settled")
    assert settled.error[:2] == ["KeyError", "'x'"]
    assert not settled.is_error


def test_events_through_the_api(recording):
    """A section keeps its first eight events with their times, and counts the others."""
    unix = recording.run._recorder.meta.unix_ns + 1000
    with om.span("work"):
        span = trace.get_current_span()
        span.add_event("first", {"a": b"1", "b": [1, 2]}, unix)
        for number in range(9):
            span.add_event(f"event {number}")
        span.end()
        assert span.is_recording()

    row = recording.one("work")
    assert row.payload["v"][0][0] == unix - recording.run._recorder.meta.shift_ns
    assert row.events[0] == ("first", {"a": {"base64": "MQ=="}, "b": [1, 2]})
    assert [name for name, _ in row.events[1:]] == [f"event {number}" for number in range(7)]
    assert row.payload["w"] == 2


def test_error_texts_through_the_api(start):
    """What others say of an exception is redacted, and left out where no text is wanted."""
    event = {
        "exception.type": "ValueError",
        "exception.message": "token=abc",
        "exception.stacktrace": "a stack",
    }

    def fail():
        with om.span("event"):
            trace.get_current_span().add_event("exception", event)
        with om.span("status"):
            trace.get_current_span().set_status(StatusCode.ERROR, "password: abc")

    recording = start()
    fail()
    hidden = event | {"exception.message": "token=[redacted]"}
    assert recording.one("event").events == [("exception", hidden)]
    assert recording.one("status").payload["s"] == (StatusCode.ERROR.value, "password: [redacted]")
    om.stop()
    recording = start(exception_text=False)
    fail()
    assert recording.one("event").events == [("exception", {"exception.type": "ValueError"})]
    assert recording.one("status").payload["s"] == (StatusCode.ERROR.value, "")


def test_odd_arguments_through_the_api(start):
    """Whatever is handed to a span, nothing is raised into the program."""
    recording = start()
    recording.may_fail = True
    with om.span("work") as section:
        span = trace.get_current_span()
        span.set_attribute("self", 1)
        span.set_attributes({"section": 2, 3: 4, None: 5})
        section.set(self=6)
        span.set_attributes(None)
        span.add_event("exception", ["no mapping"])

    row = recording.one("work")
    assert row.attributes == {"self": 6, "section": 2, "<int>": 4, "unnamed": 5}
    assert not row.is_error


def test_section_inside_a_foreign_span(recording, tracer):
    """A section in another library's span has it as parent, in its trace."""
    with context_without_ours(), tracer.start_as_current_span("request") as request:
        theirs = request.get_span_context()
        with om.span("work"), om.span("inner"):
            assert current().trace_id == theirs.trace_id

    row, inner = recording.one("work"), recording.one("inner")
    (foreign,) = recording.rows(Kind.FOREIGN)
    assert row.parent == theirs.span_id
    assert row.root == inner.root == foreign.span
    assert foreign.start << 64 | foreign.end == theirs.trace_id
    assert inner.parent == row.span


def test_foreign_trace_is_bound_once(recording, tracer):
    """Sections of one foreign trace share one root."""
    with context_without_ours(), tracer.start_as_current_span("request"):
        for _ in range(3):
            with om.span("work"):
                pass

    assert len(recording.rows(Kind.FOREIGN)) == 1
    assert len({row.root for row in recording.sections("work")}) == 1


@pytest.mark.parametrize("flags", [0, 1])
def test_sampling_of_a_foreign_trace_is_recorded(recording, flags):
    """The agent knows of each trace of others whether its caller has sampled it."""
    caller = trace.NonRecordingSpan(trace.SpanContext(5, 6, True, trace.TraceFlags(flags)))
    with context_without_ours(), trace.use_span(caller), om.span("work"):
        pass

    (foreign,) = recording.rows(Kind.FOREIGN)
    assert foreign.parent == 1 - flags


def test_foreign_span_inside_a_section(recording, tracer, exported):
    """Another library's span in a step is the section's child, and the parent of the next."""
    with om.step(), om.span("outer"):
        outer = current()
        with tracer.start_as_current_span("query") as query, om.span("inner"):
            assert current().trace_id == outer.trace_id
        assert current() == outer

    (finished,) = exported.get_finished_spans()
    inner = recording.one("inner")
    assert finished.parent.span_id == recording.one("outer").span
    assert finished.context.trace_id == outer.trace_id
    assert inner.parent == query.get_span_context().span_id
    assert inner.root == recording.one("train.step").span
    assert recording.rows(Kind.FOREIGN) == []


def test_traceparent(recording):
    """Outgoing requests carry the section as traceparent."""
    carrier = {}
    with om.span("call"):
        propagate.inject(carrier)

    parts = carrier["traceparent"].split("-")
    assert parts[2] == format(recording.one("call").span, "016x")


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_headers_of_a_caller_are_handed_on(recording, flags):
    """A request made inside has the caller's flags and tracestate, through any sections."""
    state = "vendor=1,ot=th:8"
    remote = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-{flags}", "tracestate": state}
    carrier = {}
    caller = context_of(propagate.extract(remote, context.Context()))
    with caller, om.span("served"), om.span("inside"):
        propagate.inject(carrier)

    assert carrier["traceparent"].split("-")[1::2] == ["ab" * 16, flags]
    assert carrier["tracestate"] == state
    assert recording.one("served").payload["r"]
    assert "r" not in recording.one("inside").payload


@pytest.mark.parametrize(
    ("sampler", "of_run", "of_callers"),
    [
        ("always_off", 0, {0: 0, 1: 0}),
        ("always_on", 1, {0: 1, 1: 1}),
        ("parentbased_always_off", 0, {0: 0, 1: 1}),
    ],
)
def test_headers_follow_the_sampler(start, sampler, of_run, of_callers):
    """The trace is declared sampled to other services exactly where its spans are sent."""
    start(sampler=sampler)
    with om.span("inside"):
        assert current().trace_flags == of_run
    with om.step():
        assert current().trace_flags == of_run
    for flags, expected in of_callers.items():
        caller = SpanContext(flags + 7, 9, is_remote=True, trace_flags=TraceFlags(flags))
        with trace.use_span(NonRecordingSpan(caller)), om.span("served"):
            assert current().trace_flags == expected


def test_incoming_traceparent(recording):
    """A section under an extracted context belongs to the caller's trace."""
    remote = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    token = context.attach(propagate.extract(remote, context.Context()))
    with om.span("served"):
        pass
    context.detach(token)

    assert recording.one("served").parent == int("cd" * 8, 16)


def test_baggage(recording):
    """Baggage set outside, between and inside sections is seen and taken back as always."""
    token = context.attach(baggage.set_baggage("a", "1"))
    with om.span("outer"):
        inner = context.attach(baggage.set_baggage("b", "2"))
        with om.span("inner"):
            assert baggage.get_all() == {"a": "1", "b": "2"}
        context.detach(inner)
        assert baggage.get_all() == {"a": "1"}
    context.detach(token)

    assert baggage.get_all() == {}
    assert recording.one("inner").parent == recording.one("outer").span


def test_acts_like_a_context(recording):
    """The current context can be read and copied like any other."""
    with context_of(baggage.set_baggage("a", "1")), om.span("outer"):
        found = context.get_current()
        copied = dict(found)
        assert set(found) == set(found.keys()) == set(copied)
        assert len(found) == len(copied) == len(found.items()) == len(found.values())
        assert all(key in found and found[key] is copied[key] for key in copied)
        assert found
        assert found.get("nothing", 7) == 7
        assert trace.get_current_span(context.Context(copied)) is trace.get_current_span()


def test_link_that_means_nothing(recording):
    """A link to no span is ignored."""
    with om.span("work"):
        trace.get_current_span().add_link(SpanContext(0, 0, False))

    assert "l" not in recording.one("work").payload


def test_threads_start_clean(recording):
    """A new thread sees no current span, and its sections are traces of their own."""
    seen = []

    def work():
        seen.append(current().is_valid)
        with om.span("beside"), om.span("inner"):
            seen.append(current())

    with om.span("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    row = recording.one("beside")
    assert seen[0] is False
    assert (row.parent, row.root) == (0, row.span)
    assert recording.one("inner").root == row.span
    assert seen[1].trace_id == ids.lone_trace_id(recording.recorder.meta.run_id, row.span)


def test_thread_with_a_copied_context(recording):
    """In a thread that was given the context, sections are children, on their own track."""

    def work():
        with om.span("beside"):
            pass

    with om.step():
        given = contextvars.copy_context()
        thread = threading.Thread(target=given.run, args=(work,), name="helper")
        thread.start()
        thread.join()

    row, step = recording.one("beside"), recording.one("train.step")
    assert (row.parent, row.root) == (step.span, step.span)
    assert row.track != step.track
    tracks = [entry for entry in recording.entries.values() if entry[0] == "track"]
    assert [row.track, "helper", False] in [[t[1], t[3], t[4]] for t in tracks]


def test_application_provider_is_left_alone(recording):
    """Starting a run installs no tracer provider."""
    assert "otel_mlperf" not in type(trace.get_tracer_provider()).__module__


def test_span_object_as_parent(recording):
    """A section's span handed on by hand is a parent like any other."""
    with om.span("outer"):
        given = trace.set_span_in_context(trace.get_current_span(), context.Context())
        with context_of(given), om.span("inner"):
            pass

    assert recording.one("inner").parent == recording.one("outer").span


def test_link_of_sdk_span(recording, tracer, exported):
    """A section's span context can be linked from elsewhere."""
    with om.span("work"):
        span = tracer.start_span("linked", links=[Link(current())])
    span.end()

    (finished,) = exported.get_finished_spans()
    assert finished.links[0].context.span_id == recording.one("work").span


def test_non_recording_parent(recording):
    """An invalid span in the context is no parent."""
    empty = trace.set_span_in_context(NonRecordingSpan(SpanContext(0, 0, False)))
    with context_of(empty), om.span("work"):
        pass

    assert recording.one("work").parent == recording.span


class context_of:  # noqa: N801 - reads like a function
    """Makes a context current for a block."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __enter__(self):
        self.token = context.attach(self.wanted)

    def __exit__(self, *exception):
        context.detach(self.token)


def context_without_ours():
    """An application's context that was made before the run began."""
    return context_of(context.Context({"application": "here"}))
