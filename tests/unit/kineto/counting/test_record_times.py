"""Records with impossible times are detected."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, launch, write_trace

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace


def losses_of(tmp_path, entries):
    """What is said of these entries."""
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    found = find_completeness(trace, link(trace))
    return [(loss.kind, loss.missing, loss.of, loss.what) for loss in found.losses]


def work(later_us=0.0, duration=40.5):
    """Ten launches with their kernels, whose clock is off by so much, and a wait for all."""
    entries = []
    for number in range(1, 11):
        at = 100.25 * number
        entries.append(launch(at, 5, number))
        entries.append(kernel("gemm", at + 20 + later_us, duration, number))
    return [*entries, launch(1_050, 20, 99, name="cudaDeviceSynchronize")]


@pytest.mark.parametrize("later_us", [0, -29, 14])
def test_clocks_that_agree_to_some_microseconds_are_sound(tmp_path, later_us):
    """Kineto aligns them no better."""
    assert losses_of(tmp_path, work(later_us)) == []


@pytest.mark.fault("F89")
def test_work_before_its_launch_tells_that_the_clock_is_early(tmp_path):
    """By how much at least."""
    assert losses_of(tmp_path, work(-5_020)) == [("early", 10, 10, "by up to 5.000 ms")]


def test_work_after_the_wait_for_it_tells_that_the_clock_is_late(tmp_path):
    """Only of the work that ends too late it is seen."""
    assert losses_of(tmp_path, work(500)) == [("late", 5, 10, "by up to 0.493 ms")]


def test_a_copy_that_blocks_ends_before_its_call(tmp_path):
    """From the device into memory that is not pinned: the host waits for the bytes."""
    copy = {"category": "gpu_memcpy", "pid": 0, "tid": 7, "device": 0, "stream": 7}
    name = "Memcpy DtoH (Device -> Pageable)"

    def blocking(later_us):
        return [launch(2_000, 60, 90, name="cudaMemcpyAsync"),
                event(name, 2_010 + later_us, 40, correlation=90, **copy)]  # fmt: skip

    assert losses_of(tmp_path, [*work(), *blocking(0)]) == []
    assert losses_of(tmp_path, [*work(), *blocking(100)]) == [("late", 1, 11, "by up to 0.090 ms")]


def test_kernels_that_took_no_time_have_lost_their_duration(tmp_path):
    """Of a clock that counts nanoseconds; where it counts microseconds, many are shorter."""
    zero = work(duration=0)
    assert losses_of(tmp_path, zero) == [("device_duration", 10, 10, "")]

    coarse = [entry | {"ts": int(entry["ts"])} for entry in work(duration=1)]
    for entry in [entry for entry in coarse if entry["cat"] == "kernel"][:4]:
        entry["dur"] = 0
    assert losses_of(tmp_path, coarse) == []


def test_counters_that_are_written_as_calls_have_no_duration_to_lose(tmp_path):
    """Plugins of the profiler write them so: without a correlation."""
    counters = [
        event("mlx5_0:1", 25.5 * at, 0, category="privateuse1_runtime", pid=99, tx_gbps=12.5)
        for at in range(40)
    ]

    assert losses_of(tmp_path, [*work(), *counters]) == []
