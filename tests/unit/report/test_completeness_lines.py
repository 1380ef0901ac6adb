"""An incomplete window is marked as such."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, launch, write_trace

from otel_mlperf.importing.kernel_source import find_source
from otel_mlperf.report.kernel_tables import render_kernels


def shown(tmp_path, lost, name="t.json"):
    """What ``kernels`` prints of a window without these kernels of ten."""
    made = [event("ProfilerStep#1", 0, 1_000, category="user_annotation")]
    for number in range(10):
        made.append(launch(100 * number, 5, number + 1))
        if number not in lost:
            made.append(kernel("gemm", 100 * number + 10, 40, number + 1))
    return render_kernels(find_source(str(write_trace(tmp_path / name, made)), None, None, None))


def test_a_window_that_lacks_work_is_marked_in_its_first_lines(tmp_path):
    """What was busy was so at least; then what is missing, where, and what the rest says."""
    assert shown(tmp_path, range(5)).splitlines()[:4] == [
        "GPU busy at least 20 %, idle at most 80 % of the window",
        "t.json · rank 0 · 1.00 ms · 16 events · 1 step",
        "incomplete: 5 of 10 launched kernels have no record (stream 7 of device 0, all",
        "  records between 0.0 and 0.4 ms); complete from 0.5 to 1.0 ms (GPU busy 41 %)",
    ]


def test_a_complete_window_says_that_its_launches_were_answered(tmp_path):
    """And has no word of doubt."""
    text = shown(tmp_path, ())

    assert "launch   delay from call to start: p50 5.00 µs" in text
    assert "         10 of 10 launches have a device record\n" in text
    assert "incomplete" not in text
    assert "at least" not in text


@pytest.mark.fault("F81")
def test_a_window_that_lacks_all_work_is_not_taken_for_one_of_the_cpu(tmp_path):
    """Something was launched, and nothing of it is there."""
    first, _, third, *_ = shown(tmp_path, range(10)).splitlines()

    assert first == "no kernel, copy or memset was recorded, though some were launched"
    assert third.startswith("incomplete: 10 of 10 launched kernels have no record")
