"""``memory_growth()`` finds growing objects, and leaves the rest of the program alone."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from pathlib import Path

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Flag
from otel_mlperf.run_files.growth_file import read_growths

np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def _quiet():
    """What other tests left is neither looked at, which takes seconds, nor collected meanwhile."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


class Kept:
    """What a program keeps too long."""

    def __init__(self, note):
        self.note = note


def rows(growth, what):
    return {row.name or Path(row.file).name: row for row in growth.rows if row.what == what}


def name_of(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def test_objects_by_type(recording):
    """What is kept is counted with its size, also what the garbage collector does not list."""
    point = om.memory_point()
    kept = [Kept(f"a note of {i} words" * 100) for i in range(50)]
    growth = om.memory_growth(point)
    types = rows(growth, "type")
    assert types[name_of(Kept)].count == types[name_of(Kept)].now_count == 50
    notes = sum(len(one.note) for one in kept)
    assert types["str"].count >= 50
    assert types["str"].bytes >= notes
    assert growth.bytes >= notes
    assert growth.missing == []


def test_what_was_let_go_has_not_grown(recording):
    """Only what is there at the second point counts; what was there at the first one does not."""
    before = [Kept("") for _ in range(30)]
    point = om.memory_point()
    passing = [Kept("") for _ in range(40)]
    del passing
    growth = om.memory_growth(point)
    assert name_of(Kept) not in rows(growth, "type")
    assert len(before) == 30


def test_points_are_not_among_what_they_count(recording):
    """A program that holds many of them sees none, nor what is in them."""
    first = om.memory_point()
    points = [om.memory_point() for _ in range(20)]
    growth = om.memory_growth(first)
    types = rows(growth, "type")
    assert name_of(om.MemoryPoint) not in types
    held = sum(len(point.counted) for point in points)
    assert "bytes" not in types or types["bytes"].bytes < held / 10


def test_no_code_of_the_program_runs(recording):
    """Whatever a class and its class put in the place of Python's own answers, none is asked."""
    asked = []

    def trap(name):
        def method(self, *args, **named):
            asked.append(name)
            raise AssertionError(name)

        return method

    names = ("__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "__getattribute__")
    meta = type("Meta", (type,), {})
    body = {name: trap(name) for name in ("__eq__", "__hash__", "__sizeof__", "__getattribute__")}
    body |= {"__class__": property(trap("__class__")), "__bool__": trap("__bool__")}
    kind = meta("Trapped", (list,), body | {"__len__": trap("__len__")})
    for name in names:
        type.__setattr__(meta, name, trap(f"meta {name}"))
    point = om.memory_point()
    kept = tuple(list.__new__(kind) for _ in range(7))
    growth = om.memory_growth(point)
    found = [row for row in growth.rows if row.name.endswith("Trapped")]
    assert asked == []
    assert [row.count for row in found] == [len(kept)] == [7]
    assert found[0].bytes >= 7 * list.__sizeof__([])


def test_nothing_is_kept_alive(recording):
    """What was counted goes as the program lets it go; a collector that is off stays off."""
    thing = Kept("")
    gone = weakref.ref(thing)
    growth = om.memory_growth(om.memory_point())
    del thing
    assert gone() is None
    assert not gc.isenabled()
    assert growth.end_ns >= growth.begin_ns


def test_memory_that_arrays_only_look_into(recording):
    """An array that is a part of a larger one keeps all of it, and it is counted, once."""
    point = om.memory_point()
    kept = [np.zeros(100_000)[:2], *np.zeros((2, 100_000))]
    growth = om.memory_growth(point)
    row = rows(growth, "type")["numpy.ndarray"]
    assert len(kept) == 3
    assert row.count == 5
    assert 2_400_000 <= row.bytes < 2_410_000


def test_allocation_sites(recording):
    """Each line that allocated what stays, with blocks and bytes; nothing is traced afterwards."""
    point = om.memory_point(sites=True)
    assert tracemalloc.is_tracing()
    kept = [bytearray(10_000) for _ in range(30)]
    passing = bytearray(1_000_000)
    del passing
    growth = om.memory_growth(point)
    assert not tracemalloc.is_tracing()
    first = next(row for row in growth.rows if row.what == "site")
    line = test_allocation_sites.__code__.co_firstlineno + 4
    assert (first.file, first.line) == (__file__, line)
    assert 300_000 <= first.bytes < 310_000
    assert first.count >= len(kept)
    again = om.memory_growth(point)
    assert not rows(again, "site")
    assert "tracemalloc" in again.missing[0]


def test_sites_where_the_program_traces(recording):
    """Only what came since the point counts, and the program's tracing goes on."""
    tracemalloc.start()
    try:
        before = [bytearray(50_000)]
        point = om.memory_point(sites=True)
        before += [bytearray(10_000)]
        growth = om.memory_growth(point)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    line = test_sites_where_the_program_traces.__code__.co_firstlineno + 6
    (row,) = (row for row in growth.rows if (row.file, row.line) == (__file__, line))
    assert 10_000 <= row.bytes < 11_000
    assert len(before) == 2


def test_two_points_that_trace(recording):
    """It goes on until the last of them is asked about."""
    first, second = om.memory_point(sites=True), om.memory_point(sites=True)
    om.memory_growth(first)
    assert tracemalloc.is_tracing()
    assert om.memory_growth(second).missing == []
    assert not tracemalloc.is_tracing()


def test_run_that_ends_traces_no_longer(recording):
    """A point that nobody asks about leaves nothing on, and says afterwards that nothing is."""
    point = om.memory_point(sites=True)
    recording.run.stop()
    assert not tracemalloc.is_tracing()
    growth = om.memory_growth(point)
    assert growth.rows == []
    assert growth.missing == ["nothing was recorded at one of the two points"]


def test_forked_child_traces_no_longer(recording):
    """A child goes on without; the parent's tracing stays."""
    point = om.memory_point(sites=True)
    pid = os.fork()
    if not pid:
        os._exit(3 if tracemalloc.is_tracing() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert tracemalloc.is_tracing()
    assert om.memory_growth(point).missing == []


def test_while_nothing_is_recorded():
    """It is empty and says why; nothing is counted or traced, and no argument makes it raise."""
    point = om.memory_point(sites=True)
    assert (point.counted, tracemalloc.is_tracing()) == (b"", False)
    growth = om.memory_growth(point)
    assert (growth.rows, growth.bytes, growth.resident_bytes) == ([], 0, None)
    assert growth.missing == ["nothing was recorded at one of the two points"]
    assert "nothing was recorded" in str(growth)


def test_point_of_before_the_run(start):
    """Neither a point from before the recording nor what is none raises; both are told of."""
    point = om.memory_point()
    start()
    assert om.memory_growth(point).missing == ["nothing was recorded at one of the two points"]
    assert "memory_point()" in om.memory_growth("epoch").missing[0]


def test_steps_are_marked(recording):
    """Steps in which it counts, and those while lines are traced, are a profiler's; others not."""
    point = None
    for i in om.steps(range(5)):
        if i == 1:
            point = om.memory_point(sites=True)
        if i == 3:
            om.memory_growth(point)
    slowed = [bool(row.flags & Flag.PROFILED) for row in recording.sections("train.step")]
    assert slowed == [False, True, True, True, False]


def test_steps_between(recording):
    """It says how many training steps lie between the points."""
    point = om.memory_point()
    for _ in om.steps(range(4)):
        pass
    assert om.memory_growth(point).steps == 4


def test_is_kept_and_printed(recording):
    """What was told is in the run folder as it was, for nobody else to read, and prints a table."""
    point = om.memory_point()
    kept = [Kept("") for _ in range(9)]
    growth = om.memory_growth(point)
    assert list(read_growths(recording.run.path)) == [growth]
    (file,) = (recording.run.path / "growth").iterdir()
    assert (file.stat().st_mode & 0o77, file.parent.stat().st_mode & 0o77) == (0, 0)
    shown = str(growth)
    assert f"+{len(kept)}" in shown
    assert "test_memory_growth.Kept" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "test_memory_growth.Kept" in growth._repr_html_()


def test_rows_that_are_too_many(recording, monkeypatch):
    """The largest of each kind are there, and how many others there are."""
    monkeypatch.setattr("otel_mlperf.recorder.api.memory_growth._MOST_ROWS", 2)
    point = om.memory_point()
    kept = [type(f"Many{i}", (), {})() for i in range(30)]
    growth = om.memory_growth(point)
    assert len(growth.rows) == 2
    assert growth.more >= len(kept)
    assert "more rows: --top, or --json" in str(growth)


def test_folder_that_refuses_costs_nothing(recording, monkeypatch):
    """What was found is told all the same."""
    (recording.run.path / "growth").write_text("somebody's file")
    point = om.memory_point()
    kept = [Kept("") for _ in range(9)]
    assert rows(om.memory_growth(point), "type")[name_of(Kept)].count == len(kept)
