"""Under what does work of a device hang: graphs, drivers, and what is missing or said twice."""

from __future__ import annotations

import pytest
from kineto_traces import event, flow, kernel, launch, operator, write_trace

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import Place, link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE

EXTERNAL = "External id"


@pytest.fixture
def linked(tmp_path):
    """A trace of these entries and its links."""

    def build(*entries):
        trace = read_trace(write_trace(tmp_path / "t.json", entries))
        return trace, link(trace)

    return build


def names(trace, rows):
    """The names of events; None for NONE."""
    named = [trace.names[name] for name in trace.events.name.tolist()]
    return [None if row == NONE else named[row] for row in rows]


def above(trace, links, name):
    """Names of the parents, and places, of all events of a name."""
    rows = [row for row, one in enumerate(names(trace, range(len(trace.events)))) if one == name]
    return [(*names(trace, [int(links.parent[row])]), Place(links.place[row]).name) for row in rows]


def test_kernel_hangs_under_the_operator_around_its_launch(linked) -> None:
    """Not under the one that runs when the device gets to it, and it may end after its parent."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1),
        launch(10, 5, 101, **{EXTERNAL: 1}),
        operator("aten::relu", 60, 50, external=2),
        kernel("gemm", 70, 900, 101, **{EXTERNAL: 1}),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")]
    assert names(trace, links.launch.tolist()) == [None, None, None, "cudaLaunchKernel"]
    assert links.orphans == {}


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"])
@pytest.mark.parametrize("around", ["user_annotation", "cpu_op", "python_function"])
def test_all_kernels_of_a_graph_hang_under_its_launch(linked, call, around) -> None:
    """Many bear its one correlation, and no operator asked for one of them."""
    trace, links = linked(
        event("replay", 0, 50, category=around, **{EXTERNAL: 1}),
        launch(10, 5, 101, name=call, **{EXTERNAL: 1}),
        *(kernel("node", 100 + 10 * at, 5, 101, stream=at % 2) for at in range(8)),
    )

    assert above(trace, links, "node") == [(call, "LAUNCHED")] * 8
    assert above(trace, links, call) == [("replay", "NESTED")]


@pytest.mark.parametrize(
    ("category", "call"),
    [
        ("cuda_driver", "cuLaunchKernel"),
        ("cuda_runtime", "hipLaunchKernel"),
        ("hip_runtime", "hipModuleLaunchKernel"),
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("mtia_runtime", "mtiaLaunch"),
        ("privateuse1_runtime", "launch"),
        ("runtime", "cudaLaunchKernel"),
    ],
)
def test_calls_of_every_vendor_launch(linked, category, call) -> None:
    """Triton launches through the driver; others have runtimes of their own."""
    trace, links = linked(
        operator("triton_poi_fused_add_0", 0, 50, external=3),
        event(call, 10, 5, category=category, correlation=35),
        kernel("triton_poi_fused_add_0_kernel", 70, 5, 35),
    )

    found = above(trace, links, "triton_poi_fused_add_0_kernel")
    assert found == [("triton_poi_fused_add_0", "LAUNCHED")]
    assert above(trace, links, call) == [("triton_poi_fused_add_0", "NESTED")]


@pytest.mark.parametrize("category", ["gpu_memcpy", "gpu_memset", "cuda_sync", "Memcpy", "npu_op"])
def test_every_kind_of_device_work_has_its_launch(linked, category) -> None:
    """Copies, memsets and waits too, old names, and unknown ones that have a stream."""
    trace, links = linked(
        operator("aten::copy_", 0, 50, external=1),
        launch(10, 5, 101),
        event("work", 70, 5, category=category, pid=0, tid=7, stream=7, correlation=101),
    )

    assert above(trace, links, "work") == [("aten::copy_", "LAUNCHED")]


def test_frames_of_python_are_passed_over(linked) -> None:
    """The operator launched it, through whatever Python is in between; else the frame did."""
    trace, links = linked(
        operator("triton_op", 0, 50, external=1),
        event("launcher.py(7): run", 5, 30, category="python_function"),
        launch(10, 5, 101),
        event("raw.py(1): copy", 60, 30, category="python_function"),
        launch(70, 5, 102),
        kernel("inside", 100, 5, 101),
        kernel("raw", 110, 5, 102),
    )

    assert above(trace, links, "inside") == [("triton_op", "LAUNCHED")]
    assert above(trace, links, "raw") == [("raw.py(1): copy", "LAUNCHED")]


def test_frame_without_an_end_takes_no_kernel_from_its_operator(linked) -> None:
    """It lasts until the window ends, and would be the innermost around all that follows."""
    trace, links = linked(
        event("capture.py(3): record", 0, 400, category="python_function"),
        event("hooks.py(9): never_returns", 5, 9000, category="python_function"),
        *(
            entry
            for at in range(3)
            for entry in (
                operator("aten::mm", 100 * at + 10, 50, external=at + 1),
                launch(100 * at + 20, 5, 101 + at, **{EXTERNAL: at + 1}),
                kernel("gemm", 100 * at + 70, 9, 101 + at, **{EXTERNAL: at + 1}),
            )
        ),
        event("graph.py(5): replay", 500, 40, category="python_function"),
        operator("aten::add", 510, 20, external=9),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")] * 3
    assert above(trace, links, "aten::mm") == [("hooks.py(9): never_returns", "NESTED")] * 3
    assert above(trace, links, "graph.py(5): replay") == [(None, "ROOT")]
    assert links.orphans == {}


def test_frame_that_outlives_an_operator_takes_none_of_its_kernels(linked) -> None:
    """It began inside, and its caller, the operator, is what the kernels belong to."""
    trace, links = linked(
        operator("CompiledFunction", 0, 300, external=1),
        event("hooks.py(9): never_returns", 5, 9000, category="python_function"),
        launch(20, 5, 101),
        kernel("triton", 70, 9, 101),
    )

    assert above(trace, links, "triton") == [("CompiledFunction", "LAUNCHED")]


def test_external_id_says_more_than_time_does(linked) -> None:
    """Its operator lies in what is around the call: it ended a tick before the call did."""
    trace, links = linked(
        operator("aten::linear", 0, 50, external=1),
        operator("aten::addmm", 5, 10, external=2),
        launch(10, 6, 101, **{EXTERNAL: 2}),
        kernel("gemm", 70, 9, 101),
    )

    assert above(trace, links, "gemm") == [("aten::addmm", "LAUNCHED")]


def test_external_id_decides_between_two_that_overlap(linked) -> None:
    """The annotation began later and outlives the operator; both are around the call."""
    trace, links = linked(
        operator("aten::linear", 0, 50, external=1),
        event("region", 5, 90, category="user_annotation", **{EXTERNAL: 2}),
        launch(10, 6, 101, **{EXTERNAL: 1}),
        kernel("gemm", 70, 9, 101),
    )

    assert above(trace, links, "gemm") == [("aten::linear", "LAUNCHED")]


def test_external_id_says_more_than_a_frame_of_python(linked) -> None:
    """Where nothing but frames is around the call: an id that names an operator is knowledge."""
    trace, links = linked(
        operator("aten::mm", 0, 9, external=1),
        event("raw.py(1): copy", 9, 30, category="python_function"),
        launch(10, 5, 101, **{EXTERNAL: 1}),
        kernel("gemm", 70, 9, 101),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")]


def test_kernel_of_an_operator_without_duration_is_that_operators(linked) -> None:
    """In whole microseconds the next one seems to be around its call, and is not."""
    trace, links = linked(
        operator("aten::to", 0, 10, external=1),
        operator("aten::fill_", 10, 0, external=2),
        launch(10, 0, 101, **{EXTERNAL: 2}),
        operator("aten::mul", 10, 5, external=3),
        kernel("fill", 70, 9, 101, **{EXTERNAL: 2}),
    )

    assert above(trace, links, "fill") == [("aten::fill_", "LAUNCHED")]


@pytest.mark.fault("F89")
def test_external_id_used_twice_means_the_operator_before_the_call(linked) -> None:
    """Not the one that began before the device got to the work."""
    trace, links = linked(
        operator("first", 0, 9, external=1),
        launch(10, 5, 101, tid=77),
        operator("second", 60, 50, external=1),
        kernel("gemm", 70, 9, 101, **{EXTERNAL: 1}),
    )

    assert above(trace, links, "gemm") == [("first", "LAUNCHED")]


def test_external_id_is_asked_where_the_launch_is_missing(linked) -> None:
    """Activities that were dropped leave the operator's id on the kernel; counted."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1), kernel("gemm", 70, 9, 101, **{EXTERNAL: 1})
    )

    assert above(trace, links, "gemm") == [("aten::mm", "ASKED")]
    assert links.orphans == {"call_missing": 1}


