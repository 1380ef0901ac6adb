"""The periods of a run sum to the run as a whole, wherever it is cut."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.periods.period_grid import MINUTE_NS, lay_grid, parse_length
from otel_mlperf.analysis.periods.periods import read_periods
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.errors import NoSuchPhase, NoSuchRun, UsageError
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.report.period_tables import render_periods
from otel_mlperf.store.run_folders import read_run

MINUTE = MINUTE_NS
HOUR = 60 * MINUTE
FULL_HOUR = -(-START // HOUR) * HOUR - START
"""From the begin of a built run to the next full hour."""


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """The local clock of these tests; the system's again at their end."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def requests(run, at, values_ns, name="predict", *, errors=0, **place):
    """What one flush says of requests that ended in the minute of ``at`` ns after START."""
    buckets = ExponentialBuckets()
    buckets.record(np.array(values_ns) / 1e9)
    bound_s = place.get("bound_s")
    within = sum(value <= bound_s * 1e9 for value in values_ns) if bound_s else 0
    minute = None if at is None else (START + at) // MINUTE * MINUTE
    run.row("durations", **{
        "rank": 0, "restart": 0, "phase": "", "name": name, "category": names.REQUEST,
        "path": name, "beside": False, "in_step": False, "bound_s": bound_s, "minute_ns": minute,
        "count": len(values_ns), "errors": errors, "within": within, "sum_ns": sum(values_ns),
        "min_ns": min(values_ns), "max_ns": max(values_ns),
        "spread": float(np.var(values_ns)) * len(values_ns), "scale": buckets.scale,
        "zeros": buckets.zero_count, "first_bucket": buckets.offset,
        "counts": json.dumps(buckets.counts),
    } | place)  # fmt: skip


