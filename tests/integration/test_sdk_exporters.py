"""Exporters of the OpenTelemetry SDK, as they are, at work in the agent of a real program."""

from __future__ import annotations

import gzip
import json
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from by_hand import adds_up
from grpc_fault_server import GrpcFaultServer
from runs import Running, run_program
from servers.running import free_ports, wait_until

REMOTE = 0x300
"""Bits of the flags that say whether a parent or target is remote."""
KEEP_ALL = {"OTEL_MLPERF_TRACE_EVERY": "1"}


@pytest.mark.slow
def test_exporter_by_grpc_sends_what_our_client_sends(tmp_path):
    """Each span arrives twice, by both, and both say the same, field by field."""
    with GrpcFaultServer(tmp_path) as grpc:
        ended = run_program(
            tmp_path / "runs", "--steps", "8",
            OTEL_TRACES_EXPORTER="otlp_proto_grpc,otlp",
            OTEL_METRICS_EXPORTER="otlp_proto_grpc",
            OTEL_EXPORTER_OTLP_ENDPOINT=grpc.url,
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            **KEEP_ALL,
        ).settled()  # fmt: skip
        spans, points = grpc.spans(), grpc.points()
    assert ended.code == 0, ended.errors
    pairs: dict[str, list[dict]] = {}
    for span in spans:
        span["flags"] &= REMOTE  # the SDK's encoder does not say that a trace is sampled
        for link in span["link_fields"]:
            link[1] &= REMOTE
        pairs.setdefault(span["span_id"], []).append(span)
    assert all(first == second for first, second in pairs.values())
    stored = ended.rows("SELECT span_id FROM spans")
    assert {row["span_id"] for row in stored} == set(pairs)
    assert [point["value"] for point in points if point["name"] == "ml.training.steps"][-1] == 8
    accounts = ended.accounts()
    assert set(accounts["metrics"]) == {"otlp_proto_grpc"}
    for name in ("otlp", "otlp_proto_grpc"):
        assert accounts["spans"][name]["delivered"] == len(pairs)
        assert adds_up(accounts["spans"][name])


def scraped(port: int) -> str:
    """The page of the Prometheus exporter; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return page.read().decode()  # type: ignore[no-any-return]
    except OSError:
        return ""


@pytest.mark.slow
def test_prometheus_is_scraped_while_the_job_runs(tmp_path):
    """A second agent, whose port is taken, counts its loss and stores its run."""
    (port,) = free_ports(1)
    variables = {
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
    }
    with Running(tmp_path / "runs", "--pause", "0.01", **variables) as job:
        wait_until(lambda: "ml_training_steps_total{" in scraped(port), what="a scrape")
        page = scraped(port)
        second = run_program(tmp_path / "second", "--steps", "5", **variables).settled()
        first = job.end().settled()

    assert "ml_training_step_duration_seconds_bucket{" in page
    assert 'ml_distributed_rank="0"' in page
    lost = second.accounts()["metrics"]["prometheus"]
    assert lost["lost"] == {"not_loaded": lost["created"]}
    assert second.accounts()["spans"]["store"]["delivered"] > 0
    (log,) = second.folder.glob("agent/*/agent.log")
    assert "Address already in use" in log.read_text()
    account = first.accounts()["metrics"]["prometheus"]
    assert account["delivered"] == account["created"]


class _Insights(BaseHTTPRequestHandler):
    """The part of Application Insights that takes telemetry."""

    taken: list[dict]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        items = json.loads(body)
        type(self).taken += items
        answer = {"itemsReceived": len(items), "itemsAccepted": len(items), "errors": []}
        sent = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_) -> None:
        pass


@contextmanager
def insights():
    """A server of it, and what it has taken."""
    taken: list[dict] = []
    handler = type("Insights", (_Insights,), {"taken": taken})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", taken
        server.shutdown()


@pytest.mark.frameworks
def test_exporter_of_a_vendor_delivers_unchanged(tmp_path):
    """Azure Monitor gets every kept span, and totals as the sums of its deltas."""
    pytest.importorskip("azure.monitor.opentelemetry.exporter")
    name = "azure_monitor_opentelemetry_exporter"
    with insights() as (url, taken):
        ended = run_program(
            tmp_path / "runs", "--steps", "8",
            OTEL_TRACES_EXPORTER=name, OTEL_METRICS_EXPORTER=name,
            APPLICATIONINSIGHTS_CONNECTION_STRING=f"InstrumentationKey={'0' * 8}-0000-0000-0000-"
            f"{'0' * 11}1;IngestionEndpoint={url}",
            APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL="true",
            APPLICATIONINSIGHTS_SDKSTATS_DISABLED="true",
            **KEEP_ALL,
        ).settled()  # fmt: skip
    assert ended.code == 0, ended.errors
    kinds = [item["data"]["baseType"] for item in taken]
    spans = [item for item, kind in zip(taken, kinds, strict=True) if kind != "MetricData"]
    account = ended.accounts()["spans"][name]
    assert account["delivered"] == len(spans) == ended.rows("SELECT count(*) n FROM spans")[0]["n"]
    totals = [
        metric["value"]
        for item, kind in zip(taken, kinds, strict=True)
        if kind == "MetricData"
        for metric in item["data"]["baseData"]["metrics"]
        if metric["name"] == "ml.training.steps"
    ]
    assert sum(totals) == 8
    assert all(map(adds_up, (account, ended.accounts()["metrics"][name])))
