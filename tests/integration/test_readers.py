"""Doctor and send reach the real servers."""

from __future__ import annotations

import json
import os
import sys
import uuid

import pytest
import warm_python
from run_folders import MS, RunFolderBuilder, S
from servers.running import wait_until

pytestmark = pytest.mark.servers


def command(*arguments, **environ):
    """What the command line prints."""
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_doctor_finds_its_span_and_its_metric_again(servers, tmp_path):
    """Through the Collector, in Jaeger and in Prometheus."""
    found = command(
        "doctor",
        "--json",
        OTEL_MLPERF_DIR=str(tmp_path),
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
        OTEL_MLPERF_JAEGER_URL=servers.jaeger,
        OTEL_MLPERF_PROMETHEUS_URL=servers.prometheus,
    )

    checks = {check["what"]: check for check in json.loads(found)["checks"]}
    for what, item in (("jaeger", "span"), ("prometheus", "metric")):
        assert checks[what]["level"] == "ok"
        assert checks[what]["found"].startswith(f"the test {item} was found at http")


@pytest.mark.fault("F10")
def test_a_stored_run_that_is_sent_twice_is_in_jaeger_once(servers, tmp_path):
    """With its ids, times and attributes."""
    trace = uuid.uuid4().hex
    run = RunFolderBuilder(tmp_path, run_id=uuid.uuid4().hex)
    run.process(S)
    root = run.span(2, "train.step", 0, 50 * MS, trace_id=trace, attributes='{"note": "x"}')
    run.span(2, "forward", MS, 20 * MS, trace_id=trace, parent_id=root)
    path = str(run.write())
    command("export", path, "--endpoint", servers.otlp_endpoint)
    command("export", path, "--endpoint", servers.otlp_endpoint)

    spans = wait_until(lambda: servers.jaeger_trace(trace))

    assert sorted((one.name, one.span_id, one.end_ns - one.start_ns) for one in spans) == [
        ("forward", f"{2:016x}", 20 * MS),
        ("train.step", f"{1:016x}", 50 * MS),
    ]
    assert {one.attributes.get("note") for one in spans} == {"x", None}
