"""The rows of every table of a window sum to the total that the table is about."""

from __future__ import annotations

import gzip
import json

import pytest
from kineto_traces import event, kernel, launch, operator, real_traces, write_trace

from otel_mlperf.analysis.profiles.kernel_rows import choose_rows
from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

ADDING_UP = ("kernel", "operator", "section", "phase", "step")


def counted(path):
    """The rows of a trace's tables."""
    trace = read_trace(path)
    links = link(trace)
    return rows_of(trace, count(trace, links), links.orphans)


def written(tmp_path, *entries):
    """The rows of a trace that is written here."""
    return counted(write_trace(tmp_path / "t.json", entries))


def table(rows, by="operator"):
    """Name and measured microseconds of each row of a table."""
    return {row.name: row.measured_ns / 1000 for row in find_kernels(rows, "t", by).rows}


def frame(name, start_us, duration_us, **args):
    """A frame of Python's stack."""
    return event(name, start_us, duration_us, category="python_function", **args)


def test_a_frame_of_python_takes_no_time_from_the_operator_around_it(tmp_path):
    """What a compiled graph's operator spends in its Python code is its own, as without stacks."""
    bare = [operator("CompiledFunction", 0, 500, external=1), operator("mm", 20, 4, external=2)]
    stacks = [frame("output_code.py(40): call", 5, 490), frame("inner", 10, 30)]

    expected = {"CompiledFunction": 496, "mm": 4}
    assert table(written(tmp_path, *bare)) == expected
    assert table(written(tmp_path, *bare, *stacks)) == expected


def test_a_frame_around_operators_keeps_what_is_its_own(tmp_path):
    """The totals of frames are as they were: without all that is inside them."""
    rows = written(tmp_path, frame("fit", 0, 100), frame("step", 10, 50), operator("mm", 20, 30))

    own = {row.name: row.self_ns for row in rows.totals if row.what == "python"}
    assert own == {"fit": 50_000, "step": 20_000}


def test_an_annotation_in_an_operator_has_a_row_of_its_own(tmp_path):
    """Its time is none of the operator's, as in torch; one around operators is none of them."""
    marks = [
        event(name, start, length, category="user_annotation")
        for name, start, length in (("forward", 0, 100), ("hook", 20, 30))
    ]
    rows = written(tmp_path, *marks, operator("Backward", 10, 60), operator("add_", 30, 5))

    assert table(rows) == {"Backward": 30, "hook": 25, "add_": 5}
    together = choose_rows(find_kernels(rows, "t", "operator"), None).together
    assert together.measured_ns == 60_000


def replayed(tmp_path):
    """One operator with its kernel, a graph of three, and a kernel that nobody is known to ask."""
    return written(
        tmp_path,
        operator("aten::mm", 0, 20, external=1),
        launch(5, 2, 1),
        kernel("gemm", 10, 40, 1),
        launch(30, 6, 2, name="cudaGraphLaunch"),
        *(kernel("fused", 60 + 20 * at, 15, 2) for at in range(3)),
        launch(40, 4, 3, name="cudaGraphLaunch"),
        kernel("fused", 130, 15, 3),
        kernel("late", 160, 7, 99),
    )


def test_device_work_in_no_operator_is_told_by_the_call_that_launched_it(tmp_path):
    """A graph's replay by its launches; what nobody is known to have launched by itself."""
    rows = replayed(tmp_path)
    found = find_kernels(rows, "t", "operator")

    told = [
        (row.name, row.category, row.calls, row.measured_ns // 1000, row.total_ns // 1000)
        for row in found.rows
    ]
    assert told == [
        ("cudaGraphLaunch", "device", 2, 60, 10),
        ("aten::mm", "cpu_op", 1, 40, 20),
        ("in no operator", "device", 1, 7, 7),
    ]
    assert sum(row.share for row in found.rows) == pytest.approx(1)


def test_what_is_in_no_section_or_step_has_a_row(tmp_path):
    """So that the rows are all of the device's work."""
    marks = [event(name, 0, 10, category="user_annotation") for name in ("fwd", "ProfilerStep#3")]
    entries = [
        *marks,
        launch(5, 2, 1),
        kernel("gemm", 10, 40, 1),
        launch(30, 2, 2),
        kernel("gemm", 60, 2, 2),
    ]
    rows = written(tmp_path, *entries)

    assert table(rows, "section") == {"fwd": 40, "in no section": 2}
    assert table(rows, "step") == {"ProfilerStep#3": 40, "in no step": 2}
    assert table(rows, "phase") == {}  # nothing is known but what is in none


def test_rows_that_are_not_shown_are_one_row(tmp_path):
    """In JSON as in the text: how many, and what they come to."""
    found = find_kernels(replayed(tmp_path), "t", "operator")
    first = choose_rows(found, 1)

    assert [row.name for row in first.rows] == ["cudaGraphLaunch"]
    assert (first.more.rows, first.more.calls, first.more.measured_ns) == (2, 2, 47_000)
    assert (first.together.rows, first.together.measured_ns) == (3, 107_000)
    assert first.more.share + first.rows[0].share == pytest.approx(first.together.share)
    assert choose_rows(found, None).more is None
    streams = choose_rows(find_kernels(replayed(tmp_path), "t", "stream"), None)
    assert streams.together.measured_ns is None  # they run beside each other


@pytest.mark.parametrize("by", ADDING_UP)
@pytest.mark.parametrize("path", real_traces())
def test_every_table_of_a_real_trace_adds_up(path, by):
    """To the device's work; without a device to the time of the outermost operators."""
    rows = counted(path)
    found = find_kernels(rows, "t", by)
    totals = rows.totals
    if found.is_device:
        whole = sum(row.total_ns for row in totals if row.what == "kernel")
    else:
        whole = sum(
            row.total_ns for row in totals if row.what == "section" and row.category == "host"
        )

    if found.rows:
        assert sum(row.measured_ns for row in found.rows) == whole


@pytest.mark.parametrize("path", real_traces())
def test_stacks_change_no_operator_of_a_real_trace(path, tmp_path):
    """Without its frames of Python it has the same operators, calls and times."""
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    entries = document["traceEvents"]
    document["traceEvents"] = [one for one in entries if one.get("cat") != "python_function"]
    if len(document["traceEvents"]) == len(entries):
        pytest.skip("it has no stacks")
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document))

    with_stacks, without = (
        {
            (row.category, row.name): (row.count, row.total_ns, row.self_ns)
            for row in counted(one).totals
            if row.what == "operator"
        }
        for one in (path, bare)
    )
    assert with_stacks == without
