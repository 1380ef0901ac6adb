"""What a run records is found in the real Jaeger and Prometheus, through the real Collector."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from glob import glob
from typing import TYPE_CHECKING

import pytest
from runs import Ended, Running, adds_up, agent_of, run_program
from servers.running import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.servers


def compare_with_jaeger(ended: Ended, servers) -> int:
    """Every trace of the store against Jaeger's; returns the number of spans compared."""
    stored: dict[str, dict[str, dict]] = {}
    for row in ended.rows("SELECT * FROM spans"):
        stored.setdefault(row["trace_id"], {})[row["span_id"]] = row
    for trace, expected in stored.items():
        wait_until(lambda t=trace, e=expected: len(servers.jaeger_trace(t)) >= len(e), what=trace)
        found = {span.span_id: span for span in servers.jaeger_trace(trace)}
        assert found.keys() == expected.keys()
        for span_id, span in found.items():
            row = expected[span_id]
            assert (span.parent_id, span.name) == (row["parent_id"], row["name"])
            assert (span.start_ns, span.end_ns) == (row["start_ns"], row["end_ns"])
            assert (span.status == "error") == (row["status"] == "error")
            own = {
                key: value
                for key, value in json.loads(row["attributes"]).items()
                if not key.startswith("exception.")
            }
            assert own.items() <= span.attributes.items()
            assert [list(link) for link in span.links] == json.loads(row["links"])
            assert span.attributes["ml.section.category"] == row["category"]
    return sum(map(len, stored.values()))


def steps_in_prometheus(servers, ended: Ended, phase: str = "train") -> float:
    run = ended.rows("SELECT service FROM processes")[0]["service"]
    (instance,) = {row["instance_id"] for row in ended.rows("SELECT instance_id FROM processes")}
    query = (
        f'histogram_count(ml_training_step_duration_seconds{{service_name="{run}",'
        f'instance="{instance}",ml_phase="{phase}"}})'
    )
    return sum(sample.value for sample in servers.promql(query))


def test_spans_in_jaeger_are_those_in_the_store(tmp_path, servers) -> None:
    """Ids, parents, names, times, status, links and attributes agree, trace by trace."""
    ended = run_program(
        tmp_path / "runs", "--steps", "250", OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint
    ).settled()

    (kept,) = ended.rows("SELECT count(*) AS steps FROM steps WHERE kept NOTNULL")
    assert kept["steps"] >= 7
    assert compare_with_jaeger(ended, servers) == kept["steps"] * 4 + 1
    for account in (ended.accounts()["spans"]["otlp"], ended.accounts()["metrics"]["otlp"]):
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)
    assert ended.accounts()["spans"]["otlp"]["created"] == ended.counted[0]


@pytest.mark.parametrize("receiver", ["collector", "jaeger"])
def test_spans_arrive_by_grpc(tmp_path, servers, receiver) -> None:
    """The same ones in Jaeger, whether a Collector is in between or not."""
    endpoints = {
        "collector": servers.collector.otlp_grpc_endpoint,
        "jaeger": f"http://{servers.jaeger_server.otlp_address}",
    }
    ended = run_program(
        tmp_path / "runs",
        *("--steps", "120"),
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoints[receiver],
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_METRICS_EXPORTER="otlp" if receiver == "collector" else "none",
    ).settled()

    assert compare_with_jaeger(ended, servers) > 7
    for account in ended.accounts().values():
        if "otlp" in account:
            assert adds_up(account["otlp"])
            assert (account["otlp"]["lost"], account["otlp"]["pending"]) == ({}, 0)
    if receiver == "collector":
        wait_until(lambda: steps_in_prometheus(servers, ended) == 120, what="120 steps")


def test_prometheus_counts_what_the_program_counted(tmp_path, servers) -> None:
    """Histogram counts are the steps, the counter is the sum added, self times are the steps."""
    ended = run_program(
        tmp_path / "runs", "--steps", "120", OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint
    ).settled()
    (instance,) = {row["instance_id"] for row in ended.rows("SELECT instance_id FROM processes")}
    which = f'{{instance="{instance}"}}'

    wait_until(lambda: steps_in_prometheus(servers, ended) == 120, what="120 steps")
    (tokens,) = servers.promql(f"ml_user_tokens_total{which}")
    assert tokens.value == ended.counted[2] == 360
    (total,) = servers.promql(
        f'sum(ml_section_self_time_seconds_total{{instance="{instance}",ml_phase="train"}})'
    )
    (stored,) = ended.rows("SELECT sum(duration_ns) / 1e9 AS seconds FROM steps")
    assert total.value == pytest.approx(float(stored["seconds"]), rel=1e-6)
    (loss,) = servers.promql(f"ml_training_loss{which}")
    assert loss.value == pytest.approx(1 / 120)


