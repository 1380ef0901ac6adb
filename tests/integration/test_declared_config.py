"""A run follows a file of OpenTelemetry's declarative configuration."""

from __future__ import annotations

import sys

import warm_python
from runs import LIMIT_S, Ended, environment

CONFIG = """
file_format: "1.0"
resource:
  attributes: [{name: service.name, value: "${NAME:-nobody}"}, {name: team, value: vision}]
propagator: {composite: [{tracecontext: }]}
tracer_provider:
  sampler: {always_on: }
  processors:
    - batch:
        exporter:
          otlp_http:
            endpoint: ${SERVER}/own/traces
            headers: [{name: x-tenant, value: "a=b"}]
meter_provider:
  readers: [{periodic: {interval: 200, exporter: {otlp_http: {endpoint: "${SERVER}/own/metrics"}}}}]
"""
PROGRAM = """
import otel_mlperf as om
from opentelemetry import propagate
with om.start("declared", provider="install", console=False):
    for _ in om.steps([1, 2, 3]):
        pass
print(sorted(propagate.get_global_textmap().fields))
"""


def test_run_is_sent_as_the_file_says(tmp_path, server):
    """Endpoints, headers, resource, propagators; a variable of the standard means nothing beside.

    The file is named by a path of the program's own folder, in which its agent is not.
    """
    (tmp_path / "otel.yaml").write_text(CONFIG)
    runs = tmp_path / "runs"
    done = warm_python.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment(
            runs, OTEL_CONFIG_FILE="otel.yaml", SERVER=server.url, NAME="digits",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:9", OTEL_SERVICE_NAME="variable",
        ),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    Ended(0, "", "", runs, tmp_path / "count").settled()

    assert done.stdout == "['traceparent', 'tracestate']\n"
    assert done.stderr.splitlines() == [
        "otel_mlperf: OTEL_CONFIG_FILE=otel.yaml: unsupported settings are ignored: "
        "tracer_provider.sampler"
    ]
    by_path = {request["path"]: request for request in server.requests()}
    assert set(by_path) == {"/own/traces", "/own/metrics"}
    headers = {name.lower(): value for name, value in by_path["/own/traces"]["headers"].items()}
    assert headers["x-tenant"] == "a=b"
    spans = server.spans()
    assert [span["name"] for span in spans].count("train.step") == 3
    about = spans[0]["resource"]
    assert (about["service.name"], about["team"]) == ("digits", "vision")
