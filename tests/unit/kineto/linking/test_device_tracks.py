"""Rows of devices are recognised in traces whose events have no category."""

from __future__ import annotations

import json

import pytest
from kineto_traces import event, named, operator, write_trace

from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE


def on(pid, tid, name, start_us, duration_us, **args):
    """An event without a category."""
    return event(name, start_us, duration_us, pid=pid, tid=tid, category="", **args)


def labels(text, *, pid):
    """What a process is, as some profilers say it."""
    return {"name": "process_labels", "ph": "M", "pid": pid, "tid": 0, "args": {"labels": text}}


def numbers_of(tmp_path, entries):
    """What is counted of these entries."""
    trace = read_trace(write_trace(tmp_path / "t.json", entries, base_ns=None))
    assert trace.damage == []
    return count(trace, link(trace))


def busy_us(numbers):
    """Busy microseconds and events of each device."""
    return {device.device: (device.busy_ns / 1e3, device.count) for device in numbers.devices}


XLA_GPU = [
    named("process_name", "/device:GPU:1", pid=1),
    named("thread_name", "Stream #13(Compute,MemcpyD2D)", pid=1, tid=13),
    named("thread_name", "XLA Ops", pid=1, tid=20),
    named("process_name", "/host:CPU", pid=9),
    named("thread_name", "python", pid=9, tid=1),
    on(9, 1, "PjitFunction(f)", 0, 1_000),
    on(1, 13, "gemm_fusion", 100, 200),
    on(1, 13, "MemcpyD2H", 500, 50),
    on(1, 20, "dot.1", 100, 200),
    {},
]
XLA_TPU = [
    named("process_name", "/device:TPU:0", pid=1),
    named("thread_name", "Steps", pid=1, tid=1),
    named("thread_name", "XLA Ops", pid=1, tid=2),
    named("process_name", "/device:TPU:1", pid=2),
    named("thread_name", "XLA Ops", pid=2, tid=2),
    on(1, 1, "0", 0, 1_000),
    on(1, 2, "fusion.1", 0, 300),
    on(1, 2, "all-reduce.1", 300, 100),
    on(2, 2, "fusion.1", 0, 150),
]
XLA_LOOP = [
    *XLA_TPU[:5],
    on(1, 2, "while.1", 0, 1_000),
    on(1, 2, "while.2", 100, 500),
    on(1, 2, "fusion.1", 100, 200),
    on(1, 2, "fusion.1", 400, 200),
    on(1, 2, "call", 2_000, 300),
    on(2, 2, "conditional.3", 0, 70),
]
"""Control flow contains its parts; what contains none on its row is all that is known of it."""
ASCEND = [
    named("process_name", "Ascend Hardware", pid=800),
    labels("NPU", pid=800),
    named("thread_name", "Stream 3", pid=800, tid=3),
    named("process_name", "Overlap Analysis", pid=900),
    labels("NPU", pid=900),
    named("thread_name", "Computing", pid=900, tid=0),
    on(800, 3, "aclnnMm_MatMul", 0, 200),
    on(800, 3, "EVENT_WAIT", 200, 400),
    on(800, 3, "hcom_allReduce__1", 600, 100),
    on(900, 0, "Computing", 0, 200),
    operator("aten::mm", 0, 1_000),
]
NAMED_BY_LABEL = [
    labels("MLU 2", pid=55),
    named("thread_name", "Stream 12", pid=55, tid=1),
    on(55, 1, "matmul", 0, 200),
    operator("aten::mm", 0, 1_000),
]


@pytest.mark.parametrize(
    ("entries", "busy"),
    [
        (XLA_GPU, {1: (250.0, 2)}),
        (XLA_TPU, {0: (400.0, 2), 1: (150.0, 1)}),
        (XLA_LOOP, {0: (700.0, 3), 1: (70.0, 1)}),
        (ASCEND, {0: (300.0, 2)}),
        (NAMED_BY_LABEL, {2: (200.0, 1)}),
    ],
    ids=["XLA on a GPU", "XLA on TPUs", "loops of XLA", "Ascend", "by its label"],
)
def test_rows_of_streams_are_work_and_rows_that_repeat_them_are_none(tmp_path, entries, busy):
    """The device is busy for the union of its streams, once."""
    assert busy_us(numbers_of(tmp_path, entries)) == busy


def test_events_get_the_numbers_of_their_row(tmp_path):
    """As if the file gave them: spans, and what is counted from them, bear both."""
    trace = read_trace(write_trace(tmp_path / "t.json", XLA_GPU, base_ns=None))

    link(trace)

    rows = zip(trace.events.name, trace.events.device, trace.events.stream, strict=True)
    numbers = {trace.names[name]: (device, stream) for name, device, stream in rows}
    assert numbers["gemm_fusion"] == numbers["MemcpyD2H"] == (1, 13)
    assert numbers["dot.1"] == numbers["PjitFunction(f)"] == (NONE, NONE)


