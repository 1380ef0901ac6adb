"""The numbers of a window equal those counted by hand."""

from __future__ import annotations

import pytest
from kineto_traces import (
    BASE_NS,
    PID,
    allocation,
    event,
    kernel,
    launch,
    named,
    operator,
    training_step,
    write_trace,
)

from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

US = 1000


@pytest.fixture
def counted(tmp_path):
    """Counts a trace of these entries."""

    def count_entries(entries, **header):
        trace = read_trace(write_trace(tmp_path / "t.json", entries, **header))
        return count(trace, link(trace))

    return count_entries


def copy(name, start_us, duration_us, correlation, *, stream=7, **args):
    """A copy or memset on device 0."""
    category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    args = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return event(name, start_us, duration_us, category=category, pid=0, tid=stream, **args)


def total(numbers, what, name):
    """The only total of that name."""
    (found,) = [one for one in numbers.totals if (one.what, one.name) == (what, name)]
    return found


def test_each_name_has_its_count_total_extremes_and_quantiles(counted):
    """Of five calls p50 is the third duration and p95 the fifth, both in the data."""
    lengths = [10, 40, 20, 30, 1000.5]
    entries = [
        operator("aten::mm", at * 2000, length, external=at + 1)
        for at, length in enumerate(lengths)
    ]
    figures = total(counted(entries), "operator", "aten::mm")

    assert (figures.count, figures.total_ns) == (5, 1_100_500)
    assert (figures.min_ns, figures.max_ns) == (10 * US, 1_000_500)
    assert (figures.p50_ns, figures.p95_ns) == (30 * US, 1_000_500)


def test_self_time_leaves_out_what_is_inside(counted):
    """Operators and calls inside take their time away; a kernel elsewhere takes nothing."""
    numbers = counted(training_step())

    linear, addmm = (total(numbers, "operator", name) for name in ("aten::linear", "aten::addmm"))
    assert linear.self_ns == 100_125 - 80_999
    assert addmm.self_ns == 80_999 - 9_500
    step = total(numbers, "annotation", "ProfilerStep#3")
    assert step.self_ns == 500_250 - 100_125 - 30_000
    for name in ("sgemm_128x64", "relu_kernel<float>"):
        figures = total(numbers, "kernel", name)
        assert figures.self_ns == figures.total_ns


def test_the_window_is_from_first_to_last_event(counted):
    """Host events count, and what the profiler says of itself does not widen it."""
    around = event("PyTorch Profiler (0)", 0, 9999, category="Trace", pid="Spans", tid="x")
    numbers = counted([around, *training_step()])

    assert numbers.start_ns == BASE_NS + 1_000_000
    assert numbers.end_ns - numbers.start_ns == 500_250


def test_what_lies_beyond_the_profilers_span_does_not_count(counted):
    """An annotation of hours in a window of milliseconds is cut; device work is not."""
    around = event("PyTorch Profiler (0)", 100, 1000, category="Trace", pid="Spans", tid="x")
    long = event("ProfilerStep#1", 200, 10_000_000, category="user_annotation", tid=99)
    late = kernel("k", 1050, 100, 1)
    numbers = counted([around, long, operator("aten::mm", 300, 5), late])

    assert (numbers.start_ns, numbers.end_ns) == (BASE_NS + 200 * US, BASE_NS + 1150 * US)


def test_python_functions_are_as_old_as_the_program(counted):
    """A frame of Python that began long before does not widen the window."""
    frame = event("train.py(1): main", 0, 99_999, category="python_function")
    numbers = counted([frame, operator("aten::mm", 300, 5)])

    assert numbers.end_ns - numbers.start_ns == 5 * US


