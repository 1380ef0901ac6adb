"""A request is a trace of its own, in each shape, wherever it is handled."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.ids import lone_trace_id


def test_request_is_its_own_root_below_what_is_around(recording):
    """What is inside belongs to it; around it in time is the run."""
    with om.request("predict", id="r-7", model="small"), om.span("forward"):
        pass

    own, inside = recording.one("predict"), recording.one("forward")
    assert (own.parent, own.root) == (recording.span, own.span)
    assert (inside.parent, inside.root) == (own.span, own.span)
    assert own.category == names.REQUEST
    assert own.attributes == {names.REQUEST_ID: "r-7", "model": "small"}


def test_opentelemetry_sees_its_trace(recording):
    """Whoever is called from inside continues the trace that the agent gives it."""
    from opentelemetry import trace

    with om.request("predict"):
        seen = trace.get_current_span().get_span_context().trace_id

    own = recording.one("predict")
    assert seen == lone_trace_id(recording.recorder.meta.run_id, own.span)


def test_many_at_once_in_threads(recording):
    """Each thread has its own, and all are open together."""
    inside, leave = threading.Barrier(5), threading.Event()

    def handle():
        with om.request("predict"), om.span("forward"):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=handle) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait()
    is_open = recording.open()
    leave.set()
    for thread in threads:
        thread.join()

    assert (is_open.count("predict"), is_open.count("forward")) == (4, 4)
    own = {row.span for row in recording.rows() if row.name == "predict"}
    assert {row.root for row in recording.rows() if row.name == "forward"} == own
    assert len(own) == 4


def test_decorated_coroutines_in_tasks(recording):
    """Tasks of one thread each have their own."""

    @om.request("chat", within_s=0.5)
    async def chat():
        with om.span("token"):
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(chat() for _ in range(3)))

    asyncio.run(main())

    own = [row for row in recording.rows() if row.name == "chat"]
    assert len({row.root for row in own}) == 3
    assert all(row.constant[names.SECTION_BOUND] == 0.5 for row in own)
    assert {r.parent for r in recording.rows() if r.name == "token"} == {r.span for r in own}


def test_bare_decorator_names_it_after_the_function(recording):
    """``@om.request`` needs no name."""

    @om.request
    def answer(x):
        return x + 1

    assert answer(1) == 2
    (own,) = (row for row in recording.rows() if row.category == names.REQUEST)
    assert own.name.endswith("answer")
    assert own.root == own.span


def test_inside_a_step_or_another_request_it_is_a_section_of_that(recording):
    """A trace is not cut in two."""
    with om.step(), om.request("inner"):
        pass
    with om.request("outer"), om.span("work"), om.request("part"):
        pass

    step = next(row for row in recording.rows() if row.name == "train.step" and row.end)
    assert recording.one("inner").root == recording.one("inner").parent != recording.span
    assert recording.one("inner").parent == step.span
    assert recording.one("part").root == recording.one("outer").span


def test_long_lived_section_around_requests_holds_none_of_them(recording):
    """A worker thread that is one section itself handles requests, each a trace of its own."""

    def serve():
        with om.span("worker"):
            for _ in range(3):
                with om.request("predict"):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()

    worker = recording.one("worker")
    own = [row for row in recording.rows() if row.name == "predict"]
    assert [(row.parent, row.root) for row in own] == [(worker.span, row.span) for row in own]


def test_traceparent_of_the_caller_goes_on(recording):
    """A request that comes with a trace is part of it."""
    from opentelemetry import context, trace

    theirs = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=True))
    token = context.attach(trace.set_span_in_context(theirs))
    try:
        with om.request("predict"):
            seen = trace.get_current_span().get_span_context().trace_id
    finally:
        context.detach(token)

    assert seen == 0xABC
    assert recording.one("predict").parent == 0xDEF


def test_failed_request_says_why(recording):
    """The exception goes on, and is recorded."""
    with pytest.raises(ValueError, match="bad input"), om.request("predict"):
        raise ValueError("bad input")

    assert recording.one("predict").error[:2] == ["ValueError", "bad input"]


@pytest.mark.parametrize("bound", [0, -1, "50ms", True, float("nan")])
def test_bound_that_is_none_is_said_and_left_out(recording, caplog, bound):
    """The request is recorded all the same."""
    with caplog.at_level(logging.WARNING), om.request("predict", within_s=bound):
        pass

    assert names.SECTION_BOUND not in recording.one("predict").constant
    assert "within_s" in caplog.text


def test_settings_bound_what_says_nothing_itself(start):
    """The first pattern that fits; decorated before the run, and never in place of what is said."""

    @om.request("chat.long")
    def chat():
        return 1

    recording = start(request_within_s="chat*=2,0.05")
    chat()
    with om.request("predict"), om.span("forward"):
        pass
    with om.request("embed", within_s=0.5):
        pass

    bounds = [recording.one(name).constant.get(names.SECTION_BOUND) for name in
              ("chat.long", "predict", "embed", "forward")]  # fmt: skip
    assert bounds == [2.0, 0.05, 0.5, None]


def test_without_a_run_nothing_happens():
    """Neither as a block nor as a decorator."""
    with om.request("predict") as request:
        request.set(rows=3)

    assert om.request(len)([1]) == 1


@pytest.mark.parametrize(
    ("given", "recorded"),
    [({}, "server"), ({"kind": "consumer"}, "consumer"), ({"kind": "internal"}, None)],
)
def test_request_has_the_kind_that_is_said(recording, given, recorded):
    """It is a server's unless the program says otherwise."""
    with om.request("predict", **given):
        pass

    assert recording.one("predict").constant.get("span.kind") == recorded


def test_kind_that_is_none_is_said(recording, caplog):
    """A kind that OpenTelemetry does not know changes nothing for the program."""
    with om.request("predict", kind="odd"):
        pass

    assert recording.one("predict").constant["span.kind"] == "server"
    assert "kind is 'odd'" in caplog.text
