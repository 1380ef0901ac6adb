"""All arguments of chosen events are found again in the file."""

from __future__ import annotations

import gzip
import json

import pytest
from kineto_traces import event, real_traces, trace_text, training_step, write_trace

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.trace_reader import read_details, read_trace
from otel_mlperf.kineto.reading.value_columns import MAX_NAMES, OTHER_NAMES, NameIndex


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_chosen_events_have_all_their_arguments(tmp_path, name):
    """Nested values, numbers and long texts are as the file has them, in any order of rows."""
    details = [
        {"grid": [row, 1, 1], "share": 0.5, "Stack": "x" * (row % 7 * 9000)} for row in range(300)
    ]
    entries = [event(f"op_{row}", row, 1, **args) for row, args in enumerate(details)]
    trace = read_trace(write_trace(tmp_path / name, entries))

    found = read_details(trace, [299, 0, 150, 5, 5])

    assert found == {row: details[row] for row in (0, 5, 150, 299)}


def test_names_without_end_are_read_in_bounded_memory(tmp_path):
    """Those that differ by a number share a row from some 65,000 upward; steps and times stay."""
    many = MAX_NAMES + 300
    lines = [json.dumps(event(f"op_{at}_v2", at, 1, number=at)) for at in range(many)]
    lines.append(json.dumps(event("ProfilerStep#987", many, 1)))
    path = tmp_path / "t.json"
    path.write_text("[" + ",\n".join(lines) + "]")

    trace = read_trace(path)

    assert trace.damage == []
    assert (len(trace.events), len(trace.names)) == (many + 1, MAX_NAMES + 2)
    assert trace.names[MAX_NAMES - 1 :] == [
        f"op_{MAX_NAMES - 1}_v2",
        "op_#_v#",
        "ProfilerStep#987",
    ]
    assert trace.names[trace.events.name[many - 1]] == "op_#_v#"
    assert read_details(trace, [many - 1]) == {many - 1: {"number": many - 1}}


def test_no_rows_and_no_arguments_are_empty(tmp_path):
    """No rows give nothing; an event without arguments gives an empty dictionary."""
    trace = read_trace(write_trace(tmp_path / "trace.json", training_step()))

    assert read_details(trace, []) == {}
    assert read_details(trace, [0]) == {0: {}}


def test_mended_events_have_their_arguments(tmp_path):
    """What the reader mends, details mend."""
    path = tmp_path / "trace.json"
    text = trace_text([event("NAME", 1, 1, grid=[1, 2]), event("LAST", 2, 1, grid=[3])])
    path.write_text(text.replace("NAME", 'a "b" c').replace("LAST", 'd"'))
    trace = read_trace(path)

    assert read_details(trace, [0, 1]) == {0: {"grid": [1, 2]}, 1: {"grid": [3]}}


def test_a_name_that_is_no_unicode_is_recognised(tmp_path):
    """Half a surrogate pair and invalid bytes in a name do not make it another event."""
    path = tmp_path / "trace.json"
    text = trace_text([event("HALF", 1, 1, a=1), event("BYTES", 2, 1, a=2)]).encode()
    path.write_bytes(text.replace(b"HALF", rb"x\ud800").replace(b"BYTES", b"y\xff"))
    trace = read_trace(path)

    assert read_details(trace, [0, 1]) == {0: {"a": 1}, 1: {"a": 2}}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_that_was_replaced_is_an_error(tmp_path, name):
    """Another event at the place says that the file is another; a missing file says so too."""
    path = write_trace(tmp_path / name, training_step())
    trace = read_trace(path)
    write_trace(path, [event("other", 1, 1, pad="x" * 50) for _ in range(20)])

    with pytest.raises(TraceError, match="import the trace again"):
        read_details(trace, [3])
    path.unlink()
    with pytest.raises(TraceError, match="No such file"):
        read_details(trace, [3])


@pytest.mark.parametrize("path", real_traces())
def test_recorded_arguments_equal_plain_json(path):
    """Of every fortieth event of a recorded trace, all arguments equal those of json.load."""
    data = path.read_bytes()
    plain = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    events = [entry for entry in plain["traceEvents"] if entry["ph"] == "X"]
    rows = range(0, len(events), 40)

    details = read_details(read_trace(path), rows)

    assert details == {row: events[row].get("args", {}) for row in rows}


def test_names_that_differ_by_more_than_numbers_are_one_in_the_end():
    """Nothing grows with the file for ever."""
    index = NameIndex()
    letters = [f"{chr(97 + at % 26)}{chr(97 + at // 26 % 26)}{chr(97 + at // 676 % 26)}"
               f"{chr(97 + at // 17_576)}" for at in range(MAX_NAMES + 9_000)]  # fmt: skip

    numbers = [index[name] for name in letters]

    assert len(index.things()) < MAX_NAMES + 5_000
    assert index.things()[numbers[-1]] == OTHER_NAMES
    assert index.things()[numbers[7]] == letters[7]