def test_a_device_is_busy_while_any_stream_is(counted):
    """Work of two streams at once counts once for the device, and whole for each stream."""
    numbers = counted(
        [
            operator("aten::mm", 0, 100),
            kernel("a", 10, 20, 1, stream=7),
            kernel("b", 20, 20, 2, stream=9),
            kernel("c", 60, 10, 3, stream=7),
        ]
    )
    (device,) = numbers.devices
    seven, nine = numbers.streams

    assert (device.window_ns, device.busy_ns, device.idle_ns) == (100 * US, 40 * US, 60 * US)
    assert (device.gap_ns, device.gaps) == (20 * US, 1)
    assert (seven.stream, seven.busy_ns, seven.gap_ns) == (7, 30 * US, 30 * US)
    assert (nine.stream, nine.busy_ns, nine.gaps) == (9, 20 * US, 0)


def test_each_kind_of_work_has_its_time_and_what_it_shares(counted):
    """Communication is exposed where no kernel computes, whether a copy runs or not."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
    numbers = counted(
        [
            kernel("gemm", 0, 40, 1, stream=7),
            kernel(nccl, 30, 50, 2, stream=9),
            copy("Memcpy HtoD (Pinned -> Device)", 70, 30, 3, stream=11, bytes=3000),
        ]
    )
    (device,) = numbers.devices

    assert (device.compute_ns, device.communication_ns, device.copy_ns) == (40_000, 50_000, 30_000)
    assert device.compute_communication_ns == 10 * US
    assert device.communication_copy_ns == 10 * US
    assert device.compute_copy_ns == 0
    assert device.exposed_communication_ns == 40 * US
    assert device.exposed_copy_ns == 30 * US
    assert device.busy_ns == 100 * US
    assert total(numbers, "kernel", nccl).kind == "communication"


def test_gaps_are_the_hosts_where_it_asked_too_late(counted):
    """A gap is a host wait if the call began in it, a device wait if before, else unknown."""
    numbers = counted(
        [
            launch(0, 5, 1),
            kernel("a", 10, 10, 1),
            launch(25, 5, 2),
            kernel("b", 40, 10, 2),
            launch(45, 2, 3),
            kernel("c", 60, 5, 3),
            kernel("d", 70, 5, 99),
        ]
    )
    (device,) = numbers.devices

    assert (device.host_wait_ns, device.device_wait_ns) == (20 * US, 10 * US)
    assert device.unknown_wait_ns == 5 * US
    assert device.gap_ns == 35 * US


def test_a_launch_delay_runs_from_the_calls_end(counted):
    """What begins before its call returns is early, and waited for nothing."""
    numbers = counted(
        [
            launch(0, 5, 1),
            kernel("a", 15, 10, 1),
            launch(20, 10, 2),
            kernel("b", 28, 10, 2),
            launch(40, 5, 3),
            kernel("c", 75, 5, 3),
            kernel("d", 90, 5, 99),
        ]
    )
    (device,) = numbers.devices

    assert device.count == 4
    assert (device.launches, device.early) == (3, 1)
    assert (device.delay_p50_ns, device.delay_p95_ns) == (10 * US, 30 * US)
    assert device.delay_max_ns == 30 * US


def test_waiting_on_a_device_is_no_work(counted):
    """An event wait lies on a stream's row, and the stream is idle in it."""
    wait = event("Stream Wait", 0, 50, category="cuda_sync", pid=0, tid=7, stream=7, device=0)
    numbers = counted([wait, kernel("a", 60, 10, 1)])

    assert numbers.devices[0].busy_ns == 10 * US
    assert [one.name for one in numbers.totals if one.what == "kernel"] == ["a"]


def test_a_device_annotation_repeats_kernels_and_counts_nothing(counted):
    """A gpu_user_annotation is neither work nor an annotation of the host."""
    repeated = event("forward", 0, 99, category="gpu_user_annotation", pid=0, tid=7)
    numbers = counted([kernel("a", 60, 10, 1), repeated])

    assert numbers.devices[0].busy_ns == 10 * US
    assert total(numbers, "other", "forward").count == 1


def test_device_time_belongs_to_the_operator_that_launched_it(counted):
    """The inner operator has it, the outer one nothing, and it adds up to all kernels."""
    numbers = counted(training_step())

    assert total(numbers, "operator", "aten::addmm").device_ns == 60_500
    assert total(numbers, "operator", "aten::linear").device_ns == 0
    assert total(numbers, "operator", "aten::relu").device_ns == 5_750


