"""Garbage collections are counted, by generation and with their time, and never in the way."""

from __future__ import annotations

import gc
import os
import struct
import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Flag
from otel_mlperf.recorder.instruments.garbage_collection import PAUSE_NS, watch_garbage

METRICS = (names.GC_COLLECTIONS, names.GC_COLLECTED, names.GC_UNCOLLECTABLE, names.GC_TIME)


@pytest.fixture(autouse=True)
def _only_on_demand():
    """Collections are those that the test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def recording(start):
    """An active run that counts collections."""
    return start(readings="basic")


def counted(recording):
    """Value by metric and generation."""
    return {
        (name, int(labels[0][1])): struct.unpack("<d", cells[0][0].to_bytes(8, "little"))[0]
        for (_, name, _, labels), cells in recording.cells().items()
        if labels  # the process's first run says what its imports took, too
    }


def make_garbage(number):
    for _ in range(number):
        ring = []
        ring.append(ring)


def test_collections(recording):
    """Each generation's collections are counted, with what they freed and how long they took."""
    gc.collect()
    gc.disable()  # none but those that are asked for, whatever other tests have left
    before = counted(recording)
    make_garbage(10)
    gc.collect(0)
    make_garbage(20)
    gc.collect(2)
    gc.collect(2)
    found = {key: value - before[key] for key, value in counted(recording).items()}
    gc.enable()

    assert [found[names.GC_COLLECTIONS.name, n] for n in range(3)] == [1, 0, 2]
    assert [found[names.GC_COLLECTED.name, n] for n in range(3)] == [10, 0, 20]
    assert [found[names.GC_UNCOLLECTABLE.name, n] for n in range(3)] == [0, 0, 0]
    assert min(found[names.GC_TIME.name, n] for n in (0, 2)) > 0
    assert found[names.GC_TIME.name, 1] == 0


def test_collections_are_those_of_the_interpreter(recording):
    """What is counted is what the interpreter counts, whichever threads collect."""
    before = gc.get_stats()

    def work():
        for _ in range(50):
            make_garbage(3)
            gc.collect(0)

    gc.enable()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.disable()

    grown = [
        [after[key] - was[key] for key in ("collections", "collected", "uncollectable")]
        for was, after in zip(before, gc.get_stats(), strict=True)
    ]
    found = counted(recording)
    assert [[found[m.name, n] for m in METRICS[:3]] for n in range(3)] == grown


def test_nothing_is_left_for_the_collector(recording):
    """Counting leaves no object behind that the next collection would look at."""
    gc.collect()
    gc.collect()
    before = gc.get_count()
    gc.collect(0)

    assert gc.get_count()[0] <= before[0]


def watched(recording, took_ns):
    """Collections of a run whose clock says that each takes ``took_ns``; returns their sections."""
    times = iter(range(10**9, 2 * 10**9, took_ns))
    recorder = recording.recorder
    watch_garbage(recorder, recorder.cells, clock=times.__next__)
    with om.span("forward"):
        gc.collect(2)
    return recording.sections(names.SPAN_COLLECTION)


def test_pause_is_a_section(start):
    """From a millisecond on, with its times, its thread and the generation."""
    (pause,) = watched(start(), PAUSE_NS)

    assert (pause.start, pause.end) == (10**9, 10**9 + PAUSE_NS)
    assert (pause.track, pause.flags & Flag.PAUSE) == (threading.get_ident(), Flag.PAUSE)
    assert (pause.category, pause.phase) == (names.GARBAGE_COLLECTION, names.TRAIN)
    assert pause.constant == {names.GC_GENERATION: "2"}


def test_shorter_collection_is_only_counted(start):
    """One that nobody would see in a step writes no row."""
    recording = start()
    sections = watched(recording, PAUSE_NS - 1)

    assert sections == []
    assert counted(recording)[names.GC_COLLECTIONS.name, 2] == 1
    assert counted(recording)[names.GC_TIME.name, 2] == pytest.approx((PAUSE_NS - 1) / 1e9)


def test_pause_leaves_nothing_for_the_collector(start):
    """Its row is bytes, and its name is known from the first one on."""
    recording = start()
    watched(recording, PAUSE_NS)
    gc.collect(0)
    gc.collect(0)
    before = gc.get_count()
    gc.collect(0)

    assert gc.get_count()[0] <= before[0]
    assert len(recording.sections(names.SPAN_COLLECTION)) == 4


def test_ends_with_the_run(start):
    """The interpreter calls nothing of ours before the run and after it."""
    before = list(gc.callbacks)
    start(readings="basic")
    during = len(gc.callbacks)
    om.stop()

    assert during > len(before)
    assert gc.callbacks == before


@pytest.mark.parametrize(
    "settings", [{"readings": "basic", "disabled_readings": "gc"}, {"readings": "none"}]
)
def test_switched_off(start, settings):
    """Collections are not counted where that is switched off."""
    recording = start(**settings)
    gc.collect()

    assert counted(recording) == {}


def test_program_that_clears_the_callbacks(start):
    """A program that takes all callbacks away gets no error when the run ends."""
    others = list(gc.callbacks)
    start(readings="basic")
    gc.callbacks.clear()
    om.stop()

    gc.callbacks[:] = others


def test_forked_child(recording):
    """Collections of a forked child are not counted in the parent's journal."""
    pid = os.fork()
    if not pid:
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)

    assert counted(recording)[names.GC_COLLECTIONS.name, 2] == 0
