"""Kernels of a graph get the operators of its capture, and none if that is not certain."""

from __future__ import annotations

import pytest
from kineto_traces import (
    event,
    graph_capture,
    graph_replay,
    kernel,
    launch,
    operator,
    write_trace,
)

from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
from otel_mlperf.kineto.counting.captured_graphs import read_captures
from otel_mlperf.kineto.counting.replayed_graphs import (
    CONTRADICTED,
    NO_OPERATOR,
    NOT_CAPTURED,
    match_replays,
)
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

GRAPH = (("aten::mm", "gemm"), ("aten::add", "add"), ("aten::mm", "gemm"))


def warm_up(*nodes, start=10_000):
    """The same operators before a capture, each with the record of its kernel."""
    return [
        entry
        for at, (name, kernel_name) in enumerate(nodes)
        for entry in (
            operator(name, start + 20 * at, 15),
            launch(start + 20 * at + 5, 2, start + at),
            kernel(kernel_name, start + 500 + 20 * at, 10, start + at),
        )
    ]


@pytest.fixture
def matched(tmp_path):
    """What two traces come to, and the rows of the replay's tables."""

    def match(captured, replayed):
        captures = read_captures(write_trace(tmp_path / "capture.json", captured))
        trace = read_trace(write_trace(tmp_path / "replay.json", replayed))
        links = link(trace)
        found = match_replays(trace, links, captures)
        return found.facts, rows_of(trace, count(trace, links, replayed=found), links.orphans)

    return match


def on_device(rows):
    """Name, category, calls and microseconds on the device of the operators that have any."""
    table = find_kernels(rows, "t", "operator").rows
    return {
        (row.name, row.category): (row.calls, row.device_ns // 1000)
        for row in table
        if row.device_ns
    }


def test_kernels_of_a_graph_have_the_operators_of_its_capture(matched):
    """Of each of its launches, as the calls of ROCm name the kernels."""
    launches = [
        *graph_replay("gemm", "add", "gemm"),
        *graph_replay("gemm", "add", "gemm", start=900, number=8),
    ]
    found, rows = matched(graph_capture(*GRAPH), launches)

    assert (found.work, found.matched, found.unmatched) == (6, 6, {})
    assert on_device(rows) == {
        ("aten::mm", "captured"): (4, 32),
        ("aten::add", "captured"): (2, 16),
    }
    assert find_kernels(rows, "t", "operator").windows[0].captured.capture == "capture.json"


def test_tables_add_up_with_a_capture_too(matched):
    """What it explains, what it does not, and what ran by itself are all of the device's work."""
    launches = [*graph_replay("gemm", "add", "gemm"), *graph_replay("other", start=900, number=8)]
    _, rows = matched(graph_capture(*GRAPH), [*launches, *warm_up(*GRAPH[:1])])

    found = find_kernels(rows, "t", "operator")
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert on_device(rows)["Region", "cpu_op"] == (2, 8)  # of the launch that is not explained


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("gemm", "add"), id="fewer"),
        pytest.param(("gemm", "add", "gemm", "add"), id="more"),
        pytest.param(("add", "gemm", "gemm"), id="another order"),
        pytest.param(("gemm", "add", "gemm_2"), id="another name"),
    ],
)
def test_a_graph_unlike_the_captured_one_keeps_what_launched_it(matched, kernels):
    """One piece that differs is enough: none of its kernels gets an operator."""
    found, rows = matched(graph_capture(*GRAPH), graph_replay(*kernels))

    assert (found.matched, found.unmatched) == (0, {NOT_CAPTURED: len(kernels)})
    assert on_device(rows) == {("Region", "cpu_op"): (1, 8 * len(kernels))}


def test_captures_that_differ_only_in_their_operators_say_nothing(matched):
    """Which of them is replayed cannot be known; where they agree it need not be."""
    other = (("aten::bmm", "gemm"), *GRAPH[1:])
    twice = [*graph_capture(*GRAPH), *graph_capture(*GRAPH, start=500)]
    graph = graph_replay("gemm", "add", "gemm")

    assert matched(twice, graph)[0].matched == 3
    found, _ = matched([*graph_capture(*GRAPH), *graph_capture(*other, start=500)], graph)
    assert (found.captures, found.matched, found.unmatched) == (
        2,
        0,
        {CONTRADICTED: 3},
    )


def test_a_trace_without_a_capture_explains_no_graph(matched):
    """An operator that launched such a kernel by itself is no proof."""
    found, _ = matched(warm_up(*GRAPH), graph_replay("gemm", "add", "gemm"))

    assert (found.captures, found.matched, found.unmatched) == (
        0,
        0,
        {NOT_CAPTURED: 3},
    )


def test_what_was_captured_in_no_operator_stays_with_its_launch(matched):
    """The sequence is the same; of that piece nobody knows more."""
    found, rows = matched(graph_capture(("", "raw"), *GRAPH[:1]), graph_replay("raw", "gemm"))

    assert (found.matched, found.unmatched) == (1, {NO_OPERATOR: 1})
    assert on_device(rows) == {("aten::mm", "captured"): (1, 8), ("Region", "cpu_op"): (1, 8)}


def test_calls_that_do_not_name_their_kernels_are_known_by_their_operators(matched):
    """CUDA's: the kernel is one that the operator is seen to launch in the rounds before."""
    graph = graph_replay("gemm", "add", "gemm", vendor="cuda")
    nameless = graph_capture(*GRAPH, vendor="cuda")

    assert matched([*warm_up(*GRAPH), *nameless], graph)[0].matched == 3
    assert matched(nameless, graph)[0].unmatched == {NOT_CAPTURED: 3}
    unlike = graph_replay("gemm", "gemm", "gemm", vendor="cuda")
    assert matched([*warm_up(*GRAPH), *nameless], unlike)[0].unmatched == {NOT_CAPTURED: 3}


def test_nodes_are_ordered_by_their_number_where_it_is_told(matched):
    """Branches of a graph run beside each other, in any order."""
    call, *kernels = graph_replay("add", "gemm")[1:]
    numbered = [
        one | {"args": one["args"] | {"graph id": 3, "graph node id": node}}
        for one, node in zip(kernels, (12884901889, 12884901888), strict=True)
    ]

    assert matched(graph_capture(*GRAPH[:2]), [call, *kernels])[0].matched == 0
    assert matched(graph_capture(*GRAPH[:2]), [call, *numbered])[0].matched == 2


def test_copies_of_a_graph_match_calls_that_copy(matched):
    """They have no name before they run; a kernel in their place is another graph."""
    call = launch(25, 2, 99, name="hipMemcpyAsync")
    captured = [*graph_capture(*GRAPH[:1]), operator("aten::copy_", 24, 4), call]
    copies = [
        event(name, 60, 5, category="gpu_memcpy", pid=0, tid=7, correlation=7, device=0, stream=7)
        for name in ("Memcpy DtoD (Device -> Device)",)
    ]

    found, rows = matched(captured, [*graph_replay("gemm"), *copies])
    assert found.matched == 2
    assert on_device(rows)["aten::copy_", "captured"] == (1, 5)
    assert matched(captured, graph_replay("gemm", "copy"))[0].matched == 0


def test_what_ran_during_a_capture_is_no_node_of_it(matched):
    """A launch whose kernel has a record went to another stream."""
    beside = [operator("aten::rand", 20, 4), launch(21, 2, 55), kernel("rand", 30, 5, 55)]
    found, _ = matched([*graph_capture(*GRAPH), *beside], graph_replay("gemm", "add", "gemm"))

    assert found.matched == 3