def test_a_name_has_the_section_that_took_most_of_its_time(counted):
    """Annotations are sections where none was recorded; those of steps are not."""
    annotate = {"category": "user_annotation"}
    numbers = counted(
        [
            event("ProfilerStep#1", 0, 1000, **annotate),
            event("forward", 0, 300, **annotate),
            operator("aten::mm", 10, 100),
            event("validate", 400, 300, **annotate),
            operator("aten::mm", 410, 250),
            operator("aten::mm", 800, 90),
        ]
    )
    found = total(numbers, "operator", "aten::mm")

    assert (found.section, found.section_ns) == ("validate", 250 * US)
    on_host = {one.name: one.total_ns for one in numbers.totals if one.what == "section"}
    assert on_host == {"forward": 100 * US, "validate": 250 * US, "": 90 * US}


def test_kernels_of_the_backward_pass_count_to_the_section_that_waits(counted):
    """Autograd's own thread has no annotation; the thread that waits for it has."""
    annotate = {"category": "user_annotation"}
    numbers = counted(
        [
            event("forward", 0, 90, **annotate),
            operator("aten::mm", 10, 50, **{"Sequence number": 5, "Fwd thread id": 0}),
            event("backward", 100, 200, **annotate),
            operator("MmBackward0", 120, 60, tid=5, **{"Sequence number": 5, "Fwd thread id": 1}),
            launch(130, 5, 1, tid=5),
            kernel("gemm_nt", 140, 30, 1),
        ]
    )

    assert total(numbers, "kernel", "gemm_nt").section == "backward"
    sections = [one for one in numbers.totals if (one.what, one.category) == ("section", "device")]
    assert [(one.name, one.total_ns) for one in sections] == [("backward", 30 * US)]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_single_collective_is_no_section(counted, backend):
    """The annotation that torch.distributed makes does not hide the one around it."""
    annotate = {"category": "user_annotation"}
    numbers = counted(
        [
            event("backward", 0, 300, **annotate),
            event(f"{backend}:all_reduce", 10, 100, **annotate),
            launch(20, 5, 1),
            kernel("ncclDevKernel_AllReduce", 40, 30, 1),
        ]
    )

    assert total(numbers, "kernel", "ncclDevKernel_AllReduce").section == "backward"


def test_steps_have_the_work_that_they_launched(counted):
    """A kernel that runs after its step's end counts to the step that launched it."""
    annotate = {"category": "user_annotation"}
    numbers = counted(
        [
            event("ProfilerStep#1", 0, 100, **annotate),
            operator("aten::mm", 70, 20, external=1),
            launch(80, 5, 1),
            event("ProfilerStep#2", 100, 100, **annotate),
            kernel("gemm", 150, 30, 1),
        ]
    )
    on_device = [one for one in numbers.totals if (one.what, one.category) == ("step", "device")]

    assert numbers.steps == ["ProfilerStep#1", "ProfilerStep#2"]
    assert [(one.name, one.total_ns) for one in on_device] == [("ProfilerStep#1", 30 * US)]


def test_copies_have_direction_bytes_and_bandwidth(counted):
    """Bytes are of the copies that say them; pageable memory is named."""
    pageable, pinned = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"
    numbers = counted(
        [
            copy(pageable, 0, 10, 1, bytes=1000),
            copy(pageable, 20, 30, 2),
            copy(pinned, 60, 5, 3, bytes=50),
            copy("Memset (Device)", 80, 2, 4),
        ]
    )
    first, second, third = numbers.copies

    assert (first.direction, first.pageable, first.count) == ("H2D", True, 2)
    assert (first.bytes, first.sized_ns, first.total_ns) == (1000, 10 * US, 40 * US)
    assert (second.direction, second.pageable, second.bytes) == ("D2H", False, 50)
    assert (third.direction, third.bytes) == ("set", None)


