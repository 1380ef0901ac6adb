"""The ranks of one launch are one run, one trace a step, and distinct in every server."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import warm_python
from runs import LIMIT_S, LOUD, PROGRAMS, Ended, ending, environment
from servers.running import free_ports, wait_until

from otel_mlperf.store.run_folders import list_runs

RANKS, STEPS = 2, 20
PARTS = {"train.step", "data.load", "forward", "backward"}
LAUNCHES = ("plain", "master-port")


def launch(folder, options, **variables):
    """Two ranks under torchrun; the run that they left, once its agent has gone."""
    meeting = folder / "meeting"
    meeting.mkdir()
    done = warm_python.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), *options,
            str(PROGRAMS / "ranks.py"), "--meet", str(meeting), "--steps", str(STEPS),
        ],
        env=environment(folder / "runs", OTEL_MLPERF_TRACE_EVERY="1", **LOUD, **variables),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    ended = Ended(done.returncode, done.stdout, done.stderr, folder / "runs", folder / "none")
    assert ended.code == 0, ended.errors
    return ended.settled()


@pytest.fixture(scope="module", params=LAUNCHES)
def launched(request, servers, tmp_path_factory):
    """A finished launch, whose spans and metrics are in the servers."""
    options = []
    if request.param == "master-port":
        options = ["--master-port", str(free_ports(1)[0])]
    folder = tmp_path_factory.mktemp("ranks")
    return launch(folder, options, OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint)


def test_ranks_share_one_run_folder(launched):
    """Both ranks are processes of one run, each with an instance id of its own."""
    (run,) = list_runs(launched.runs)
    found = launched.rows(
        "SELECT DISTINCT rank, world_size, instance_id FROM processes ORDER BY rank"
    )

    assert json.loads((run.path / "run.json").read_text())["id"] != "none"
    assert [(row["rank"], row["world_size"]) for row in found] == [(0, RANKS), (1, RANKS)]
    assert len({row["instance_id"] for row in found}) == RANKS


def test_each_step_is_one_trace_with_a_root_per_rank(launched):
    """Step n of both ranks has one trace id, and both step spans are roots of it."""
    found = launched.rows(
        "SELECT n, count(DISTINCT trace_id) AS traces, list(rank ORDER BY rank) AS ranks, "
        "list_distinct(list(parent_id)) AS parents FROM spans "
        "WHERE name = 'train.step' GROUP BY n ORDER BY n"
    )

    assert [row["n"] for row in found] == list(range(STEPS))
    for row in found:
        assert (row["traces"], row["ranks"], row["parents"]) == (1, [0, 1], [""])
    (traces,) = launched.rows("SELECT count(DISTINCT trace_id) AS n FROM steps")
    assert traces["n"] == STEPS


def test_the_run_is_one_trace_with_a_root_per_rank(launched):
    """Both ranks' run spans lie in one trace, which no step shares."""
    found = launched.rows("SELECT rank, trace_id, parent_id FROM spans WHERE name = 'run'")
    steps = {row["trace_id"] for row in launched.rows("SELECT trace_id FROM steps")}

    assert sorted(row["rank"] for row in found) == [0, 1]
    assert len({row["trace_id"] for row in found}) == 1
    assert {row["parent_id"] for row in found} == {""}
    assert not {row["trace_id"] for row in found} & steps


@pytest.mark.fault("F58")
def test_ranks_with_the_same_seed_share_no_span_id(launched):
    """Every span of every rank has an id of its own, and ids are none of each other's either."""
    found = launched.rows("SELECT rank, span_id, name FROM spans")
    of_rank = [{row["span_id"] for row in found if row["rank"] == rank} for rank in range(RANKS)]

    # A collection of garbage may take a millisecond in one of them, and then has a span, too.
    assert sum(row["name"] in PARTS | {"run"} for row in found) == RANKS * (STEPS * len(PARTS) + 1)
    assert sum(map(len, of_rank)) == len(found)
    assert not of_rank[0] & of_rank[1]


def test_jaeger_shows_a_step_of_all_ranks_as_one_trace(launched, servers):
    """Each trace in Jaeger has both ranks' spans, under a root each, no id twice."""
    stored = launched.rows("SELECT rank, trace_id, span_id, parent_id, name FROM spans")
    for trace_id in {row["trace_id"] for row in stored}:
        expected = {
            (row["span_id"], row["parent_id"], row["name"], row["rank"])
            for row in stored
            if row["trace_id"] == trace_id
        }
        spans = wait_until(
            lambda t=trace_id, e=expected: (
                found if len(found := servers.jaeger_trace(t)) >= len(e) else None
            ),
            what=trace_id,
        )
        assert len({span.span_id for span in spans}) == len(spans)
        assert expected == {
            (span.span_id, span.parent_id, span.name, span.resource["ml.distributed.rank"])
            for span in spans
        }
        assert sum(not span.parent_id for span in spans) == RANKS


def test_prometheus_has_a_series_per_rank(launched, servers):
    """Each rank's steps are one series with its rank as label; together they are all steps."""
    instances = "|".join(
        row["instance_id"] for row in launched.rows("SELECT DISTINCT instance_id FROM processes")
    )
    query = f'ml_training_steps_total{{instance=~"{instances}"}}'
    wait_until(
        lambda: sum(one.value for one in servers.promql(query)) == RANKS * STEPS, what="all steps"
    )

    found = servers.promql(query)
    assert {one.labels["ml_distributed_rank"]: one.value for one in found} == {
        "0": STEPS,
        "1": STEPS,
    }
    assert len(found) == RANKS


@pytest.mark.fault("F12")
def test_one_agent_serves_all_ranks(launched):
    """The node's one log has both journals, none left before both had joined."""
    (log,) = (launched.folder / "agent").glob("*/agent.log")
    events = re.findall(r"INFO (\d)-\d+-\w+\.journal: (joined|left)", log.read_text())

    assert sorted(events[:RANKS]) == [("0", "joined"), ("1", "joined")]
    assert sorted(events[RANKS:]) == [("0", "left"), ("1", "left")]
    assert len(list((launched.folder / "accounting").glob("*.json"))) == 1


def test_summary_counts_the_ranks_once(launched):
    """The summary is of two ranks, counts a step of both once, and one rank shows it.

    On a busy machine that rank prints the command in its place.
    """
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "summary", str(launched.folder), "--json"],
        capture_output=True, text=True, check=True, timeout=LIMIT_S, env=environment(launched.runs),
    )  # fmt: skip
    summary = json.loads(done.stdout)

    assert (summary["ranks"], summary["world_size"], summary["nodes"]) == (RANKS, RANKS, 1)
    assert summary["steps"]["count"] == STEPS
    assert summary["outcome"] == "finished"
    shown = re.findall(
        r"^ranks · |^otel_mlperf: the summary was not", launched.errors, re.MULTILINE
    )
    assert len(shown) == 1


def test_processes_without_a_launcher_are_runs_of_their_own(tmp_path):
    """Two programs side by side, of one parent but without WORLD_SIZE, are two runs."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    command = [sys.executable, PROGRAMS / "ranks.py", "--meet", meeting]
    programs = [
        warm_python.Popen(command, env=environment(tmp_path / "runs"), stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    with ending(programs):
        assert [program.wait(LIMIT_S) for program in programs] == [0, 0]

    found = list_runs(tmp_path / "runs")
    assert len({run.facts.id for run in found}) == len(found) == 2
