"""The numbers are consistent, whatever a trace contains."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_mlperf.analysis.profiles.kernel_rows import BY
from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.report.kernel_tables import render_kernels
from otel_mlperf.terminal_lines import columns

CATEGORIES = (
    *("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"),
    *("user_annotation", "gpu_user_annotation", "python_function", "cuda_sync", "Trace", "odd"),
)
NAMES = (
    "aten::mm",
    "ncclDevKernel_X",
    "void a::b<c<int>>(d)",
    "ProfilerStep#1",
    "Memcpy HtoD",
    "é",
)
NUMBERS = st.integers(-2, 9)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.just("X"),
            "cat": st.sampled_from(CATEGORIES),
            "name": st.sampled_from(NAMES),
            "pid": st.sampled_from([0, 1, 4242, "Spans"]),
            "tid": st.sampled_from([7, 9, 4242, "x"]),
            "ts": st.integers(0, 60).map(lambda time: time / 4),
            "dur": st.integers(-3, 40).map(lambda time: time / 4),
            "args": st.dictionaries(
                st.sampled_from(
                    ["device", "stream", "correlation", "External id", "bytes", "Sequence number"]
                ),
                NUMBERS,
            ),
        }
    ),
    max_size=30,
)


@given(events=EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_numbers_hold_together(tmp_path, events):
    """Times add up, nothing exceeds what it is part of, and every view can be shown."""
    path = tmp_path / "any.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18}))
    trace = read_trace(path)
    links = link(trace)
    numbers = count(trace, links)

    for one in [*numbers.devices, *numbers.streams]:
        assert 0 <= one.busy_ns <= one.window_ns == one.busy_ns + one.idle_ns
        assert one.gap_ns == one.last_ns - one.first_ns - one.busy_ns <= one.idle_ns
        assert one.host_wait_ns + one.device_wait_ns + one.unknown_wait_ns == one.gap_ns
        together = one.compute_communication_ns
        assert one.exposed_communication_ns == one.communication_ns - together
        assert one.exposed_copy_ns == one.copy_ns - one.compute_copy_ns
        kinds = (one.compute_ns, one.communication_ns, one.copy_ns)
        assert max(kinds) <= one.busy_ns <= sum(kinds)
    added = {"device", "annotation"}  # rows among the operators that are none
    names = [
        total
        for total in numbers.totals
        if total.what not in {"stream", *BY[4:]} and total.category not in added
    ]
    assert sum(total.count for total in names) == len(trace.events)
    for total in names:
        assert total.min_ns <= total.p50_ns <= total.p95_ns <= total.max_ns
        assert total.self_ns <= total.total_ns
        assert 0 <= total.section_ns <= max(0, total.total_ns) or total.min_ns < 0
    rows = rows_of(trace, numbers, links.orphans)
    for by in BY:
        shown = render_kernels(find_kernels(rows, "any.json", by))
        assert max(map(columns, shown.splitlines())) <= 80