def test_the_longest_gaps_say_what_the_host_was_in(counted):
    """Named is the innermost event that fills half of the gap, on the thread that launched next."""
    numbers = counted(
        [
            named("thread_name", "main", tid=PID),
            kernel("a", 0, 10, 1),
            event("loader", 5, 200, category="user_annotation"),
            operator("aten::stack", 20, 80),
            operator("aten::empty", 30, 5),
            operator("aten::elsewhere", 10, 200, tid=77),
            launch(101, 4, 2),
            kernel("b", 110, 10, 2),
        ]
    )
    gaps = {one.cause: one for one in numbers.gaps}

    gap = gaps["host_wait"]
    assert (gap.start_ns - numbers.start_ns, gap.duration_ns) == (10 * US, 100 * US)
    assert (gap.operator, gap.thread, gap.next) == ("aten::stack", "main", "b")
    assert (gaps["end"].duration_ns, gaps["end"].next) == (90 * US, "")
    assert numbers.gaps == sorted(numbers.gaps, key=lambda one: -one.duration_ns)


def test_a_gap_outside_of_all_operators_names_none(counted):
    """The annotation of the whole step is no answer to what the host was doing."""
    numbers = counted(
        [
            event("ProfilerStep#1", 0, 200, category="user_annotation"),
            launch(0, 4, 1),
            kernel("a", 10, 10, 1),
            launch(101, 4, 2),
            kernel("b", 110, 10, 2),
        ]
    )
    (gap,) = [one for one in numbers.gaps if one.cause == "host_wait"]

    assert gap.operator == ""


def test_the_allocator_of_each_device_is_followed(counted):
    """Peaks are exact, and what the trace does not say is absent."""
    numbers = counted(
        [
            operator("aten::empty", 0, 100),
            allocation(10, 512, allocated=1512, reserved=4096),
            allocation(20, 1024, allocated=2536, reserved=8192),
            allocation(30, -512, allocated=2024, reserved=8192),
            allocation(40, 64, device_type=0, device=-1),
        ]
    )
    host, *device = numbers.memory

    assert [row.time_ns for row in device] == [BASE_NS + at * US for at in (10, 20, 30)]
    assert [row.allocated_bytes for row in device] == [1512, 2536, 2024]
    assert [row.peak_bytes for row in device] == [1512, 2536, 2024]
    assert [row.reserved_bytes for row in device] == [4096, 8192, 8192]
    assert [row.change_bytes for row in device] == [512, 1536, 1024]
    assert (host.device_type, host.peak_bytes, host.change_bytes) == (0, None, 64)


def test_a_long_timeline_keeps_its_peaks(counted):
    """However many changes there are, the parts hold the highest of all of them."""
    sizes = [allocation(at, 1, allocated=at % 997, reserved=1000) for at in range(5000)]
    memory = counted([operator("aten::empty", 0, 9999), *sizes]).memory

    assert len(memory) <= 512
    assert max(row.peak_bytes for row in memory) == 996
    assert memory[-1].change_bytes == 5000
    assert memory[-1].time_ns == BASE_NS + 4999 * US


def test_streams_without_arguments_are_told_by_their_track(counted):
    """Old traces name device and stream by the numbers of process and thread only."""
    bare = event("gemm", 0, 10, category="Kernel", pid=3, tid=21)
    (stream,) = counted([bare]).streams

    assert (stream.device, stream.stream) == (3, 21)


def test_a_window_without_devices_has_no_device_figures(counted):
    """Nothing is idle where no device was seen."""
    numbers = counted([operator("aten::mm", 0, 10)])

    assert (numbers.devices, numbers.streams, numbers.gaps, numbers.copies) == ([], [], [], [])
    assert numbers.categories == {"cpu_op": (1, 10 * US)}


def test_an_empty_trace_counts_nothing(counted):
    """No event is no error."""
    numbers = counted([])

    assert (numbers.start_ns, numbers.end_ns, numbers.totals) == (0, 0, [])
