"""Telemetry sent through the shipped configuration reaches Jaeger and Prometheus."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
import uuid

import pytest
import urllib3
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from servers.feed import Made, feed
from servers.running import DEPLOY, wait_until

from otel_mlperf import names

pytestmark = pytest.mark.servers

TOO_SLOW_S = 8.0
"""Longer than an exporter of the Collector waits for an answer unless it is told."""


@pytest.fixture
def run_name():
    """A run that no other test writes to."""
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def resource(run_name):
    """What a training process says about itself."""
    return Resource(
        {
            names.SERVICE_NAME: f"{run_name}-service",
            names.SERVICE_INSTANCE_ID: str(uuid.uuid4()),
            names.HOST_NAME: "node-7",
            names.RUN_NAME: run_name,
            names.RANK: 3,
        }
    )


@pytest.fixture
def tracing(resource):
    """Makes tracers that send each span at once to an endpoint."""
    providers = []

    def tracer(endpoint):
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=60)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        providers.append(provider)
        return provider.get_tracer("test")

    yield tracer
    for provider in providers:
        provider.shutdown()


@pytest.fixture
def metering(servers, resource):
    """A provider whose histograms are exponential, flushed by hand."""
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(
            endpoint=f"{servers.otlp_endpoint}/v1/metrics",
            preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()},
        ),
        export_interval_millis=float("inf"),
    )
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def hex_trace_id(span):
    """A span's trace id as Jaeger spells it."""
    return f"{span.get_span_context().trace_id:032x}"


def test_a_span_is_in_jaeger_as_it_was_sent(servers, tracing, resource):
    """Ids, parent, times, attributes, status, links and resource of a span survive the way."""
    tracer = tracing(servers.otlp_endpoint)
    with tracer.start_as_current_span("train.step") as parent:
        link = trace.Link(parent.get_span_context())
        with tracer.start_as_current_span(
            "forward", attributes={names.SECTION_CATEGORY: names.FORWARD, "n": 7}, links=[link]
        ) as child:
            child.set_status(trace.StatusCode.ERROR)

    spans = wait_until(lambda: servers.jaeger_trace(hex_trace_id(parent)))

    found = {span.name: span for span in spans}
    assert found.keys() == {"train.step", "forward"}
    assert found["train.step"].parent_id == ""
    assert found["train.step"].span_id == f"{parent.get_span_context().span_id:016x}"
    forward = found["forward"]
    assert forward.parent_id == found["train.step"].span_id
    assert (forward.start_ns, forward.end_ns) == (child.start_time, child.end_time)
    assert forward.attributes == {names.SECTION_CATEGORY: names.FORWARD, "n": 7}
    assert forward.status == "error"
    assert forward.links == [(forward.trace_id, found["train.step"].span_id)]
    assert forward.resource[names.RANK] == 3
    assert resource.attributes[names.SERVICE_NAME] in servers.jaeger_services()


def test_an_unknown_trace_is_empty(servers):
    """Asking for a trace that nobody sent gives no spans and no error."""
    assert servers.jaeger_trace(uuid.uuid4().hex) == []


def test_a_histogram_is_native_in_prometheus_and_leads_to_its_trace(
    servers, tracing, metering, run_name
):
    """An exponential histogram arrives whole, with run, rank and host as labels and an exemplar."""
    steps = metering.get_meter("test").create_histogram(
        names.STEP_DURATION.name, unit=names.STEP_DURATION.unit
    )
    with tracing(servers.otlp_endpoint).start_as_current_span("train.step") as span:
        for duration in (0.270, 0.271, 0.272):
            steps.record(duration, {names.ML_PHASE: names.TRAIN})
    assert metering.force_flush()
    name = names.STEP_DURATION.prometheus
    series = f'{name}{{ml_run_name="{run_name}",ml_distributed_rank="3",host_name="node-7"}}'

    [sample] = wait_until(lambda: servers.promql(series))

    assert sample.histogram is not None
    assert sample.value == 3
    assert sample.labels["ml_phase"] == names.TRAIN
    [median] = servers.promql(f"histogram_quantile(0.5, {series})")
    assert median.value == pytest.approx(0.271, rel=0.01)
    exemplar = wait_until(lambda: servers.promql_exemplars(series))[-1]
    assert exemplar.trace_id == hex_trace_id(span)
    assert wait_until(lambda: servers.jaeger_trace(exemplar.trace_id))


def test_a_histogram_that_grows_has_no_resets(servers, run_name):
    """Durations that are nearly alike, as steps are: each count stays in its bucket."""
    end, length_s, chosen = time.time() // 15 * 15, 300, random.Random(1)

    def near_70_ms(_age_s):
        return 0.07 + chosen.expovariate(1000)

    series = [Made(names.STEP_DURATION, {names.ML_PHASE: names.TRAIN}, near_70_ms)]
    feed(servers.otlp_endpoint, {names.RUN_NAME: run_name}, series, end - length_s, end)
    which = f'{names.STEP_DURATION.prometheus}{{ml_run_name="{run_name}"}}'

    wait_until(lambda: servers.promql(f"histogram_count({which}) == {length_s}", end))
    (resets,) = servers.promql(f"resets({which}[1h])", end)
    assert resets.value == 0