def reading(run, metric, at, value, rank=0, **labels):
    """A reading of a process ``at`` ns after START."""
    run.row(
        "readings", rank=rank, restart=0, name=metric.name, labels=json.dumps(labels),
        time_ns=START + at, value=float(value),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """From START on, for three hours and a quarter."""
    made = RunFolderBuilder(tmp_path / "runs", "service")
    made.process(FULL_HOUR + 3 * HOUR + 15 * MINUTE)
    return made


def test_a_step_is_in_the_hour_in_which_it_ended(run):
    """To the nanosecond; the hour without any says so."""
    for n, end in enumerate([FULL_HOUR - 1, FULL_HOUR, FULL_HOUR + HOUR - 1]):
        run.step(n, end - 10 * MS, {"data.load": 2 * MS, "forward": 8 * MS}, samples=32)
    run.step(3, FULL_HOUR + 2 * HOUR, {"forward": 30 * MS}, error=True, samples=32)
    found = read_periods(read_run(run.write()), HOUR)

    assert found.periods[0].start_ns == START + FULL_HOUR - HOUR
    assert [one.end_ns - one.start_ns for one in found.periods] == [HOUR] * 5
    assert [one.lived_ns for one in found.periods] == [FULL_HOUR, HOUR, HOUR, HOUR, 15 * MINUTE]
    assert [one.steps and (one.steps.count, one.steps.failed) for one in found.periods] == [
        (1, 0), (2, 0), None, (1, 1), None,
    ]  # fmt: skip
    full = found.periods[1].steps
    assert (full.mean_ns, full.p99_ns, full.max_ns, full.samples) == (10 * MS, 10 * MS, 10 * MS, 64)
    assert (full.wait_share, full.samples_per_s) == (0.2, 3200)
    assert found.periods[3].steps.mean_ns is None


def test_a_step_of_several_ranks_counts_once(run):
    """It is in the hour in which the last rank ended it, and its durations are those of all."""
    run.process(FULL_HOUR + HOUR, rank=1)
    for n in range(4):
        run.step(n, FULL_HOUR - S + n, {"forward": 10 * MS}, samples=8)
        late = FULL_HOUR + n if n >= 2 else FULL_HOUR - S
        run.step(n, late, {"forward": 20 * MS}, rank=1, samples=8)
    folder = read_run(run.write())

    early, late = (one.steps for one in read_periods(folder, HOUR).periods[:2])
    assert [(one.count, one.measured, one.samples) for one in (early, late)] == [(2, 4, 32)] * 2
    assert late.samples_per_s == pytest.approx(8 / 0.015 * 2)
    one = read_periods(folder, HOUR, rank=1)
    assert (one.rank, [of.steps and of.steps.count for of in one.periods[:2]]) == (1, [2, 2])


def test_requests_by_name_and_bound(run):
    """Those of all parts of an hour together; a run without steps has a table of each kind."""
    requests(run, FULL_HOUR + MINUTE, [20 * MS] * 98 + [400 * MS] * 2, bound_s=0.05, errors=1)
    requests(run, FULL_HOUR + 59 * MINUTE, [20 * MS] * 100, bound_s=0.05, rank=1)
    requests(run, FULL_HOUR + 2 * HOUR, [5 * MS], name="chat")
    answer = read_periods(read_run(run.write()), HOUR)

    (predict,) = answer.periods[1].requests
    assert (predict.count, predict.errors, predict.within, predict.max_ns) == (
        200,
        1,
        198,
        400 * MS,
    )
    assert predict.p50_ns == pytest.approx(20 * MS, rel=predict.error_ratio)
    assert [len(one.requests) for one in answer.periods] == [0, 1, 0, 1, 0]
    lines = [" ".join(line.split()) for line in render_periods(answer).splitlines()]
    at = lines.index("requests predict, within 50.0 ms")
    assert lines[at + 1 : at + 8] == [
        "calls failed calls/s mean p50 p95 p99 max within",
        "Thu 09 Oct",
        "08:00 0 – – – – – – – –",
        "09:00 200 1 0.06 23.8 ms 20.0 ms 20.2 ms 20.3 ms 400 ms 99.00 %",
        "10:00 0 – – – – – – – –",
        "11:00 0 – – – – – – – –",
        "12:00 0 – – – – – – – –",
    ]
    assert all(len(line) <= 80 for line in render_periods(answer).splitlines())


def test_a_phase_that_is_asked_for(run):
    """Steps of that phase alone, or requests alone, or which ones there are."""
    run.step(0, FULL_HOUR, {"forward": 10 * MS})
    run.step(0, FULL_HOUR, {"forward": 5 * MS}, phase="validate")
    requests(run, FULL_HOUR, [MS])
    folder = read_run(run.write())

    validated = read_periods(folder, HOUR, phase="eval").periods[1]
    assert (validated.steps.mean_ns, validated.requests) == (5 * MS, [])
    served = read_periods(folder, HOUR, phase="request").periods[1]
    assert (served.steps, served.requests[0].count) == (None, 1)
    with pytest.raises(NoSuchPhase, match="the run has phases train, validate, request"):
        read_periods(folder, HOUR, phase="test")
    with pytest.raises(NoSuchRun, match="the run has ranks 0"):
        read_periods(folder, HOUR, rank=7)


def test_between_two_starts_nobody_is_there(run):
    """A run that was started again two hours later says how long it was away."""
    run.process(FULL_HOUR + 9 * HOUR, restart=1, start_ns=START + FULL_HOUR + 6 * HOUR)
    answer = read_periods(read_run(run.write()), HOUR)

    shares = [one.lived_ns / HOUR for one in answer.periods[1:]]
    assert shares == [1, 1, 1, 0.25, 0, 0, 1, 1, 1]
    assert "\n  14:00 0 %\n" in "\n".join(
        line[:7] + " " + " ".join(line[7:].split()) for line in render_periods(answer).splitlines()
    )


def test_what_the_process_used(run):
    """CPU time between readings; the peak is one of the hour in which it rose."""
    for minute in range(0, 121, 30):
        at = FULL_HOUR + minute * MINUTE - S
        used = {30: 900, 60: 1800, 90: 1860, 120: 1920}.get(minute, 0)
        for mode in ("user", "system"):
            labels = {names.CPU_MODE: mode, names.PROCESS_ROLE: "main"}
            reading(run, names.PROCESS_CPU_TIME, at, used, **labels)
        worker = {names.CPU_MODE: "user", names.PROCESS_ROLE: "worker"}
        reading(run, names.PROCESS_CPU_TIME, at, 9 * minute, **worker)
        main = {names.PROCESS_ROLE: "main"}
        reading(run, names.PROCESS_MEMORY, at, 100 + minute, **main)
        reading(run, names.RUN_MEMORY_PEAK, at, 150 if minute < 60 else 900)
    answer = read_periods(read_run(run.write()), HOUR)

    used = [one.process for one in answer.periods]
    assert [one.cpus for one in used] == [None, 1.0, pytest.approx(120 * 2 / 3600), None, None]
    assert [one.memory_peak_bytes for one in used] == [150, 900, 220, None, None]


def test_requests_of_an_earlier_version_are_said_to_have_no_time(run):
    """Its parts do not say when they ended: they are in no hour, and counted."""
    requests(run, None, [MS, MS, MS])
    answer = read_periods(read_run(run.write()), HOUR)

    assert (answer.undated_requests, [one.requests for one in answer.periods]) == (3, [[]] * 5)
    assert "3 requests without a timestamp" in render_periods(answer)


steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # rank
        st.integers(0, 1),  # restart
        st.integers(0, 11),  # n
        st.integers(0, 4 * HOUR),  # when it began
        st.integers(0, 3 * MINUTE),  # forward
        st.integers(0, MINUTE),  # waiting
        st.booleans(),
        st.none() | st.integers(0, 100),
    ),
    max_size=40,
    unique_by=lambda step: step[:3],
)
calls = st.lists(
    st.tuples(
        st.sampled_from(["predict", "chat"]),
        st.integers(0, 1),
        st.integers(0, 4 * HOUR),
        st.lists(st.integers(1, 10 * S), min_size=1, max_size=5),
        st.sampled_from([None, 0.5]),
    ),
    max_size=20,
)


