"""The losses of an incomplete window are reported, and the rest of it is still counted."""

from __future__ import annotations

import pytest
from kineto_traces import BASE_NS, event, kernel, launch, operator, write_trace

from otel_mlperf import names
from otel_mlperf.kineto.counting.window_numbers import count, find_figures
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

NUMBERS = range(1, 101)
NCCL = "ncclDevKernel_AllReduce"


def entries():
    """A hundred launches, 100 µs apart, of a kernel of 40 µs; every tenth one communicates."""
    made = [event("ProfilerStep#1", 0, 10_200, category="user_annotation")]
    for number in NUMBERS:
        at = 100 * number
        name = NCCL if number % 10 == 0 else "gemm"
        made += [launch(at, 5, number), kernel(name, at + 10, 40, number)]
    return made


def counted(tmp_path, lost):
    """The numbers of a window without the kernels of these launches."""
    left = [e for e in entries() if e["cat"] != "kernel" or e["args"]["correlation"] not in lost]
    trace = read_trace(write_trace(tmp_path / "t.json", left))
    numbers = count(trace, link(trace))
    return numbers, {name: value for name, _, value in find_figures(trace, numbers)}


def test_a_whole_window_says_that_it_is_complete(tmp_path):
    """Its completeness is one, and busy is of the whole window."""
    numbers, figures = counted(tmp_path, ())

    assert numbers.completeness.is_complete
    assert (numbers.completeness.answered, numbers.completeness.launches) == (100, 100)
    assert figures[names.WINDOW_COMPLETENESS.name] == 1.0
    assert figures[names.WINDOW_DEVICE_BUSY.name] == 4_000 / 10_200


def test_a_kernel_that_ends_before_its_start_is_a_launch_without_a_record(tmp_path):
    """Busy is a lower bound, and no total contains the negative duration."""
    made = [e | {"dur": -50} if e["name"] == "gemm" and e["ts"] == 110 else e for e in entries()]
    trace = read_trace(write_trace(tmp_path / "t.json", made))
    numbers = count(trace, link(trace))

    assert not numbers.completeness.has_device_times
    assert (numbers.completeness.answered, numbers.completeness.launches) == (99, 100)
    assert sum(t.total_ns for t in numbers.totals if t.what == "kernel") == 99 * 40_000


@pytest.mark.parametrize("lost", [{"dur": -50}, {"ts": -BASE_NS / 1_000}])
def test_device_records_without_a_time_make_busy_a_lower_bound(tmp_path, lost):
    """Also in traces without calls, as those of other profilers are."""
    kernels = [e for e in entries() if e["cat"] == "kernel"]
    kernels[4] |= lost
    trace = read_trace(write_trace(tmp_path / "t.json", kernels))
    completeness = count(trace, link(trace)).completeness

    assert not completeness.has_device_times
    assert completeness.words.startswith("1 of 100 device records have no usable time (between")


def test_busy_is_told_of_the_part_in_which_nothing_is_missing(tmp_path):
    """Half of the kernels are gone: the window would seem half as busy as the device was."""
    numbers, figures = counted(tmp_path, range(1, 51))

    begin = numbers.start_ns
    whole = numbers.completeness.whole
    # From the first kernel on that is there, to the end: 50 kernels in 5,090 µs.
    assert [(at - begin) / 1000 for at in (whole.start_ns, whole.end_ns)] == [5_110, 10_200]
    assert figures[names.WINDOW_DEVICE_BUSY.name] == 2_000 / 5_090
    assert figures[names.WINDOW_DEVICE_COMMUNICATION.name] == 200 / 5_090
    assert figures[names.WINDOW_DEVICE_EXPOSED.name] == 200 / 5_090
    assert figures[names.WINDOW_DEVICE_IDLE.name] == pytest.approx(1 - 2_000 / 5_090)
    assert figures[names.WINDOW_COMPLETENESS.name] == 0.5
    assert numbers.completeness.words == (
        "50 of 100 launched kernels have no record (stream 7 of device 0, all records between "
        "0.1 and 5.0 ms)"
    )


@pytest.mark.parametrize("lost", [range(1, 101, 2), NUMBERS])
def test_nothing_is_told_of_devices_where_no_part_is_whole(tmp_path, lost):
    """Every second kernel is gone, or all: neither a share of the device nor one of the host."""
    numbers, figures = counted(tmp_path, lost)

    assert numbers.completeness.whole is None
    assert figures.keys() == {names.WINDOW_EVENTS.name, names.WINDOW_COMPLETENESS.name}
    assert figures[names.WINDOW_COMPLETENESS.name] == 1 - len(lost) / 100


def test_few_missing_records_are_told_by_the_ratio_alone(tmp_path):
    """One of a thousand is missing from sound windows, too."""
    made = [
        entry
        for number in range(1, 1001)
        for entry in (launch(10 * number, 2, number), kernel("gemm", 10 * number + 3, 5, number))
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", made[:999] + made[1000:]))
    found = count(trace, link(trace)).completeness

    assert (found.is_complete, found.ratio) == (True, 0.999)


def test_a_trace_without_launches_is_complete(tmp_path):
    """Operators of a CPU alone ask for no record of a device."""
    trace = read_trace(write_trace(tmp_path / "t.json", [operator("aten::mm", 0, 9, external=1)]))
    found = count(trace, link(trace)).completeness

    assert (found.is_complete, found.ratio, found.launches) == (True, 1.0, 0)
