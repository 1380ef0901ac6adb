"""Is what is sent looked for until it is there?"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fault_server import FaultServer

from otel_mlperf.doctor.check_endpoint import check_backends, check_endpoints
from otel_mlperf.findings.check import Check


@pytest.fixture
def server(tmp_path):
    """A receiver."""
    (tmp_path / "server").mkdir()
    with FaultServer(tmp_path / "server") as found:
        yield found


def endpoint(url):
    """What an environment says that sends to ``url``."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url}


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
        Check("ok", "jaeger", f"none at {nowhere}: OTEL_MLPERF_JAEGER_URL says where to look"),
        Check(
            "ok", "prometheus", f"none at {nowhere}: OTEL_MLPERF_PROMETHEUS_URL says where to look"
        ),
    ]