def test_external_id_is_asked_where_nothing_is_around_the_call(linked) -> None:
    """A thread whose operators were not recorded."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1),
        launch(10, 5, 101, tid=-549452224),
        kernel("gemm", 70, 9, 101, **{EXTERNAL: 1}),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")]


def test_call_without_anything_around_is_the_parent_itself(linked) -> None:
    """A library that launches by itself."""
    trace, links = linked(launch(10, 5, 101), kernel("gemm", 70, 9, 101))

    assert above(trace, links, "gemm") == [("cudaLaunchKernel", "LAUNCHED")]


@pytest.mark.fault("F89")
def test_kernel_of_nobody_is_an_orphan(linked) -> None:
    """Launched before the profiler began: stated and counted, not guessed from its time."""
    trace, links = linked(
        event("ProfilerStep#1", 0, 500, category="user_annotation"),
        operator("aten::mm", 0, 500, external=1),
        kernel("early", 70, 9, 55, **{EXTERNAL: 999}),
    )

    assert above(trace, links, "early") == [(None, "ORPHAN")]
    assert links.orphans == {"launch_unknown": 1, "external_id_unknown": 1, "outside_steps": 1}


def test_correlation_in_place_of_an_external_id_is_none(linked) -> None:
    """The profiler fills the field so where it knows no operator: 7 is not the operator's id."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=7), kernel("lost", 70, 9, 7, **{EXTERNAL: 7})
    )

    assert above(trace, links, "lost") == [(None, "ORPHAN")]
    assert "external_id_unknown" not in links.orphans


