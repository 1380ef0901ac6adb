"""Is everything that is open closed, once, when a run ends?"""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, Word


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_run_that_ends_in_a_full_journal_waits_for_room(start, monkeypatch, error):
    """Its own row says how it ended; a header word does where there is no room to the last."""
    recording = start(rows=2048)
    recorder, none = recording.recorder, recording.recorder.config
    monkeypatch.setattr("otel_mlperf.recorder.lifecycle.closing._ROOM_S", 60.0)
    for _ in range(3000):
        with om.span("tiny"):
            pass

    def make_room():
        while not recording.word(Word.END_TIME):
            os.sched_yield()
        assert not recording.sections(names.SPAN_RUN)
        recording.reader.free()
        recorder.config = none

    recorder.config = dataclasses.replace(none, agent="process")
    reader = threading.Thread(target=make_room)
    reader.start()
    recording.run.__exit__(type(error), error, None)
    reader.join()

    row = recording.one(names.SPAN_RUN)
    assert row.end == recording.word(Word.END_TIME)
    assert row.is_error == bool(recording.word(Word.FAILED)) == bool(error)


def test_open_sections_at_stop(recording):
    """Sections that are open when the run stops end with it, of all threads."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside"):
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    with om.span("outer"), om.step(), om.span("inner"):
        om.stop()
    go_on.set()
    thread.join()

    for name in ("outer", "train.step", "inner", "beside", "run"):
        assert not recording.one(name).is_error
    assert recording.one("inner").parent == recording.one("train.step").span
    assert recording.open() == []


def test_section_that_is_about_to_end_at_stop(recording):
    """A thread that has written its row, and not yet cleared its entry, ends its section once."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside") as section:
            more = (section.sid, 0, recording.span, section.track, section.entry, Kind.SECTION)
            recording.journal.put(section.t0, section.t0 + 1, *more)
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    om.stop()
    go_on.set()
    thread.join()

    row = recording.one("beside")
    assert row.end == row.start + 1
    assert recording.open() == []
