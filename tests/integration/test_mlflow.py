"""A run in a real MLflow server equals its own tables, and its login stays secret."""

from __future__ import annotations

import os
import signal
import sys
import uuid

import pytest
import warm_python
from mlflow_shown import artifact, entries, expected, in_mlflow, runs
from runs import LIMIT_S, LOUD, Ended, Running, adds_up, agent_of, environment, run_program
from servers.running import wait_until

pytestmark = pytest.mark.servers

PROGRAM = """
import otel_mlperf as om

with om.start("digits", params={"lr": 0.1}, tags=["baseline"], console=False) as run:
    for step in om.steps(range(40)):
        om.log(loss=float("nan") if step == 7 else 1 / (step + 1))
    run.result(accuracy=0.93)
"""

FORTY_STEPS = '<span class="label">steps</span><span class="value">40</span>'


@pytest.fixture
def chosen(mlflow_server):
    """The variables that name the server, and an experiment of the test's own."""
    return {
        "OTEL_MLPERF_DESTINATIONS": "mlflow",
        "MLFLOW_TRACKING_URI": mlflow_server.url,
        "MLFLOW_EXPERIMENT_NAME": f"digits {uuid.uuid4().hex}",
        "OTEL_MLPERF_DRAIN_TIMEOUT_S": str(LIMIT_S),
    }


def only_run(chosen):
    (run,) = runs(chosen["MLFLOW_TRACKING_URI"], chosen["MLFLOW_EXPERIMENT_NAME"])
    return run


def all_points(chosen):
    return in_mlflow(chosen["MLFLOW_TRACKING_URI"], only_run(chosen))


def listed(points):
    """Those that two counts can be compared by: a value that is no number equals none."""
    return sorted(map(repr, points.elements()))


def trained(folder, chosen):
    where = environment(folder, **LOUD, **chosen)
    command = [sys.executable, "-c", PROGRAM]
    done = warm_python.run(
        command, env=where, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return Ended(0, done.stdout, done.stderr, folder, folder).settled()


def account_of(ended):
    account = ended.accounts()["scalars"]["mlflow"]
    assert adds_up(account)
    return account


def test_training_is_in_mlflow_as_in_its_tables(tmp_path, chosen):
    """Every point, with its time and its step; and how it was told and ended."""
    ended = trained(tmp_path / "runs", chosen)

    assert listed(all_points(chosen)) == listed(expected(ended.folder))
    run = only_run(chosen)
    assert entries(run, "params") == {"lr": "0.1"}
    assert entries(run, "tags")["baseline"] == "true"
    assert run["info"]["status"] == "FINISHED"
    account = account_of(ended)
    assert account["created"] == account["delivered"] == sum(expected(ended.folder).values())


def test_page_of_the_run_is_a_file_of_it_in_mlflow(tmp_path, chosen):
    """As the command writes it, without a word; not where nobody wants it."""
    ended = trained(tmp_path / "runs", chosen)
    off = chosen | {"OTEL_MLPERF_TRACKER_REPORT": "false"}
    off["MLFLOW_EXPERIMENT_NAME"] += " off"
    without = trained(tmp_path / "off", off)

    page = artifact(chosen["MLFLOW_TRACKING_URI"], only_run(chosen), "report.html").decode()
    assert page.startswith("<!doctype html>")
    assert FORTY_STEPS in page
    account = ended.accounts()["reports"]["mlflow"]
    assert account["created"] == account["delivered"] == 1
    assert artifact(chosen["MLFLOW_TRACKING_URI"], only_run(off), "report.html") is None
    assert "reports" not in without.accounts()


def test_login_is_in_no_file_of_the_run(tmp_path, chosen):
    """Given as a token, as a password, or in the address."""
    secret = f"hunter{uuid.uuid4().hex}"
    address = chosen["MLFLOW_TRACKING_URI"].replace("://", f"://me:{secret}@")
    logins = {
        "MLFLOW_TRACKING_URI": address,
        "MLFLOW_TRACKING_TOKEN": secret,
        "MLFLOW_TRACKING_USERNAME": "me",
        "MLFLOW_TRACKING_PASSWORD": secret,
    }
    ended = trained(tmp_path / "runs", chosen | logins)

    assert account_of(ended)["delivered"] > 0
    assert secret not in ended.output + ended.errors
    for path in ended.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(("how", "status"), [("kill", "KILLED"), ("exception", "FAILED")])
def test_run_that_ends_badly_says_so(tmp_path, chosen, how, status):
    """Its last points are there, and its status is not that of one that goes on."""
    ended = run_program(tmp_path / "runs", "--end", how, "--steps", "20", **chosen).settled()

    assert only_run(chosen)["info"]["status"] == status
    assert listed(all_points(chosen)) == listed(expected(ended.folder))


def test_agent_that_is_killed_leaves_each_point_once_in_one_run(tmp_path, chosen):
    """The next one finds the run by its tag, and nothing of it is lost."""
    folder = tmp_path / "runs"
    with Running(folder, "--pause", "0.04", **chosen) as program:
        wait_until(lambda: has_points(chosen), what="points at the server")
        first = agent_of(folder)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: agent_of(folder) not in (None, first), what="another agent")
        ended = program.end().settled()

    assert listed(all_points(chosen)) == listed(expected(ended.folder))
    assert only_run(chosen)["info"]["status"] == "FINISHED"
    account = account_of(ended)
    assert account["created"] == account["delivered"] == sum(expected(ended.folder).values())


def test_what_the_server_did_not_take_is_delivered_by_hand(tmp_path, chosen):
    """To the server that the caller names; without one it waits, and that is no failure."""
    address = chosen["MLFLOW_TRACKING_URI"]
    away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "OTEL_MLPERF_DRAIN_TIMEOUT_S": "0"}
    ended = trained(tmp_path / "runs", chosen | away)
    waiting = account_of(ended)["pending"]
    unnamed = recovered(ended.runs)
    refused = recovered(ended.runs, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    where = {name: value for name, value in chosen.items() if name.startswith("MLFLOW_")}
    # It gives a server five seconds, which a busy machine may need for less than all.
    wait_until(lambda: recovered(ended.runs, **where).returncode == 0, what="all to be delivered")

    assert waiting > 0
    assert unnamed.returncode == 0, unnamed.stderr
    assert (
        "to send to this destination: MLFLOW_TRACKING_URI=http://127.0.0.1:9 otel-mlperf "
        "doctor" in unnamed.stdout
    )
    assert refused.returncode == 69, refused.stderr
    assert "scalars/mlflow: http://127.0.0.1:9: Connection refused" in refused.stderr
    assert "not accepted by mlflow; try again when the server answers" in refused.stderr
    account = account_of(ended)
    assert (account["delivered"], account["pending"]) == (waiting, 0)
    assert ended.accounts()["reports"]["mlflow"]["delivered"] == 1
    assert FORTY_STEPS in artifact(address, only_run(chosen), "report.html").decode()
    assert listed(all_points(chosen)) == listed(expected(ended.folder))
    assert only_run(chosen)["info"]["status"] == "FINISHED"


def recovered(folder, **variables):
    command = [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", "latest"]
    return warm_python.run(
        command, env=environment(folder, **variables), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


def has_points(chosen):
    """Whether the experiment is there, and a run with points in it."""
    try:
        return bool(all_points(chosen))
    except (AssertionError, ValueError):
        return False
