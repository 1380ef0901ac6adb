"""The check finds how far a request gets, and what to do where it stops.

What was sent is looked up at the back ends until it is there.
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from grpc_fault_server import GrpcFaultServer

from otel_mlperf.analysis.run.item_accounts import RunAccount
from otel_mlperf.doctor.check_endpoint import check_backends, check_endpoints
from otel_mlperf.findings.finding import Check

NO_ENDPOINT = "no OTLP endpoint is set: data is stored in the run folder only"


def endpoint(url):
    """What an environment says that sends to ``url``."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url}


def test_without_an_endpoint_there_is_nothing_to_reach():
    """Which is well: the run folder has everything."""
    assert check_endpoints({}) == (
        [Check("ok", "traces", NO_ENDPOINT), Check("ok", "metrics", NO_ENDPOINT)],
        {},
    )


def test_a_server_that_takes_everything_is_reached_stage_by_stage(server):
    """Name, connection, then an empty request of each signal."""
    checks, reached = check_endpoints(endpoint(server.url))

    assert checks == [
        Check("ok", "dns", "localhost resolves to 127.0.0.1"),
        Check("ok", "tcp", f"localhost:{server.port} answers"),
        Check("ok", "otlp traces", f"{server.url}/v1/traces accepts traces"),
        Check("ok", "otlp metrics", f"{server.url}/v1/metrics accepts metrics"),
    ]
    assert sorted(reached) == ["metrics", "traces"]


@pytest.mark.fault("F11")
def test_a_name_that_nobody_knows_stops_there():
    """DNS."""
    checks, reached = check_endpoints(endpoint("http://collector.invalid:4318"))

    assert [(check.level, check.what, check.do) for check in checks] == [
        ("FAIL", "dns", "check the host name of the endpoint")
    ]
    assert reached == {}