def test_correlation_of_zero_is_none(linked) -> None:
    """What has no correlation is written as 0, by calls and kernels alike."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1), launch(10, 5, 0), kernel("lost", 70, 9, 0)
    )

    assert above(trace, links, "lost") == [(None, "ORPHAN")]


@pytest.mark.fault("F89")
def test_correlation_used_twice_means_the_last_call_before(linked) -> None:
    """Ids start again with each window of the profiler."""
    trace, links = linked(
        operator("first", 0, 50, external=1),
        launch(10, 5, 101),
        kernel("gemm", 70, 9, 101),
        operator("second", 1000, 50, external=2),
        launch(1010, 5, 101),
        kernel("gemm", 1070, 9, 101),
    )

    assert above(trace, links, "gemm") == [("first", "LAUNCHED"), ("second", "LAUNCHED")]


def test_an_arrow_whose_id_is_a_text_leads_to_the_call(linked) -> None:
    """As the format has it; digits in a text are the number, and no text is a wrong correlation."""
    trace, links = linked(
        launch(5, 5, 1),
        flow("s", "flow-1", 5),
        flow("f", "flow-1", 20, pid=0, tid=7),
        event("gemm", 20, 10, category="kernel", pid=0, tid=7),
        launch(40, 5, 2),
        flow("s", "0x2", 40),
        flow("f", "0x2", 60, pid=0, tid=7),
        kernel("gemm", 60, 10, 2),
        flow("s", "77", 5, category="mine"),
        flow("f", 77, 20, category="mine"),
    )

    assert above(trace, links, "gemm") == [("cudaLaunchKernel", "LAUNCHED")] * 2
    assert trace.damage == []
    assert trace.flows.id[4:].tolist() == [77, 77]
    assert find_completeness(trace, links).losses == []


def test_arrow_leads_to_the_call_where_correlations_are_missing(linked) -> None:
    """The file draws it between the starts of both."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1),
        event("launch", 10, 5, category="mtia_runtime"),
        flow("s", 3, 10),
        event("gemm", 70, 9, category="kernel", pid=0, tid=7, stream=7),
        flow("f", 3, 70, pid=0, tid=7),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")]


def test_external_id_of_an_operator_elsewhere_is_counted(linked) -> None:
    """The call is believed; that both differ is said."""
    trace, links = linked(
        operator("aten::mm", 0, 50, external=1),
        launch(10, 5, 101),
        operator("aten::relu", 60, 50, external=2),
        kernel("gemm", 70, 9, 101, **{EXTERNAL: 2}),
    )

    assert above(trace, links, "gemm") == [("aten::mm", "LAUNCHED")]
    assert links.orphans == {"external_id_contradicts": 1}


def test_annotation_of_the_device_hangs_under_that_of_the_host(linked) -> None:
    """The same External id and the same name; one that has no original is an orphan."""
    trace, links = linked(
        event("## forward ##", 0, 50, category="user_annotation", **{EXTERNAL: 5}),
        *(
            event(name, 70, 9, category="gpu_user_annotation", pid=0, tid=7, **{EXTERNAL: 5})
            for name in ("## forward ##", "another")
        ),
    )

    assert above(trace, links, "## forward ##")[1] == ("## forward ##", "ANNOTATED")
    assert above(trace, links, "another") == [(None, "ORPHAN")]
    assert links.orphans == {"annotation_unknown": 1}


def test_profilers_own_span_is_around_nothing(linked) -> None:
    """It covers the window and is no event of the program."""
    trace, links = linked(
        event("PyTorch Profiler (0)", 0, 900, category="Trace", pid="Spans", tid="P"),
        operator("aten::mm", 10, 50, external=1),
    )

    assert above(trace, links, "PyTorch Profiler (0)") == [(None, "WINDOW")]
    assert above(trace, links, "aten::mm") == [(None, "ROOT")]