def test_accounts_in_prometheus_add_up_to_what_was_created(tmp_path, servers) -> None:
    """For spans at the server created = delivered + unselected, and nothing is pending or lost."""
    ended = run_program(
        tmp_path / "runs", "--steps", "120", OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint
    ).settled()
    run_id = json.loads((ended.folder / "run.json").read_text())["id"]
    mine = f'on(instance) group_left target_info{{ml_run_id="{run_id}"}}'
    spans = '{otel_mlperf_signal="spans",otel_mlperf_destination="otlp"}'

    def total(metric: str) -> float:
        return sum(sample.value for sample in servers.promql(f"{metric}{spans} * {mine}"))

    created = ended.counted[0]
    wait_until(lambda: total("otel_mlperf_items_created_total") == created, what="the accounts")
    wait_until(lambda: total("otel_mlperf_items_total") == created, what="the last outcome")
    assert total("otel_mlperf_items_pending") == 0


def test_exemplar_opens_a_kept_trace(tmp_path, servers) -> None:
    """Each exemplar on the step histogram leads to a trace that Jaeger has."""
    ended = run_program(
        tmp_path / "runs", "--steps", "120", OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint
    ).settled()
    (instance,) = {row["instance_id"] for row in ended.rows("SELECT instance_id FROM processes")}
    kept = {row["trace_id"] for row in ended.rows("SELECT trace_id FROM steps WHERE kept NOTNULL")}

    def exemplars():
        found = servers.promql_exemplars("ml_training_step_duration_seconds", 600)
        return [e for e in found if e.series.get("instance") == instance]

    wait_until(exemplars, what="exemplars")
    for exemplar in exemplars():
        assert exemplar.trace_id in kept
        trace = wait_until(lambda e=exemplar: servers.jaeger_trace(e.trace_id), what="its trace")
        names = {span.span_id: span.name for span in trace}
        assert names[exemplar.span_id] == "train.step"


@pytest.mark.fault("F27")
def test_agent_killed_in_between_changes_no_count(tmp_path, servers) -> None:
    """With the agent killed and started again the counts are the same, and no id comes twice."""
    endpoint = servers.otlp_endpoint
    with Running(tmp_path / "runs", "--pause", "0.04", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as one:
        first = wait_for_tables(one.runs)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: agent_of(one.runs) not in (None, first), what="another agent")
        ended = one.end().settled()

    assert ended.code == 0, ended.errors
    account = ended.accounts()["spans"]["otlp"]
    assert account["created"] == ended.counted[0]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    compare_with_jaeger(ended, servers)
    steps = ended.counted[1]
    wait_until(lambda: steps_in_prometheus(servers, ended) == steps, what=f"{steps} steps")


def wait_for_tables(runs: Path) -> int:
    """Returns the agent, once it has written tables."""
    wait_until(lambda: list(runs.glob("*/tables/steps/*.parquet")), what="the first tables")
    return wait_until(lambda: agent_of(runs), what="the agent")


@pytest.mark.fault("F01")
@pytest.mark.parametrize("away", ["at the start", "in between"])
def test_collector_that_is_away_costs_nothing(tmp_path, servers, collector, away) -> None:
    """Spans recorded without a collector arrive when it is there, none lost, none twice."""
    own = collector()
    if away == "in between":
        own.start()
    endpoint = own.otlp_endpoint
    with Running(tmp_path / "runs", "--pause", "0.04", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as one:
        wait_for_tables(one.runs)
        if away == "in between":
            own.kill()
            waiting = partial(glob, f"{one.runs}/*/agent/*/requests/*.batch")
            wait_until(waiting, what="a waiting request")
        own.start()
        ended = one.end().settled()

    account = ended.accounts()["spans"]["otlp"]
    assert account["created"] == ended.counted[0]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    compare_with_jaeger(ended, servers)


@pytest.mark.fault("F02", "F24")
def test_collector_that_never_comes_delays_nothing(tmp_path) -> None:
    """Without a collector the run folder is whole and what could not be sent is pending."""
    ended = run_program(
        tmp_path / "runs", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_MLPERF_DRAIN_TIMEOUT_S="0",
    ).settled()  # fmt: skip

    accounts = ended.accounts()["spans"]
    assert adds_up(accounts["otlp"])
    assert accounts["otlp"]["delivered"] == 0
    assert accounts["otlp"]["pending"] == accounts["store"]["delivered"] > 0
    assert accounts["otlp"]["created"] == ended.counted[0]
