"""Does Prometheus understand what the shipped dashboard asks, and answer it rightly?"""

from __future__ import annotations

import time
import uuid

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from servers.dashboard import dashboard_queries
from servers.running import wait_until

from otel_mlperf import names

pytestmark = pytest.mark.servers

TRAIN = {names.ML_PHASE: names.TRAIN}
STEPS = 8
STEP_S = 0.5
WAIT_S = 0.125
SAMPLES = 64


def instruments(meter):
    """Every counter and histogram that the dashboard reads, as the SDK makes them."""
    make = {"counter": meter.create_counter, "histogram": meter.create_histogram}
    return {
        metric: make[metric.instrument](metric.name, unit=metric.unit)
        for metric in names.METRICS
        if metric.instrument in make
    }


def record_step(made):
    """One training step: a quarter of it waits for data, the rest is forward."""
    waits = TRAIN | {
        names.SECTION_NAME: names.SPAN_DATA,
        names.SECTION_CATEGORY: names.DATA_LOADING,
    }
    works = TRAIN | {names.SECTION_NAME: "forward", names.SECTION_CATEGORY: names.FORWARD}
    made[names.STEP_DURATION].record(STEP_S, TRAIN)
    made[names.SECTION_DURATION].record(WAIT_S, waits)
    made[names.SECTION_SELF_TIME].add(WAIT_S, waits)
    made[names.SECTION_SELF_TIME].add(STEP_S - WAIT_S, works)
    made[names.STEPS].add(1, TRAIN)
    made[names.SAMPLES].add(SAMPLES, TRAIN)


@pytest.fixture(scope="module")
def run(servers):
    """A run whose rank 0 made steps of known parts in two collections: its name, and when."""
    name = f"run-{uuid.uuid4().hex[:12]}"
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(
            endpoint=f"{servers.otlp_endpoint}/v1/metrics",
            preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()},
        ),
        export_interval_millis=float("inf"),
    )
    resource = Resource(
        {names.SERVICE_INSTANCE_ID: str(uuid.uuid4()), names.RUN_NAME: name, names.RANK: 0}
    )
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter("test")
    made = instruments(meter)
    meter.create_gauge(names.LAST_STEP_TIME.name, unit=names.LAST_STEP_TIME.unit).set(time.time())
    counted = f'{names.STEPS.prometheus}{{ml_run_name="{name}"}}'
    for total in (STEPS, 2 * STEPS):
        for _ in range(STEPS):
            record_step(made)
        assert provider.force_flush()
        wait_until(lambda total=total: servers.promql(f"{counted} == {total}"))
    yield name, time.time()
    provider.shutdown()


@pytest.fixture
def answer(servers, run):
    """Asks the dashboard's query that has this panel and legend, always at the same moment."""
    name, at = run

    def ask(panel, legend):
        [query] = [
            one for one in dashboard_queries(name) if (one.panel, one.legend) == (panel, legend)
        ]
        return servers.promql(query.expr, at)

    return ask


@pytest.mark.parametrize("query", dashboard_queries("any-run"), ids=lambda one: one.panel)
def test_prometheus_understands_every_query(servers, query):
    """No query of the dashboard is refused, whether or not there are data."""
    servers.promql(query.expr)


def test_step_time_is_the_time_of_the_steps(answer):
    """Mean, median and 95th percentile of equal steps are all their duration."""
    for legend in ("mean", "p50", "p95"):
        [sample] = answer("Step time", legend)
        assert sample.value == pytest.approx(STEP_S, rel=0.05)


def test_data_wait_is_the_share_that_waited(answer):
    """The share of waiting is exact, in the figure and by rank."""
    [overall] = answer("Data wait", "data wait")
    [by_rank] = answer("Data wait share", "rank {{ml_distributed_rank}}")

    assert overall.value == pytest.approx(WAIT_S / STEP_S)
    assert by_rank.value == pytest.approx(WAIT_S / STEP_S)
    assert by_rank.labels == {"ml_distributed_rank": "0"}


def test_self_times_add_up_to_the_step(answer):
    """Categories and sections show seconds per step, and together the step."""
    categories = answer("Self time per step", "{{ml_section_category}}")
    sections = answer("Where a step goes", "{{ml_section_name}}")

    assert {one.labels["ml_section_category"]: one.value for one in categories} == {
        names.DATA_LOADING: pytest.approx(WAIT_S),
        names.FORWARD: pytest.approx(STEP_S - WAIT_S),
    }
    assert sum(one.value for one in sections) == pytest.approx(STEP_S)
    assert sections[0].labels["ml_section_name"] == "forward"


def test_samples_go_with_steps(answer):
    """Samples per second are steps per second times the batch."""
    [steps] = answer("Steps per second", "steps/s")
    [samples] = answer("Samples per second", "samples/s")

    assert samples.value == pytest.approx(steps.value * SAMPLES)


def test_the_last_step_is_some_seconds_ago(answer):
    """The age of the last step counts from when it ended."""
    [age] = answer("Last step ago", "last step")

    assert 0 <= age.value < 600


def test_nothing_lost_is_a_zero_not_a_gap(answer):
    """A run that lost nothing shows 0, since an empty panel would leave it open."""
    [lost] = answer("Lost telemetry", "items lost")

    assert lost.value == 0
