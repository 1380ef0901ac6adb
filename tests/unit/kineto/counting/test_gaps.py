"""A gap names what the host was in, and not what only seems to have continued."""

from __future__ import annotations

from kineto_traces import event, kernel, launch, write_trace

from otel_mlperf.kineto.counting.device_work import find_work
from otel_mlperf.kineto.counting.gaps import find_gaps
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace


def test_a_frame_that_outlives_its_caller_is_not_where_the_host_was(tmp_path):
    """Its end was missed: the host was in the frame that really went on."""
    path = write_trace(
        tmp_path / "t.json",
        [
            event("train.py(1): main", 0, 1000, category="python_function"),
            event("capture.py(3): record", 10, 40, category="python_function"),
            event("hooks.py(9): never_returns", 15, 9000, category="python_function"),
            kernel("first", 60, 5, 1),
            launch(510, 5, 2),
            kernel("second", 520, 5, 2),
        ],
    )
    trace = read_trace(path)

    gaps = find_gaps(trace, find_work(trace), link(trace))

    assert [gap.operator for gap in gaps if gap.next == "second"] == ["train.py(1): main"]
