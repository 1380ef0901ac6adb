"""Profiled calls of all ranks add up, and their tables are readable."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from run_folders import RunFolderBuilder

from otel_mlperf.analysis.profiles.hot_spots import find_hot
from otel_mlperf.report.hot_table import render_hot
from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth, append_growth
from otel_mlperf.run_files.hot_file import HotSpot, ProfiledCall, append_call
from otel_mlperf.run_files.run_file import RunFile
from otel_mlperf.store.run_folders import RunFolder
from otel_mlperf.tables import TABLES

MS = 1_000_000


def call(**more):
    about = {"section": "forward", "category": "forward", "phase": "train", "kind": "calls"}
    return ProfiledCall(**(about | {"rank": 0, "restart": 0, "unix_ns": 1} | more))


def function(name, own_ms, calls, file="model.py"):
    times = {"own_ns": own_ms * MS, "total_ns": 2 * own_ms * MS}
    return HotSpot(name=name, file=file, line=3, calls=calls, **times)


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has nothing yet."""
    return RunFolder(tmp_path, RunFile(id="0123abcd", name="digits", started_ns=1))


def test_ranks_add_up(run):
    """A function's calls and times are those of all ranks, its share is of all their time."""
    for rank, own in ((0, 10), (1, 30)):
        spots = [function("attention", own, 4), function("norm", 5, 2)]
        append_call(str(run.path), 7, call(rank=rank, duration_ns=50 * MS, spots=spots))
    (section,) = find_hot(run).sections
    first, second = section.spots
    assert (section.calls, section.ranks, section.duration_ns) == (2, 2, 100 * MS)
    assert (first.name, first.calls, first.own_ns, first.share) == ("attention", 8, 40 * MS, 0.4)
    assert (second.name, second.total_ns, second.share) == ("norm", 20 * MS, 0.1)
    assert find_hot(run, rank=1).sections[0].calls == 1
    assert not find_hot(run, section="backward").sections


def test_left_out(run):
    """Calls of which nothing is known are counted by their reason, and in no figure."""
    append_call(str(run.path), 7, call(duration_ns=MS, passed_over=2))
    append_call(str(run.path), 7, call(duration_ns=MS, left_out="another profiler was active"))
    (section,) = find_hot(run).sections
    assert (section.calls, section.duration_ns, section.passed_over) == (1, MS, 2)
    assert section.left_out == {"another profiler was active": 1}


def test_cut_line(run):
    """A line that is cut, because the disk was full, takes no other with it."""
    append_call(str(run.path), 7, call(duration_ns=MS))
    (file,) = (run.path / "hot").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    append_call(str(run.path), 8, call(duration_ns=MS))
    (section,) = find_hot(run).sections
    assert section.calls == 2


def test_private(run):
    """Nobody else may read what was profiled."""
    append_call(str(run.path), 7, call())
    (file,) = (run.path / "hot").iterdir()
    assert (file.stat().st_mode & 0o77, file.parent.stat().st_mode & 0o77) == (0, 0)


def test_tables(run):
    """A table fits its width, tells of paths the end, and shows no character that would command."""
    deep = str(Path("/venv", *(["folder"] * 30), "layer.py"))
    spots = [function("a" * 90 + "\x1b[31m", 30, 4, deep), function("norm", 1, 2)]
    append_call(str(run.path), 7, call(duration_ns=50 * MS, spots=spots))
    kept = HotSpot(file="cache.py", line=9, kept_bytes=1000, blocks=3)
    told = {"kind": "memory", "kept_bytes": 1000, "peak_bytes": 4000, "spots": [kept]}
    append_call(str(run.path), 7, call(**told))
    text = render_hot(find_hot(run))
    assert "layer.py:3" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "  1.00 kB    100 %        3  cache.py:9" in text
    assert msgspec.json.encode(find_hot(run))


def test_table_of_lines(run):
    """Lines of a function say how long they took, how often they ran and where they stand."""
    line = HotSpot(name="collate", file="data.py", line=7, calls=1200, own_ns=30 * MS)
    append_call(str(run.path), 7, call(kind="lines", duration_ns=40 * MS, spots=[line]))
    head, titles, row = render_hot(find_hot(run)).splitlines()
    assert head.startswith("forward: 1 profiled call, 40.0 ms in total")
    assert titles.split() == ["time", "share", "runs", "where"]
    assert row.split() == ["30.0", "ms", "75", "%", "1,200", "collate", "data.py:7"]


def test_nothing_profiled(run):
    """A run without a profiled call says how to ask for one."""
    assert "span(name, profile='calls')" in render_hot(find_hot(run))


def grown(name="model.Batch", at=1, **about):
    row = GrowthRow(what="type", name=name, count=4, bytes=2000, now_count=9, now_bytes=4500)
    return MemoryGrowth(rows=[row], begin_ns=at * MS, end_ns=2 * at * MS, bytes=2000, **about)


