"""Launches that require an answer are distinguished, and missing answers are located."""

from __future__ import annotations

import pytest
from kineto_traces import event, flow, kernel, launch, named, operator, write_trace

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace


def found_in(tmp_path, entries):
    """What is said of these entries."""
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    return find_completeness(trace, link(trace))


def pairs(numbers, *, stream=7, device=0, caller="aten::mm", apart=100):
    """For each number an operator that launches one kernel."""
    entries = []
    for number in numbers:
        at = number * apart
        entries += [
            operator(caller, at, 50, external=number),
            launch(at + 10, 5, number, **{"External id": number}),
            kernel("gemm", at + 20, 40, number, stream=stream, device=device),
        ]
    return entries


def without_kernels(entries, numbers):
    """The entries without the kernels of these launches."""
    lost = set(numbers)
    return [e for e in entries if not (e["cat"] == "kernel" and e["args"]["correlation"] in lost)]


def said(found):
    """Each loss by its kind, with how many of how many, and where."""
    return [(x.kind, x.missing, x.of, x.device, x.stream) for x in found.losses]


def test_a_launch_in_the_capture_of_a_graph_is_due_no_answer(tmp_path):
    """It runs nothing; launches after it are due one again."""
    entries = [
        *pairs(range(1, 4)),
        launch(500, 3, 50, name="cudaStreamBeginCapture_v2"),
        launch(510, 5, 51),
        launch(520, 5, 52),
        launch(530, 3, 53, name="cudaStreamEndCapture"),
    ]
    assert found_in(tmp_path, entries).losses == []

    found = found_in(tmp_path, [*entries, launch(540, 5, 54)])

    assert said(found) == [("kernel", 1, 4, 0, 7)]


def test_kernels_of_which_ranges_were_measured_have_no_records(tmp_path):
    """CUPTI gives counters of ranges instead of kernels."""
    measured = event("range", 0, 50, category="cuda_profiler_range", pid=0, tid=0)

    assert found_in(tmp_path, [launch(10, 5, 1), launch(20, 5, 2), measured]).losses == []


@pytest.mark.parametrize("name", ["cudaMemsetAsync", "cudaMemcpyAsync", "hipMemcpyWithStream"])
def test_a_copy_that_returns_at_once_was_of_nothing(name, tmp_path):
    """In less than half the time of any launch that was answered; longer ones put work there."""
    assert found_in(tmp_path, [*pairs(range(1, 9)), launch(950, 0.4, 99, name=name)]).losses == []

    found = found_in(tmp_path, [*pairs(range(1, 9)), launch(950, 4, 99, name=name)])

    kind = "memset" if "set" in name else "copy"
    assert [loss[:3] for loss in said(found)] == [(kind, 1, 1)]


def test_one_of_two_calls_in_one_another_is_enough(tmp_path):
    """A runtime's call around a driver's has the work, or the driver's has: both are one launch."""
    driver = {"category": "cuda_driver", "correlation": 98}
    inside = [launch(950, 20, 99), event("cuLaunchKernelEx", 955, 5, **driver)]
    inner = kernel("gemm", 960, 9, 98)

    assert found_in(tmp_path, [*pairs([1]), *inside, inner]).losses == []
    outer = kernel("gemm", 960, 9, 99)
    assert found_in(tmp_path, [*pairs([1]), *inside, outer]).losses == []
    assert said(found_in(tmp_path, [*pairs([1]), *inside])) == [("kernel", 1, 2, 0, 7)]


def test_what_is_missing_is_on_the_stream_of_its_operator(tmp_path):
    """On the one on which most launches of operators of that name are answered."""
    entries = pairs(range(1, 30, 2)) + pairs(range(2, 30, 2), stream=9, caller="nccl:all_reduce")

    found = found_in(tmp_path, without_kernels(entries, [4, 10, 11]))

    assert said(found) == [("kernel", 2, 29, 0, 9), ("kernel", 1, 29, 0, 7)]
    assert (found.launches, found.answered) == (29, 26)


def test_what_is_missing_is_on_no_stream_where_as_many_launches_are_on_another(tmp_path):
    """Nothing tells which of two devices lacks the record."""
    entries = pairs(range(1, 15)) + pairs(range(15, 30), device=1)

    found = found_in(tmp_path, without_kernels(entries, [15]))

    assert said(found) == [("kernel", 1, 29, None, None)]


def test_a_device_of_which_nothing_is_left_is_named_by_the_metadata(tmp_path):
    """One device of two: its stream has a name in the file, and no record."""
    entries = pairs(range(1, 30, 2)) + pairs(range(2, 30, 2), device=1, caller="aten::bmm")
    entries += [named("thread_name", f"stream {7} ", pid=device, tid=7) for device in (0, 1)]

    found = found_in(tmp_path, [e for e in entries if e.get("cat") != "kernel" or e["pid"] == 0])

    assert said(found) == [("kernel", 14, 29, 1, 7)]


def test_an_arrow_tells_the_stream_of_the_record_that_it_has_outlived(tmp_path):
    """Though every other launch of that operator was on another stream."""
    entries = [*pairs(range(1, 9)), *pairs([9], stream=13), *pairs([10], stream=13)]
    entries += [flow("s", 9, 910), flow("f", 9, 920, pid=0, tid=13)]
    entries.append(named("thread_name", "stream 13 ", pid=0, tid=13))

    found = found_in(tmp_path, without_kernels([e | {"cat": e.get("cat")} for e in entries], [9]))

    assert ("kernel", 1, 10, 0, 13) in said(found)


def graph(at, number, nodes):
    """A launch of a graph with these kernels."""
    return [
        launch(at, 5, number, name="cudaGraphLaunch"),
        *(kernel(name, at + 10 * place, 5, number) for place, name in enumerate(nodes, 1)),
    ]


NODES = ["embed", "gemm", "norm", "gemm", "norm", "head"]


def test_a_graph_that_shows_fewer_kernels_than_at_other_times_lacks_them(tmp_path):
    """By how many, of those that all launches of it should have."""
    launches = [graph(100 * at, at, NODES) for at in range(1, 6)]
    launches[3] = graph(400, 4, NODES[:4])

    found = found_in(tmp_path, [entry for one in launches for entry in one])

    assert [loss[:3] for loss in said(found)] == [("graph_node", 2, 30)]


def test_graphs_of_different_kernels_lack_nothing(tmp_path):
    """A graph in pieces has a first piece that is no part of the others, and a last one that is."""
    pieces = [NODES[:3], NODES[1:4], NODES[1:4], NODES[1:3]]
    launches = [graph(100 * at, at, nodes) for at, nodes in enumerate(pieces, 1)]

    assert found_in(tmp_path, [entry for one in launches for entry in one]).losses == []


def test_a_graph_without_any_kernel_has_no_answer(tmp_path):
    """It is a launch like any other."""
    launches = [graph(100 * at, at, NODES if at != 2 else []) for at in range(1, 5)]

    found = found_in(tmp_path, [entry for one in launches for entry in one])

    assert [loss[:3] for loss in said(found)] == [("graph", 1, 4)]
