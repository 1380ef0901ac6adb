"""Deltas of each series add up to its cumulative total."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter, UpDownCounter

from otel_mlperf import names
from otel_mlperf.agent.derivation.metric_series import Export, Meter
from otel_mlperf.agent.model.agent_state import RankState
from otel_mlperf.agent.model.events import SensorReading
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.otlp.endpoint_settings import read_metric_settings
from otel_mlperf.otlp.metric_encoding import GaugePoints

META = JournalMeta(
    run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip
S = 10**9
PHASE = {"ml.phase": "train"}
PREFERENCE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
FROM_ELSEWHERE = names.SYSTEM_CPU_TIME.name


def sent(state, now_s, temporality="delta"):
    """The data of each metric in one export."""
    export = Export(100, now_s * S, temporality=temporality)
    export.collect(state.series.values(), {})
    return {metric.name: metric.data for metric in export.preferred}


@given(rounds=st.lists(st.lists(st.floats(1e-9, 1e6), max_size=8), min_size=1, max_size=6))
@pytest.mark.parametrize("explicit", [False, True])
def test_histograms_add_up(explicit, rounds):
    """Count, sum, zeros and each bucket, also where the scale becomes coarser in between."""
    state, parts = RankState(META, "i"), []
    meter = Meter(state, explicit=explicit)
    for number, seconds in enumerate(rounds, 1):
        meter.record(names.STEP_DURATION, PHASE, np.array([0.0, *seconds]) * 1e9)
        (part,) = sent(state, number)[names.STEP_DURATION.name].points
        parts.append(part)

    (series,) = state.series.values()
    whole = series.buckets.point(PHASE, 100, 0)
    assert [part.start_ns for part in parts] == [100, *(part.time_ns for part in parts[:-1])]
    assert [part.count for part in parts] == [1 + len(seconds) for seconds in rounds]
    assert sum(part.sum for part in parts) == pytest.approx(whole.sum)
    assert all(count >= 0 for part in parts for count in part.counts)
    if explicit:
        columns = zip(*(part.counts for part in parts), strict=True)
        assert tuple(map(sum, columns)) == whole.counts
        return
    assert sum(part.zero_count for part in parts) == whole.zero_count
    found = {}
    for part in parts:
        for index, count in enumerate(part.counts, part.offset):
            index >>= part.scale - whole.scale  # noqa: PLW2901 - to the scale of the last one
            found[index] = found.get(index, 0) + count
    expected = dict(enumerate(whole.counts, whole.offset))
    assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.items() if v}


def test_counters_add_up():
    """From the first value on, without a point in front of it; nothing new is a zero."""
    state, points = RankState(META, "i"), []
    for second, more in enumerate((3, 0, 4), 1):
        Meter(state).add(names.STEPS, PHASE, more)
        points += sent(state, second)[names.STEPS.name].points

    assert [(point.start_ns, point.time_ns, point.value) for point in points] == [
        (100, S, 3),
        (S, 2 * S, 0),
        (2 * S, 3 * S, 4),
    ]


def test_total_from_elsewhere_counts_since_its_first_export():
    """What came together before is no increase; a reset counts from zero, a repeat not at all."""
    state, found = RankState(META, "i"), []
    readings = [(50.0, 1), (53.0, 2), (53.0, 2), (2.0, 3), (5.0, 4)]
    for now, (value, read_s) in enumerate(readings, 10):
        reading = SensorReading("", FROM_ELSEWHERE, {"cpu.mode": "user"}, value)
        Meter(state).read("cpu", reading, read_s * S)
        data = sent(state, now).get(FROM_ELSEWHERE)
        found.append([(p.start_ns, p.time_ns, p.value) for p in data.points] if data else [])

    assert found == [[], [(S, 2 * S, 3)], [], [(2 * S, 3 * S, 2)], [(3 * S, 4 * S, 3)]]


def test_account_that_may_fall_stays_cumulative():
    """What became of items follows from servers' answers: it is a sum that is not monotonic."""
    state = RankState(META, "i")
    Meter(state).set(names.ITEMS.name, {}, 5)
    data = sent(state, 1)[names.ITEMS.name]

    assert (data.monotonic, data.is_delta) == (False, False)


@pytest.mark.parametrize("preference", ["cumulative", "delta", "lowmemory"])
def test_temporality_of_each_kind_is_that_of_the_sdk(monkeypatch, preference):
    """Of counters, up-down counters, histograms, and totals that somebody else counts."""
    monkeypatch.setenv(PREFERENCE, preference.upper())
    theirs = OTLPMetricExporter(endpoint="http://localhost:1")._preferred_temporality
    temporality = read_metric_settings({PREFERENCE: preference.upper()})[0].temporality
    state = RankState(META, "i")
    meter = Meter(state)
    meter.add(names.STEPS, PHASE, 1)
    meter.record(names.STEP_DURATION, PHASE, np.array([1]))
    meter.set(names.AGENT_MEMORY.name, {}, 1)
    for second in (1, 2):
        meter.read("cpu", SensorReading("", FROM_ELSEWHERE, {}, second), second * S)
        export = Export(100, second * S, temporality=temporality)
        cumulative = export.collect(state.series.values(), {})
    chosen = cumulative if temporality == "cumulative" else export.preferred
    ours = {
        metric.name: 1 if metric.data.is_delta else 2
        for metric in chosen
        if not isinstance(metric.data, GaugePoints)
    }

    assert ours == {
        names.STEPS.name: theirs[Counter].value,
        names.STEP_DURATION.name: theirs[Histogram].value,
        names.AGENT_MEMORY.name: theirs[UpDownCounter].value,
        FROM_ELSEWHERE: theirs[ObservableCounter].value,
    }
