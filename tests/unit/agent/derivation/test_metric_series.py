"""Series as points."""

from __future__ import annotations

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.metric_series import MOST_SERIES, Export, Meter
from otel_mlperf.agent.model.agent_state import RankState
from otel_mlperf.agent.model.events import SensorReading
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.otlp.metric_encoding import (
    ExponentialPoints,
    GaugePoints,
    HistogramPoints,
    SumPoints,
)

META = JournalMeta(
    run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip


def rank() -> RankState:
    return RankState(META, "instance")


def collected(state, start=100, now=5_000_000_000):
    found = Export(start, now).collect(state.series.values(), {})
    return {metric.name: metric.data for metric in found}


def test_new_counter_starts_with_a_zero_point_once(tmp_path) -> None:
    """The first export has zero in front of the value, the second the value alone."""
    state = rank()
    Meter(state).add(names.STEPS, {"ml.phase": "train"}, 3)
    first = collected(state)["ml.training.steps"]
    second = collected(state, now=6_000_000_000)["ml.training.steps"]

    assert isinstance(first, SumPoints)
    assert [(p.time_ns, p.value) for p in first.points] == [
        (4_999_000_000, 0.0),
        (5_000_000_000, 3.0),
    ]
    assert [(p.start_ns, p.time_ns, p.value) for p in second.points] == [(100, 6_000_000_000, 3.0)]


def test_new_histogram_starts_empty(tmp_path) -> None:
    """An exponential histogram's first point counts nothing, its second everything."""
    state = rank()
    Meter(state).record(names.STEP_DURATION, {"ml.phase": "train"}, np.array([10**9, 2 * 10**9]))
    data = collected(state)["ml.training.step.duration"]

    assert isinstance(data, ExponentialPoints)
    assert [(p.count, p.sum) for p in data.points] == [(0, 0.0), (2, 3.0)]


def test_explicit_buckets_on_request() -> None:
    """With the standard variable set histograms have the documented bounds."""
    state = rank()
    Meter(state, explicit=True).record(names.STEP_DURATION, {}, np.array([10**6]))
    data = collected(state)["ml.training.step.duration"]

    assert isinstance(data, HistogramPoints)
    assert data.points[1].counts[0] == 1


def test_gauge_has_neither_start_nor_zero() -> None:
    """A gauge is its value now."""
    state = rank()
    Meter(state).set("ml.user.temperature", {}, 2.5)
    data = collected(state)["ml.user.temperature"]

    assert isinstance(data, GaugePoints)
    assert [(p.start_ns, p.value) for p in data.points] == [(0, 2.5)]


def test_series_beyond_the_limit_are_counted_together() -> None:
    """Label sets are bounded; the rest is in one series marked as overflow."""
    state = rank()
    for i in range(MOST_SERIES + 10):
        Meter(state).add(names.SECTION_SELF_TIME, {"ml.section.name": str(i)}, 1.0)

    assert len(state.series) == MOST_SERIES + 1
    overflow = [s for s in state.series.values() if "otel.metric.overflow" in s.labels]
    assert [s.value for s in overflow] == [10.0]


def test_gauge_that_is_gone_ends_once() -> None:
    """A dropped gauge is told as having no value; one that nobody has seen is not told at all."""
    state = rank()
    meter = Meter(state)
    meter.set(names.OPEN_AGE.name, {"ml.section.name": "forward"}, 3.0)
    collected(state)
    meter.set(names.OPEN_AGE.name, {"ml.section.name": "unseen"}, 1.0)
    meter.drop(names.OPEN_AGE)
    meter.set(names.OPEN_AGE.name, {"ml.section.name": "backward"}, 0.5)
    data = collected(state)[names.OPEN_AGE.name]

    assert [(p.attributes["ml.section.name"], p.value) for p in data.points] == [
        ("forward", None),
        ("backward", 0.5),
    ]


def energy(joules: float) -> SensorReading:
    return SensorReading("", names.HW_ENERGY.name, {"hw.id": "GPU-0"}, joules)


def test_total_that_began_before_us_has_no_zero_point() -> None:
    """What a GPU had used before the run is no increase in it: its start is its first reading."""
    state = rank()
    Meter(state).read("gpu", energy(5e6), 4_000_000_000)
    first = collected(state)[names.HW_ENERGY.name]
    Meter(state).read("gpu", energy(5e6 + 7), 9_000_000_000)
    second = collected(state, now=9_500_000_000)[names.HW_ENERGY.name]

    assert [(p.start_ns, p.time_ns, p.value) for p in first.points] == [
        (4_000_000_000, 4_000_000_000, 5e6)
    ]
    assert [(p.start_ns, p.time_ns, p.value) for p in second.points] == [
        (4_000_000_000, 9_000_000_000, 5e6 + 7)
    ]


def test_total_of_our_own_begins_with_us() -> None:
    """Its first value is an increase: a zero point stands in front of it."""
    state = rank()
    late = SensorReading("", names.SAMPLER_LATE.name, {"otel_mlperf.sampler.name": "gpu"}, 1.0)
    Meter(state).read("gpu", late, 4_000_000_000)
    data = collected(state)[names.SAMPLER_LATE.name]

    assert [(p.start_ns, p.time_ns, p.value) for p in data.points] == [
        (100, 3_999_000_000, 0.0),
        (100, 4_000_000_000, 1.0),
    ]


def test_total_that_is_not_read_any_more_ends() -> None:
    """A lost device's counter is told to have no value, as its gauges are."""
    state = rank()
    meter = Meter(state)
    meter.read("gpu", energy(5e6), 4_000_000_000)
    collected(state)
    meter.drop_source("gpu")
    data = collected(state, now=6_000_000_000)[names.HW_ENERGY.name]

    assert [(p.time_ns, p.value) for p in data.points] == [(6_000_000_000, None)]


def test_readings_of_large_machines_are_never_counted_together() -> None:
    """The bound is on what programs name: what a machine has is told whole."""
    state = rank()
    for cpu in range(MOST_SERIES + 10):
        labels = {"cpu.mode": "user", "cpu.logical_number": str(cpu)}
        Meter(state).read("host", SensorReading("", names.SYSTEM_CPU_TIME.name, labels, 1.0), 9)
    Meter(state).add(names.STEPS, {"ml.phase": "train"}, 3)

    assert len(state.series) == MOST_SERIES + 11
    assert not any("otel.metric.overflow" in series.labels for series in state.series.values())
