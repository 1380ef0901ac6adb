"""The critical path contains what the end of a trace waited for."""

from __future__ import annotations

from kineto_traces import kernel, launch, operator, write_trace

from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.spans.critical_path import critical_path


def path_of(tmp_path, entries):
    """The names on the path, in the order of time."""
    trace = read_trace(write_trace(tmp_path / "trace.json", entries))
    found = critical_path(trace, link(trace))
    events = trace.events
    rows = sorted(range(len(events)), key=lambda row: int(events.start_ns[row]))
    return [trace.names[events.name[row]] for row in rows if found[row]]


def test_device_that_is_behind_is_waited_for(tmp_path):
    """Kernels one behind the other lead back to the call that launched the first."""
    entries = [
        operator("before", 0, 10),
        launch(10, 2, 1, name="launch 1"),
        launch(13, 2, 2, name="launch 2"),
        launch(16, 2, 3, name="launch 3"),
        kernel("k1", 20, 50, 1),
        kernel("k2", 70, 50, 2),
        kernel("k3", 120, 50, 3),
    ]

    assert path_of(tmp_path, entries) == ["before", "launch 1", "k1", "k2", "k3"]


def test_device_that_waits_leads_to_the_host(tmp_path):
    """A kernel that began after its call, on an idle stream, waited for the host."""
    entries = [
        launch(0, 2, 1, name="launch 1"),
        kernel("k1", 5, 5, 1),
        operator("slow on the host", 10, 80),
        launch(90, 2, 2, name="launch 2"),
        kernel("k2", 95, 10, 2),
    ]

    assert path_of(tmp_path, entries) == ["launch 1", "slow on the host", "launch 2", "k2"]


def test_call_that_waits_leads_to_the_device(tmp_path):
    """What ran on the device while the host waited is on the path, not what the host did."""
    entries = [
        launch(0, 2, 1, name="launch 1"),
        operator("beside the kernel", 3, 20),
        kernel("k1", 4, 90, 1),
        launch(25, 75, 9, name="cudaDeviceSynchronize"),
        operator("after", 101, 10),
    ]

    assert path_of(tmp_path, entries) == [
        "launch 1",
        "k1",
        "cudaDeviceSynchronize",
        "after",
    ]


def test_nothing_has_no_path(tmp_path):
    """A trace without events is no error."""
    assert path_of(tmp_path, []) == []