def test_work_of_xla_hangs_under_the_call_that_launched_it(tmp_path):
    """Both have the same `correlation_id`, a text."""
    entries = [
        *XLA_GPU[:6],
        on(9, 1, "cuLaunchKernel", 50, 10, correlation_id="77"),
        on(1, 13, "gemm_fusion", 100, 200, correlation_id="77", hlo_op="dot.1"),
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", entries, base_ns=None))

    links = link(trace)

    names = [trace.names[name] for name in trace.events.name]
    work = names.index("gemm_fusion")
    assert names[links.launch[work]] == "cuLaunchKernel"
    assert names[links.parent[work]] == "PjitFunction(f)"


def test_copies_and_collectives_of_xla_and_ascend_are_told_by_their_names(tmp_path):
    """By no category: there is none."""
    gpu, tpu, npu = (numbers_of(tmp_path, entries) for entries in (XLA_GPU, XLA_TPU, ASCEND))

    assert [device.copy_ns for device in gpu.devices] == [50_000]
    assert [device.communication_ns for device in tpu.devices] == [100_000, 0]
    assert [device.communication_ns for device in npu.devices] == [100_000]


def test_the_list_of_autograd_has_operators_and_kernels_by_process(tmp_path):
    """Also without an object around it, without categories, and with steps among operators."""
    path = tmp_path / "list.json"
    host, device = "CPU functions", "CUDA functions"
    arrow = {"name": "mm", "id": 1, "cat": "cpu_to_cuda"}
    entries = [
        on(host, 1, "ProfilerStep#3", 0, 50),
        on(host, 1, "aten::mm", 1, 10),
        arrow | {"ph": "s", "ts": 1, "pid": host, "tid": 1},
        on(device, 0, "gemm", 20, 5),
        arrow | {"ph": "f", "ts": 20, "pid": device, "tid": 0},
    ]
    path.write_text(json.dumps(entries))
    trace = read_trace(path)

    numbers = count(trace, link(trace))

    assert busy_us(numbers) == {0: (5.0, 1)}
    assert numbers.steps == ["ProfilerStep#3"]
    of_operators = {
        total.name: total.device_ns for total in numbers.totals if total.what == "operator"
    }
    assert of_operators == {"aten::mm": 5_000}


def test_a_row_of_the_list_of_autograd_is_a_device_and_no_stream(tmp_path):
    """The list writes the number of the device where the format has the thread."""
    rows = [on("CUDA functions", device, "gemm", 10, 5 + device) for device in (0, 1)]

    numbers = numbers_of(tmp_path, [on("CPU functions", 1, "aten::mm", 0, 50), *rows])

    assert busy_us(numbers) == {0: (5.0, 1), 1: (6.0, 1)}
    assert [stream.device for stream in numbers.streams] == [0, 1]


def test_the_host_of_xla_has_operators_and_frames(tmp_path):
    """JAX on a CPU: no row of it is unknown, and frames of Python are no operators."""
    host = named("process_name", "/host:CPU", pid=9)
    frame = on(9, 1, "$train.py:12 step", 0, 100)
    entries = [host, frame, on(9, 1, "PjitFunction(f)", 10, 50), on(9, 2, "dot.3", 20, 30)]

    numbers = numbers_of(tmp_path, entries)

    whats = {total.name: total.what for total in numbers.totals if total.name}
    assert whats["PjitFunction(f)"] == whats["dot.3"] == "operator"
    assert whats["$train.py:12 step"] == "python"
    assert (numbers.unknown_rows, numbers.devices) == ([], [])


UNKNOWN = {
    "a device's rows without streams": (
        [labels("NPU 0", pid=5), on(5, 1, "op", 0, 10), operator("aten::mm", 0, 30)],
        [("NPU 0", 1, True)],
    ),
    "rows of Triton's Proton inside a kernel": (
        [on("mm Core0 CTA3", "warp 1", "load", 0, 10), operator("aten::mm", 0, 30)],
        [("mm Core0 CTA3", 1, True)],
    ),
    "a device of XLA without work": (
        [named("process_name", "/device:A:0", pid=5), on(5, 1, "a", 0, 1), operator("b", 0, 1)],
        [("/device:A:0", 1, True)],
    ),
    "a file of which nothing is known": (
        [on(7, 1, "add Cmpt Exec", 0, 10), on(7, 2, "DmaI", 0, 10)],
        [("7", 2, False)],
    ),
    "autograd's list of a program with kernels": (
        [on("CPU functions", 1, "aten::mm", 0, 10), on("CPU functions", 7, "gemm", 20, 5),
         {"ph": "s", "id": 1, "ts": 0, "pid": "CPU functions", "tid": 1, "cat": "cpu_to_cuda"}],
        [("CPU functions", 2, True)],
    ),
    "autograd's list of a program without": ([on("CPU functions", 1, "aten::mm", 0, 10)], []),
    "a thread of the host": ([operator("aten::mm", 0, 30), on(3, 3, "compile", 0, 9)], []),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "expected"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_rows_that_may_be_a_device_s_are_counted(tmp_path, entries, expected):
    """A trace with such rows is not said to be of a program on the CPU alone."""
    numbers = numbers_of(tmp_path, entries)

    found = [(rows.process, rows.events, rows.is_device) for rows in numbers.unknown_rows]
    assert (found, numbers.devices) == (expected, [])


def test_names_that_were_made_to_be_long_cost_no_more_than_their_length(tmp_path):
    """A million digits, in names of processes, threads and labels, and as a process."""
    long = "GPU " + "1" * 250_000 + "x"
    entries = [
        named("process_name", long, pid=long),
        named("thread_name", "Stream " + long, pid=long, tid=1),
        labels(long, pid=long),
        on(long, 1, "op", 0, 10),
        on("5" * 250_000 + "x", 1, "call", 0, 5, correlation=1) | {"cat": "cuda_runtime"},
        on("6" * 250_000 + "x", 1, "call", 0, 5, correlation=1) | {"cat": "cuda_runtime"},
    ]

    assert sum(rows.events for rows in numbers_of(tmp_path, entries).unknown_rows) == 1


def test_a_long_process_widens_no_column(tmp_path):
    """Thousands of records under one of a quarter of a million letters take no gigabytes."""
    entries = [on("GPU" + "x" * 250_000, 1, "op", at, 1, stream=3) for at in range(40)]

    assert busy_us(numbers_of(tmp_path, entries)) == {NONE: (40.0, 40)}