def test_spans_become_the_series_of_jaegers_monitor_tab(servers, tracing, resource):
    """The Collector counts spans under the names that Jaeger asks Prometheus for."""
    service = resource.attributes[names.SERVICE_NAME]
    with tracing(servers.otlp_endpoint).start_as_current_span("train.step"):
        pass
    selector = f'{{service_name="{service}",span_name="train.step"}}'

    # A new series begins with a zero, so that a rate sees its first increment.
    assert wait_until(lambda: servers.promql(f"traces_span_metrics_calls_total{selector} == 1"))
    assert servers.promql(f"traces_span_metrics_duration_milliseconds_bucket{selector}")


def test_kernels_stay_out_of_the_monitor_tab(servers, tracing, resource):
    """A span of category kernel is stored, and makes no series."""
    service = resource.attributes[names.SERVICE_NAME]
    tracer = tracing(servers.otlp_endpoint)
    with tracer.start_as_current_span("gemm", attributes={names.SECTION_CATEGORY: names.KERNEL}):
        pass
    with tracer.start_as_current_span("train.step") as later:
        pass
    wait_until(lambda: servers.jaeger_trace(hex_trace_id(later)))

    series = wait_until(
        lambda: servers.promql(f'traces_span_metrics_calls_total{{service_name="{service}"}}')
    )

    assert [one.labels["span_name"] for one in series] == ["train.step"]


def test_the_stack_answers_where_prometheus_asks(servers):
    """Each program's own figures are where Prometheus was told to scrape them."""
    targets = wait_until(servers.prometheus_targets)

    assert targets.keys() == {"collector", "jaeger", "prometheus"}
    for address in targets.values():
        assert urllib3.request("GET", address, timeout=60.0).status == 200


def test_what_a_collector_accepted_survives_its_death(servers, collector, tracing):
    """A Collector that is killed with spans in its queue delivers them after its restart."""
    own = collector()
    own.start()
    tracer = tracing(own.otlp_endpoint)
    with tracer.start_as_current_span("train.step") as before:
        pass
    own.kill()
    own.start()
    with tracer.start_as_current_span("train.step") as after:
        pass

    for span in (before, after):
        assert wait_until(lambda span=span: servers.jaeger_trace(hex_trace_id(span)))


def test_log_records_are_written_to_a_file_with_their_ids(servers, tracing):
    """A program's log records are not refused; each is in the file with the ids of its section."""
    with tracing(servers.otlp_endpoint).start_as_current_span("train.step") as span:
        ids = {
            "traceId": hex_trace_id(span),
            "spanId": f"{span.get_span_context().span_id:016x}",
        }
    record = {"body": {"stringValue": "loss is not a number"}, **ids}
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}

    answer = urllib3.request("POST", f"{servers.otlp_endpoint}/v1/logs", json=logs, timeout=60.0)

    assert answer.status == 200
    written = servers.collector.logs
    assert wait_until(lambda: written.exists() and ids["spanId"] in written.read_text())
    (line,) = (line for line in written.read_text().splitlines() if ids["spanId"] in line)
    assert json.loads(line)["resourceLogs"][0]["scopeLogs"][0]["logRecords"] == [record]


def test_what_jaeger_takes_late_is_not_sent_again(servers, collector, tracing):
    """Else a Jaeger that is too slow for a burst gets all of it again and again, and more of it."""
    own = collector()
    own.start()
    with tracing(own.otlp_endpoint).start_as_current_span("train.step") as early:
        pass
    wait_until(lambda: servers.jaeger_trace(hex_trace_id(early)))

    with servers.jaeger_server.stopped():
        with tracing(own.otlp_endpoint).start_as_current_span("train.step") as late:
            pass
        time.sleep(TOO_SLOW_S)

    assert wait_until(lambda: servers.jaeger_trace(hex_trace_id(late)))
    own.stop()
    assert "retry" not in own.log.read_text()


def test_the_compose_file_loads(go, tmp_path):
    """Docker Compose's own loader accepts the file and finds the secret that the script makes."""
    deploy = shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([deploy / "create-secret.sh"], check=True, capture_output=True)

    loaded = subprocess.run(
        [go, "run", "github.com/compose-spec/compose-go/v2/cmd@v2.16.2", "compose.yaml"],
        cwd=deploy,
        capture_output=True,
        text=True,
        check=False,
    )

    assert loaded.returncode == 0, loaded.stderr


def test_prometheus_accepts_its_file(promtool):
    """Its own checker finds nothing to say against the shipped Prometheus configuration."""
    checked = subprocess.run(
        [promtool, "check", "config", "--lint-fatal", DEPLOY / "prometheus" / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr
