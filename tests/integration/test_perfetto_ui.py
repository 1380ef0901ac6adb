"""The real interface of Perfetto shows what is exported, named, nested and in order."""

from __future__ import annotations

import os

import pytest
from chromium import BrowserMissingError
from perfetto_ui import perfetto_ui
from run_folders import MS, START
from servers.build import REQUIRE
from timeline_run import ARROWS, CPUS, LINES, MARKS, RANK_0, RANK_1, timeline_run

from otel_mlperf.cli.export import export

CPU_TIME, MEMORY, _, LOSS = LINES["rank 0 · node1"][-4:]
SLICES = (
    "SELECT coalesce(thread.name, track.name) AS line, parent.name AS parent, slice.name AS name, "
    "slice.ts AS ts, slice.dur AS dur FROM slice JOIN track ON slice.track_id = track.id "
    "LEFT JOIN slice parent ON slice.parent_id = parent.id "
    "LEFT JOIN thread_track ON thread_track.id = track.id LEFT JOIN thread USING (utid)"
)
PROCESSES = (
    "SELECT process.name AS process, count() AS slices FROM slice JOIN thread_track "
    "ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid) "
    "GROUP BY process.name ORDER BY process.name"
)
FLOWS = (
    "SELECT a.name AS cause, b.name AS effect FROM flow "
    "JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in"
)
PROBLEMS = (
    "SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss') ORDER BY name"
)


@pytest.fixture(scope="module")
def ui(tmp_path_factory):
    """The interface in a browser."""
    try:
        with perfetto_ui(tmp_path_factory.mktemp("traces")) as found:
            yield found
    except BrowserMissingError as reason:
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, but {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def shown(ui, tmp_path_factory):
    """Opens the run in a format; with the name of the file."""
    folder = tmp_path_factory.mktemp("run")
    path = str(timeline_run(folder))

    def show(name, **form):
        export(path, out=str(folder / name), force=True, **form)
        return ui.open(folder / name)

    return show


def test_a_perfetto_trace_is_shown(shown):
    """Ranks with their steps at first sight; below them threads, streams and counters in order."""
    with shown("run.perfetto-trace", perfetto=True) as trace:
        assert trace.query(PROBLEMS, "name") == []
        assert trace.tree() == [
            [rank, [[line, []] for line in lines]] for rank, lines in LINES.items()
        ]
        found = trace.query(SLICES, "line", "parent", "name", "ts", "dur")
        flows = trace.query(FLOWS, "cause", "effect")
        trace.expand()
        for name in ("rank 0 · node1", "MainThread", "device 0 · stream 7", "rank 1 · node2"):
            trace.see(name)

    # Its numbers in the page are doubles: nanoseconds of today are exact to 256.
    slices = [(*one, round((at - START) / MS), lasted // MS) for *one, at, lasted in found]
    assert sorted(map(str, slices)) == sorted(map(str, RANK_0 + RANK_1 + MARKS))
    assert sorted(flows) == ARROWS


def test_counters_of_a_perfetto_trace_are_shown(shown):
    """With their values, from when they were read."""
    sql = (
        "SELECT track.name AS name, ts, value FROM counter JOIN track ON track_id = track.id "
        "WHERE track.name NOT LIKE 'step %' ORDER BY name, ts"
    )
    with shown("counters.perfetto-trace", perfetto=True) as trace:
        found = trace.query(sql, "name", "ts", "value")

    values = {name: [] for name in (CPU_TIME, MEMORY, LOSS)}
    for name, at, value in found:
        values[name].append((round((at - START) / MS), value))
    assert values == {
        CPU_TIME: [(at, pytest.approx(value)) for at, value in CPUS],
        MEMORY: [(0, 1e9), (50, 2e9), (150, 1.5e9)],
        LOSS: [(190, 0.5)],
    }


def test_a_chrome_trace_is_shown(shown):
    """Ranks are processes; the slices nest as in the other format."""
    with shown("run.json", chrome=True) as trace:
        assert trace.query(PROBLEMS, "name") == []
        assert [name for name, _ in trace.tree()] == ["rank 0 · node1 0", "rank 1 · node2 1"]
        found = trace.query(SLICES, "line", "parent", "name", "ts", "dur")
        processes = trace.query(PROCESSES, "process", "slices")
        flows = trace.query(FLOWS, "cause", "effect")

    slices = [(*one, at // MS, lasted // MS) for *one, at, lasted in found]
    wanted = [
        ("steps" if line.startswith("rank ") else line, *one)
        for line, *one in RANK_0 + RANK_1 + MARKS
    ]
    assert sorted(map(str, slices)) == sorted(map(str, wanted))
    assert processes == [("rank 0 · node1", len(RANK_0 + MARKS)), ("rank 1 · node2", len(RANK_1))]
    assert sorted(flows) == ARROWS