def test_growth_of_all_ranks(run):
    """What grew is there in the order in which it was asked for; of one section there is none."""
    for rank, at in ((1, 3), (0, 2)):
        append_growth(str(run.path), 7, grown(at=at, rank=rank))
    assert [one.rank for one in find_hot(run).growths] == [0, 1]
    assert [one.rank for one in find_hot(run, rank=1).growths] == [1]
    assert find_hot(run, section="forward").growths == []


def test_table_of_growth(run):
    """It stands below the sections, says what all came to, and shows nothing that would command."""
    append_call(str(run.path), 7, call(duration_ns=MS))
    about = {"resident_bytes": -3_000_000, "steps": 12, "rank": 2, "missing": ["sites: off"]}
    append_growth(str(run.path), 7, grown("a" * 90 + "\x1b[31m", **about))
    above, below = render_hot(find_hot(run)).split("\n\n")
    head, rest, missing, titles, row = below.splitlines()
    assert above.startswith("forward: ")
    assert head == "memory growth of rank 2 in 1.00 ms, 12 steps: process -3.00 MB, tensors 0 B,"
    assert rest == "objects +2.00 kB"
    assert missing == "  missing: sites: off"
    assert titles.split() == ["growth", "added", "current", "objects"]
    assert row.split()[:4] == ["+2.00", "kB", "+4", "9"]
    assert "\x1b" not in below
    assert max(map(len, below.splitlines())) <= 80


def test_many_growths(run):
    """The last ones are shown, and how many others there are."""
    for at in range(1, 9):
        append_growth(str(run.path), 7, grown(f"model.Batch{at}", at))
    shown = render_hot(find_hot(run))
    assert "3 earlier points" in shown
    assert "model.Batch8" in shown
    assert "model.Batch3" not in shown


FRAMES = [
    ("model.py(14): attention", "forward", 4, 10, 60),
    ("<built-in function pread>", "data.load", 2, 5, 5),
    ("site-packages/otel_mlperf/recorder/api/span.py(9): span", "forward", 9, 70, 70),
]
"""Name, section, calls, own time and all of it in ms, as the table of totals has them."""


def filled(table, **fields):
    """A row with what is not given left empty."""
    empty = {"text": "", "word": "", "bool": False}
    return {
        column.name: None if column.null else empty.get(column.type, 0) for column in TABLES[table]
    } | fields


@pytest.fixture
def windows(tmp_path):
    """A run with profiler windows of 100 ms on three ranks, with stacks on two of them."""
    builder = RunFolderBuilder(tmp_path)
    for rank, frames in enumerate(([], FRAMES, FRAMES)):
        about = {"rank": rank, "restart": 0, "digest": f"window {rank}"}
        builder.row("windows", **filled("windows", **about, start_ns=0, end_ns=100 * MS))
        for name, section, calls, own, total in frames:
            times = {"section_ns": own * MS, "self_ns": own * MS, "total_ns": total * MS}
            named = {"what": "python", "name": name, "section": section}
            builder.row("totals", **filled("totals", **about, **named, **times, count=calls))
    path = builder.write()
    return RunFolder(path, RunFile(id="3f2a9c0d17e84b55", name="digits", started_ns=1))


def test_functions_of_profiler_windows(windows):
    """By their own time on all ranks that recorded stacks, as a share of those windows."""
    (found,) = find_hot(windows).sections
    first, second = found.spots
    assert (found.kind, found.calls, found.ranks, found.duration_ns) == ("window", 2, 2, 200 * MS)
    assert (first.name, first.file, first.line) == ("attention", "model.py", 14)
    assert (first.calls, first.own_ns, first.total_ns) == (8, 20 * MS, 120 * MS)
    assert (first.share, first.within) == (0.1, "forward")
    assert (second.name, second.file, second.line) == ("built-in function pread", "", 0)


def test_functions_of_windows_of_one_section_or_rank(windows):
    """Those that are mostly in it; those that it recorded."""
    (of_section,) = find_hot(windows, section="data.load").sections
    (of_rank,) = find_hot(windows, rank=2).sections
    assert [spot.name for spot in of_section.spots] == ["built-in function pread"]
    assert (of_rank.calls, of_rank.spots[0].calls) == (1, 4)
    assert find_hot(windows, rank=0).sections == find_hot(windows, section="backward").sections
    assert not find_hot(windows, rank=0).sections


def test_functions_of_windows_as_a_table(windows):
    """Under what they are, with the numbers of a profiled section."""
    lines = render_hot(find_hot(windows)).splitlines()
    assert lines[0] == (
        "profiler windows: 2 windows on 2 ranks, 200 ms, self times without operators"
    )
    assert lines[1].split() == ["self", "share", "total", "calls", "where"]
    assert lines[2].split() == [
        "20.0",
        "ms",
        "10",
        "%",
        "120",
        "ms",
        "8",
        "attention",
        "model.py:14",
    ]
