"""What nobody reads any more, or no server has taken, is read and delivered by hand."""

from __future__ import annotations

import sys
import uuid

import pytest
import warm_python
from fault_server import FaultServer
from runs import LIMIT_S, Running, adds_up, environment, run_program
from servers.running import wait_until


def command(runs, *arguments: str, **variables: str):
    return warm_python.run(
        [sys.executable, "-m", "otel_mlperf", *arguments],
        env=environment(runs, **variables), capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments",
    [("doctor", "--recover", "latest"), ("serve", "agent", "latest", "--once")],
    ids=lambda words: words[1],
)
def test_journal_that_nobody_read_is_read_by_hand(tmp_path, arguments) -> None:
    """A run without an agent is whole after the command, and its journal gone."""
    runs = tmp_path / "runs"
    ended = run_program(runs, "--end", "kill", OTEL_MLPERF_AGENT="none")
    before = [command(runs, word).stdout for word in ("summary", "findings")]
    done = command(runs, *arguments)
    after = [command(runs, word).stdout for word in ("summary", "findings")]

    left = "unread data: processes and agent of the run have ended; run otel-mlperf doctor"
    assert [left in " ".join(told.split()) for told in before] == [True, True]
    assert [left in " ".join(told.split()) for told in after] == [False, False]
    assert done.returncode == 0, done.stderr
    account = ended.settled().accounts()["spans"]["store"]
    assert account["created"] == ended.counted[0] + 3
    assert adds_up(account)


def test_journal_of_a_program_that_runs_is_left_alone(tmp_path) -> None:
    """The command does not wait for its end, and says what would read along."""
    runs = tmp_path / "runs"
    with Running(runs, OTEL_MLPERF_AGENT="none") as program:
        wait_until(lambda: list(runs.glob("*/run.json")), what="the run")
        wait_until(lambda: program.has_counted, what="its first step")
        done = command(runs, "doctor", "latest", "--recover")

    assert done.returncode == 0, done.stderr
    assert "1 journal skipped: the program still runs" in done.stdout


def test_a_run_is_recovered_with_the_settings_that_it_had(tmp_path) -> None:
    """Sampling and attributes are the run's, the server is that of whoever recovers it."""
    runs = tmp_path / "runs"
    with FaultServer(tmp_path) as server:
        of_run = {
            "OTEL_MLPERF_TRACE_EVERY": "1",
            "OTEL_RESOURCE_ATTRIBUTES": "team=vision",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        }
        ended = run_program(runs, "--end", "kill", OTEL_MLPERF_AGENT="none", **of_run)
        of_shell = {
            "OTEL_MLPERF_TRACE_EVERY": "1000",
            "OTEL_MLPERF_TRACE_FIRST": "0",
            "OTEL_RESOURCE_ATTRIBUTES": "team=somebody",
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
        }
        done = command(runs, "doctor", "latest", "--recover", **of_shell)
        spans = server.spans()

    assert done.returncode == 0, done.stderr
    account = ended.settled().accounts()["spans"]["otlp"]
    assert account["unselected"] == 0
    assert {span["resource"]["team"] for span in spans} == {"vision"}
    assert account["delivered"] == len(spans) == ended.counted[0] + 3


@pytest.mark.fault("F26")
def test_runs_of_one_id_in_two_folders_are_apart(tmp_path) -> None:
    """Each has its own steps, also where both record at the same time on one machine."""
    places = [tmp_path / name / "runs" for name in ("a", "b")]
    run_id = uuid.uuid4().hex
    for place in places:
        place.parent.mkdir()
    with (
        Running(places[0], OTEL_MLPERF_RUN_ID=run_id) as first,
        Running(places[1], OTEL_MLPERF_RUN_ID=run_id) as second,
    ):
        wait_until(lambda: first.has_counted and second.has_counted, what="steps of both")
        ended = [first.end().settled(), second.end().settled()]

    for run in ended:
        (row,) = run.rows("SELECT count(*) AS n FROM steps")
        assert row["n"] == run.counted[1] > 0
        assert len(run.rows("SELECT DISTINCT rank, restart, pid FROM processes")) == 1


def test_recovery_sends_nothing_to_a_server_that_only_the_run_folder_names(tmp_path) -> None:
    """All is stored and counted, the rest waits, and the command that sends it is shown."""
    runs = tmp_path / "runs"
    with FaultServer(tmp_path) as server:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_MLPERF_TRACE_EVERY": "1"}
        ended = run_program(runs, "--end", "kill", OTEL_MLPERF_AGENT="none", **where)
        done = command(runs, "doctor", "latest", "--recover")
        before = ended.accounts()["spans"]
        asked = server.requests()
        again = command(runs, "doctor", "latest", "--recover", "--endpoint", server.url)
        spans = server.spans()

    assert done.returncode == 0, done.stderr
    assert asked == []
    assert f"doctor {ended.folder.name[-4:]} --recover --endpoint {server.url}" in done.stdout
    items = ended.counted[0] + 3
    assert before["store"]["delivered"] == before["otlp"]["pending"] == items
    assert again.returncode == 0, again.stderr
    after = ended.accounts()["spans"]["otlp"]
    assert after["delivered"] == len(spans) == items
    assert adds_up(after)


@pytest.mark.slow
def test_what_no_server_took_is_delivered_later(tmp_path) -> None:
    """Requests of a run whose server was away reach it by ``recover``, once each."""
    runs = tmp_path / "runs"
    with FaultServer(tmp_path) as server:
        server.kill()
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_MLPERF_DRAIN_TIMEOUT_S": "0"}
        ended = run_program(runs, **where).settled()
        waiting = ended.accounts()["spans"]["otlp"]["pending"]
        refused = command(runs, "doctor", "latest", "--recover", **where)
        server.start()
        done = command(runs, "doctor", "latest", "--recover", "--endpoint", server.url)
        arrived = [span["span_id"] for span in server.spans()]

    assert waiting > 0
    assert refused.returncode == 69
    assert f"not accepted by {where['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces" in refused.stderr
    assert "or send the spans to another server: otel-mlperf export" in refused.stderr
    assert done.returncode == 0, done.stderr
    account = ended.accounts()["spans"]["otlp"]
    assert (account["delivered"], account["pending"]) == (waiting, 0)
    assert adds_up(account)
    stored = [row["span_id"] for row in ended.rows("SELECT span_id FROM spans")]
    assert sorted(arrived) == sorted(stored)