@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(steps=steps, calls=calls, minutes=st.sampled_from([1, 7, 60, 1440]))
def test_the_sums_over_the_periods_are_those_of_the_run(steps, calls, minutes):
    """Counts, times, waits and shares of whatever was recorded, and the longest of all."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolderBuilder(Path(folder))
        for rank in range(3):
            run.process(5 * HOUR, rank=rank)
        for rank, restart, n, at, forward, wait, error, samples in steps:
            parts = {"forward": forward, "data.load": wait}
            run.step(n, at, parts, rank=rank, restart=restart, error=error, samples=samples)
        for name, rank, at, values, bound_s in calls:
            requests(run, at, values, name, rank=rank, bound_s=bound_s)
        read = read_run(run.write())
        whole, cut = summarize(read), read_periods(read, minutes * MINUTE).periods

    assert sum(one.lived_ns for one in cut) == whole.duration_ns
    told = [one.steps for one in cut if one.steps]
    measured = sum(one.measured for one in told)
    if whole.steps is None:
        assert not told
    else:
        assert sum(one.count for one in told) == whole.steps.count
        assert sum(one.sum_ns for one in told) == pytest.approx(whole.steps.mean_ns * measured)
        waits = [row.mean_ns for row in whole.steps.rows if row.name == "data wait"]
        assert sum(one.wait_ns for one in told) == pytest.approx(sum(waits) * measured)
        assert sum(one.samples or 0 for one in told) == sum(step[-1] or 0 for step in steps)
        failed = {step[1:3] for step in steps if step[6]}
        assert sum(one.failed for one in told) == len(failed)
    for call in whole.calls:
        parts = [
            one
            for period in cut
            for one in period.requests
            if (one.name, one.bound_s) == (call.name, call.bound_s)
        ]
        for figure in ("count", "errors", "sum_ns"):
            assert sum(getattr(one, figure) for one in parts) == getattr(call, figure)
        assert sum(one.within or 0 for one in parts) == (call.within or 0)
        assert max(one.max_ns for one in parts) == call.max_ns


def test_periods_begin_at_midnight_of_the_local_clock(monkeypatch):
    """Where it is half an hour off, hours begin at full hours of that clock all the same."""
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    noon = 1_760_000_000 // 86_400 * 86_400 + 43_200  # 17:30 there

    hours, thirds = (lay_grid(noon * S, (noon + 7200) * S, size) for size in (HOUR, 7 * HOUR))
    assert (hours.utc_offset_s, hours.origin_ns, hours.periods) == (19_800, (noon - 1800) * S, 3)
    assert time.localtime(thirds.origin_ns // S)[3:5] == (14, 0)


def test_lengths():
    """Whole minutes, hours and days, and not more periods than anybody could use."""
    assert [parse_length(text) for text in ("15m", "1h", "7d")] == [15 * MINUTE, HOUR, 168 * HOUR]
    for wrong in ("30s", "0h", "1.5h", "h", "", "1w"):
        with pytest.raises(UsageError, match=r"e\.g\. 15m, 1h, 1d"):
            parse_length(wrong)
    with pytest.raises(UsageError, match="divided into 525,601 periods"):
        lay_grid(START // HOUR * HOUR, START // HOUR * HOUR + 365 * 24 * HOUR, MINUTE)
