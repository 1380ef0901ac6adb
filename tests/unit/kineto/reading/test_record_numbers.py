"""The profiler's own numbers of its records are summarised as they are in the file."""

from __future__ import annotations

from kineto_traces import BASE_NS, allocation, event, operator, write_trace

from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NumberedRecords, TraceTrack


def test_each_category_is_a_line_with_the_first_and_the_last_number(tmp_path):
    """A number that is there twice counts once; records without one are none."""
    frame = {"category": "python_function", "tid": 1}
    memory = allocation(70, 512)
    memory["args"]["Ev Idx"] = 3
    path = write_trace(
        tmp_path / "t.json",
        [
            operator("aten::a", 20, 5, **{"Ev Idx": 0}),
            operator("aten::b", 30, 5, **{"Ev Idx": 2}),
            operator("aten::b", 30, 5, **{"Ev Idx": 2}),
            operator("aten::c", 90, 5),
            memory,
            event("train.py(3): f", 10, 80, **frame, **{"Ev Idx": 9}),
        ],
    )

    def at(us):
        return BASE_NS + us * 1000

    assert sorted(read_trace(path).numbered) == [
        NumberedRecords("cpu_op", 2, 0, 2, at(20), at(30)),
        NumberedRecords("memory", 1, 3, 3, at(70), at(70)),
        NumberedRecords("python_function", 1, 9, 9, at(10), at(10)),
    ]


def test_numbers_take_no_room_in_the_columns(tmp_path):
    """A block of thousands of records leaves one line."""
    many = [operator("aten::a", at, 1, **{"Ev Idx": at}) for at in range(2000)]
    trace = read_trace(write_trace(tmp_path / "t.json", many))

    assert sum(part.records for part in trace.numbered) == 2000
    assert len(trace.numbered) < 10


def test_names_of_rows_without_an_entry_are_kept(tmp_path):
    """The metadata names a stream of which nothing is there."""
    entries = [operator("aten::a", 1, 1)]
    for name, pid, tid in (("stream 20 ", 0, 20), ("main", 4242, 4242)):
        args = {"args": {"name": name}, "ts": 0, "pid": pid, "tid": tid}
        entries.append({"name": "thread_name", "ph": "M", **args})

    trace = read_trace(write_trace(tmp_path / "t.json", entries))

    assert trace.silent_tracks == [TraceTrack("0", "20", "", "stream 20 ")]
