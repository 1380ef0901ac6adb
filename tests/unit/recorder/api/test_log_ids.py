"""Records of ``logging`` contain the span in which they were written."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from servers.running import wait_until

import otel_mlperf as om
from otel_mlperf.recorder.core import faults
from otel_mlperf.store.table_reader import Store

FORMAT = "%(message)s %(trace_id)s %(span_id)s %(otelTraceID)s %(otelSpanID)s %(otelServiceName)s"
_log = logging.getLogger("of.the.program")


@pytest.fixture
def lines():
    """The lines that a handler with such a format writes."""
    written = []

    class Written(logging.Handler):
        def emit(self, record):
            written.append(self.format(record).split(" "))

    handler, before = Written(), logging.getLogRecordFactory()
    handler.setFormatter(logging.Formatter(FORMAT))
    _log.addHandler(handler)
    yield written
    _log.removeHandler(handler)
    logging.setLogRecordFactory(before)


def test_ids_are_those_of_the_spans_that_arrive(tmp_path, lines):
    """A line of a step, of a section in it, of an aggregate and of the run bears its span's ids."""
    om.log_ids()
    om.log_ids()
    with om.start("digits", dir=tmp_path / "runs", agent="thread", console=False,
                  readings="none") as run:  # fmt: skip
        _log.warning("run")
        with om.step():
            _log.warning("train.step")
            with om.span("forward"):
                _log.warning("forward")
                with om.span("lookup", aggregate=True):
                    _log.warning("forward")

    sql = "SELECT name, trace_id, span_id FROM spans"

    def stored():
        # A run's end waits for its agent for a while only.
        rows = Store(run.path).records(sql)
        spans = {row["name"]: [row["trace_id"], row["span_id"]] for row in rows}
        return spans if {"run", "train.step", "forward"} <= spans.keys() else None

    spans = wait_until(stored)
    assert [line[0] for line in lines] == ["run", "train.step", "forward", "forward"]
    assert [line[1:3] for line in lines] == [spans[line[0]] for line in lines]
    assert all(line[3:] == [*line[1:3], "digits"] for line in lines)


def test_whether_a_trace_is_kept_for_sure(start, lines, monkeypatch):
    """``otelTraceSampled`` says so of the first steps, and not of the one after them."""
    seen = []
    monkeypatch.setattr(_log, "handle", lambda record: seen.append(record.otelTraceSampled))
    om.log_ids()
    start(trace_first=1, trace_every=100)
    for _ in range(2):
        with om.step():
            _log.warning("x")

    assert seen == [True, False]


def test_somebody_elses_span(recording, lines):
    """Inside a span of the program's own SDK a line bears that one's ids."""
    om.log_ids()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with om.span("outer"), tracer.start_as_current_span("theirs") as theirs:
        _log.warning("x")

    assert int(lines[0][2], 16) == theirs.get_span_context().span_id


def test_without_a_run(lines):
    """Without a section the fields are there all the same."""
    om.log_ids()
    _log.warning("x")

    assert lines == [["x", "0", "0", "0", "0", ""]]


def test_record_is_made_as_before(lines):
    """What the program makes records with still does; its failures are its own."""

    class Own(logging.LogRecord):
        own = 7

    logging.setLogRecordFactory(Own)
    om.log_ids()
    assert logging.getLogger("x").makeRecord("x", 30, "f", 1, "m", (), None).own == 7


def test_nothing_is_changed_unasked(recording):
    """A run without the call leaves ``logging`` as it is."""
    assert logging.getLogRecordFactory() is logging.LogRecord


def test_failure_inside(recording, lines, monkeypatch):
    """Where the ids cannot be found the line is written without them."""
    om.log_ids()
    recording.may_fail = True
    monkeypatch.setattr(faults, "log", logging.getLogger("silent"))
    monkeypatch.setattr("opentelemetry.trace.get_current_span", None)
    _log.warning("x")

    assert lines[0][:3] == ["x", "0", "0"]