@pytest.mark.fault("F11")
def test_a_port_that_nobody_listens_on_stops_there():
    """TCP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        checks, _ = check_endpoints(endpoint(f"http://127.0.0.1:{port}"))

    assert checks[1:] == [
        Check(
            "FAIL", "tcp", f"127.0.0.1:{port}: Connection refused",
            "start the server, or correct the endpoint",
        )
    ]  # fmt: skip


def test_the_port_of_grpc_is_pointed_out_whoever_answers_there():
    """Nobody, or a server of gRPC: the endpoint to set is said, at the settings and at the end."""
    hint = (
        "port 4317 uses grpc, but the protocol is http/protobuf: use http://localhost:4318 "
        "or OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    )

    checks, reached = check_endpoints(endpoint("http://localhost:4317"))

    said = [check.found for check in checks if check.what == "settings"]
    assert said == [f"OTEL_EXPORTER_OTLP_ENDPOINT: {hint}"]
    failed = [check.do for check in checks if check.level == "FAIL"]
    assert failed
    assert set(failed) == {hint}
    assert reached == {}


def test_a_server_of_grpc_is_reached_by_grpc(tmp_path):
    """Name, connection, then an empty request of each signal; one that is missing is named."""
    with GrpcFaultServer(tmp_path) as server:
        environ = endpoint(server.url) | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        server.mode("status", code="UNIMPLEMENTED", message="unknown service", signal="metrics")
        checks, reached = check_endpoints(environ)

    assert [check.what for check in checks] == ["dns", "tcp", "otlp traces", "otlp metrics"]
    assert checks[2].found == f"{server.url} accepts traces"
    assert checks[3].found == f"{server.url}: UNIMPLEMENTED"
    assert checks[3].do.startswith("if the server accepts only traces (like Jaeger), ")
    assert list(reached) == ["traces"]


@pytest.mark.fault("F11")
def test_a_server_that_speaks_no_tls_is_told(server):
    """TLS."""
    checks, _ = check_endpoints(endpoint(f"https://localhost:{server.port}"))

    assert [check.what for check in checks] == ["dns", "tcp", "tls"]
    assert checks[2].level == "FAIL"
    assert checks[2].do == (
        "check that the server uses TLS; without TLS, set http:// instead of https://"
    )


@pytest.mark.parametrize(
    ("code", "do"),
    [(401, "check OTEL_EXPORTER_OTLP_HEADERS"), (404, "check the path of the endpoint")],
)
def test_a_server_that_refuses_is_told_with_the_fix(server, code, do):
    """HTTP."""
    server.mode("status", code=code)
    checks, reached = check_endpoints(endpoint(server.url))

    assert checks[2] == Check("FAIL", "otlp traces", f"{server.url}/v1/traces answered {code}", do)
    assert reached == {}


def test_a_server_that_takes_traces_alone_is_told_with_the_fix(server):
    """As Jaeger is without a Collector: it has no place for metrics."""
    server.mode("status", code=404)
    checks, _ = check_endpoints(endpoint(server.url))

    assert checks[3].what == "otlp metrics"
    assert checks[3].do.startswith("if the server accepts only traces (like Jaeger), ")
    assert "OTEL_METRICS_EXPORTER=none" in checks[3].do


def test_something_else_on_the_port_is_told(server):
    """OTLP: a web page is no receiver."""
    server.mode("garbage", body="<html>hello</html>")
    checks, _ = check_endpoints(endpoint(server.url))

    assert checks[2].level == "FAIL"
    assert checks[2].found.endswith("answered 200, but not with OTLP")
    assert checks[2].do == "check that this address is an OTLP/HTTP receiver"


def test_what_is_wrong_with_variables_is_told_once(server):
    """Both signals read the same one."""
    environ = endpoint(server.url) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "ten"}
    checks, _ = check_endpoints(environ)

    assert sum("OTEL_EXPORTER_OTLP_TIMEOUT=ten" in check.found for check in checks) == 1


def test_a_run_that_was_sent_is_not_said_to_be_in_its_folder_only():
    """Where its endpoint is not set here, that is what is missing, and no server is checked."""
    accounts = {"spans": {"otlp": RunAccount(created=7, delivered=7)}}
    traces, metrics = check_endpoints({}, accounts)[0]

    assert traces.found == (
        "no endpoint is set in this shell: the server of the run is not checked"
    )
    assert metrics.found == NO_ENDPOINT


class Stumbling(BaseHTTPRequestHandler):
    """A Prometheus that has nothing, then an error, then what is asked for."""

    answers = ()

    def do_GET(self):
        code, found = next(Stumbling.answers)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"result": found}}).encode())

    def log_message(self, *words):
        pass


def test_a_backend_that_stumbles_is_asked_again(server):
    """An error between two answers does not end the command."""
    Stumbling.answers = iter([(200, []), (500, []), (200, ["it"])])
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Stumbling)
    thread = threading.Thread(target=backend.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{backend.server_port}"
    _, reached = check_endpoints(endpoint(server.url))
    try:
        (check,) = check_backends(
            {"OTEL_MLPERF_PROMETHEUS_URL": url}, {"metrics": reached["metrics"]}
        )
    finally:
        backend.shutdown()
        backend.server_close()
        thread.join()

    assert (check.level, check.what) == ("ok", "prometheus"), check


def test_backends_that_are_not_there_are_not_missed(server):
    """Their addresses are a guess unless somebody gives them."""
    _, reached = check_endpoints(endpoint(server.url))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    environ = {"OTEL_MLPERF_JAEGER_URL": nowhere, "OTEL_MLPERF_PROMETHEUS_URL": nowhere}

    assert check_backends(environ, reached) == [
        Check(
            "ok",
            "jaeger",
            f"not found at {nowhere}: set OTEL_MLPERF_JAEGER_URL to the URL of jaeger",
        ),
        Check(
            "ok",
            "prometheus",
            f"not found at {nowhere}: set OTEL_MLPERF_PROMETHEUS_URL to the URL of prometheus",
        ),
    ]
