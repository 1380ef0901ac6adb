"""Work of devices is grouped by what launched it, and none is lost or counted twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from kineto_traces import (
    event,
    graph_capture,
    graph_replay,
    kernel,
    launch,
    operator,
    real_traces,
    training_step,
    write_trace,
)

from otel_mlperf.kineto.counting.captured_graphs import read_captures
from otel_mlperf.kineto.counting.launched_work import find_launches
from otel_mlperf.kineto.counting.replayed_graphs import match_replays
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.store.window_facts import KERNEL


def launches_of(path):
    trace = read_trace(path)
    return find_launches(trace, link(trace))


def test_a_kernel_bears_its_operator_section_and_shapes(tmp_path):
    """The innermost operator, the innermost annotation, and what both were given."""
    given = {"Input Dims": [[64, 128], []], "Input type": ["float", "Scalar"]}
    path = write_trace(
        tmp_path / "t.json",
        [
            event("forward", 0, 100, category="user_annotation"),
            operator("aten::linear", 10, 50),
            operator("aten::addmm", 20, 30, **given),
            launch(25, 5, 1),
            kernel("gemm", 200, 60, 1, grid=[8, 1, 1], block=[128, 1, 1]),
            launch(70, 5, 2, name="cudaMemcpyAsync"),
            event("Memcpy HtoD (Pinned -> Device)", 300, 7, category="gpu_memcpy", pid=0, tid=7,
                  device=0, stream=7, correlation=2, bytes=4096),
        ],
    )  # fmt: skip

    copy, gemm = sorted(launches_of(path), key=lambda one: one.name)

    assert (gemm.operator, gemm.section, gemm.count, gemm.total_ns) == (
        "aten::addmm",
        "forward",
        1,
        60_000,
    )
    assert gemm.inputs == '[[64, 128], []] ["float", "Scalar"]'
    assert gemm.launch == "grid [8, 1, 1], block [128, 1, 1]"
    assert (copy.operator, copy.section, copy.launch) == ("", "forward", "4096 bytes")


def test_work_of_a_graph_is_its_captures(tmp_path):
    """The operator around the launch of the whole graph launched none of it."""
    captured = write_trace(tmp_path / "capture.json", graph_capture(("aten::mm", "gemm")))
    trace = read_trace(write_trace(tmp_path / "t.json", graph_replay("gemm", vendor="hip")))
    links = link(trace)

    (found,) = find_launches(
        trace, links, replayed=match_replays(trace, links, read_captures(captured))
    )

    assert (found.operator, found.inputs) == ("aten::mm", "")


@pytest.mark.parametrize("path", real_traces())
def test_launches_come_to_what_kernels_and_sections_do(path):
    """Of each name the same calls, the same time, and the same time in its main section."""
    trace = read_trace(path)
    links = link(trace)
    calls, spent, in_section = defaultdict(int), defaultdict(int), defaultdict(int)
    for one in find_launches(trace, links):
        calls[one.name] += one.count
        spent[one.name] += one.total_ns
        in_section[one.name, one.section] += one.total_ns

    totals = [total for total in count(trace, links).totals if total.what == KERNEL]

    assert {total.name: total.count for total in totals} == calls
    assert {total.name: total.total_ns for total in totals} == spent
    for total in totals:
        if total.section:
            assert in_section[total.name, total.section] == total.section_ns


def test_a_trace_without_a_device_has_none(tmp_path):
    """Nor does that of a step whose kernels are gone."""
    path = write_trace(tmp_path / "t.json", training_step()[:3])

    assert launches_of(path) == []
