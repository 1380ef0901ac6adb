"""Nothing is lost of a program that traces itself through the OpenTelemetry API."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import warm_python
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, environment, run_program
from servers.running import wait_until

STEPS = 200
_spec = importlib.util.spec_from_file_location("megatron_like", PROGRAMS / "megatron_like.py")
megatron_like = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(megatron_like)


@pytest.mark.parametrize("end", ["finish", "kill"])
def test_every_span_and_sum_arrives(tmp_path, end):
    """Spans created are those that ended, and those open when it was killed; none is lost."""
    ended = run_program(
        tmp_path / "runs", "--end", end, "--steps", str(STEPS), program="megatron_like.py"
    ).settled()
    spans, _, tokens = ended.counted

    assert ended.code == (0 if end == "finish" else -9)
    assert tokens == STEPS * 4096
    assert spans == STEPS * megatron_like.SPANS + (end == "finish")
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    assert account["created"] == spans + (3 if end == "kill" else 0)
    (stored,) = ended.rows("SELECT max(value) AS n FROM readings WHERE name = 'train.tokens'")
    assert stored["n"] == tokens
    if end == "kill":
        cut = ended.rows("SELECT name FROM spans WHERE interrupted ORDER BY start_ns")
        assert [row["name"] for row in cut] == ["run", "train-step", "forward-backward"]


LOGS = """
import logging
from opentelemetry import metrics, trace
import otel_mlperf as om

om.log_ids()
logging.basicConfig(format="%(message)s %(trace_id)s %(span_id)s")
meter = metrics.get_meter("library")
requests = meter.create_up_down_counter("library.requests", "{request}")
meter.create_observable_counter("library.ticks", [lambda _: [metrics.Observation(7)]])
wait = meter.create_histogram("library.wait", "s")
with om.start("traces-itself", provider="install", console=False):
    with om.step(), trace.get_tracer("library").start_as_current_span("exchange"):
        requests.add(3, {"peer": "a"})
        requests.add(-1, {"peer": "a"})
        wait.record(0.25)
        logging.warning("exchange")
    logging.warning("run")
"""


@pytest.mark.servers
def test_what_servers_show(tmp_path, servers):
    """Metrics are in Prometheus as any SDK's would be, and the ids of log lines are Jaeger's."""
    runs = tmp_path / "runs"
    done = warm_python.run(
        [sys.executable, "-c", LOGS],
        env=environment(runs, OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    ended = Ended(0, "", done.stderr, runs, tmp_path / "count").settled()

    lines = [line.split() for line in done.stderr.splitlines()]
    assert [line[0] for line in lines] == ["exchange", "run"]
    for name, trace, span in lines:
        wait_until(
            lambda t=trace, s=span, n=name: (
                (s, n) in {(one.span_id, one.name) for one in servers.jaeger_trace(t)}
            ),
            what=f"{name} in Jaeger",
        )
    (instance,) = {row["instance_id"] for row in ended.rows("SELECT instance_id FROM processes")}
    for query, value in (
        (f'library_requests{{peer="a",instance="{instance}"}}', 2),
        (f'library_ticks_total{{instance="{instance}"}}', 7),
        (f'histogram_sum(library_wait_seconds{{instance="{instance}"}})', 0.25),
    ):
        wait_until(lambda q=query: servers.promql(q), what=query)
        assert [sample.value for sample in servers.promql(query)] == [value]
