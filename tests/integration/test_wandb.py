"""A run in Weights & Biases equals its own tables, uploaded by W&B's own client."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
import warm_python
from runs import LIMIT_S, Ended, Running, adds_up, agent_of, environment, kill_two_agents
from servers import build
from servers.running import wait_until
from tracked_by_hand import batch
from wandb_server import WandbServer
from wandb_shown import expected, of_the_program, points, rows, the_file

from otel_mlperf.agent.delivery.destination import Delivered, DestinationContext
from otel_mlperf.agent.delivery.wandb_destination import make
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.model.scalar_item import ScalarItem
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.run_files.run_file import write_run_file

pytestmark = pytest.mark.servers

PROGRAM = """
import otel_mlperf as om

params = {"model": {"depth": 3}}
with om.start("digits", params=params, tags=["baseline"], console=False) as run:
    for step in om.steps(range(20)):
        om.log(loss=1 / (step + 1))
    run.result(accuracy=0.93)
"""

STEPS = '<span class="label">steps</span><span class="value">20</span>'
"""On the page of the run."""
OPERATIONS = {"CreateRunFiles", "ServerFeaturesQuery"}
"""What W&B's client asks for beside rows and what a run is."""


@pytest.fixture
def chosen(wandb_package):
    """The variables that ask for a file of W&B's, and where its library is."""
    return {
        "OTEL_MLPERF_DESTINATIONS": "wandb",
        "OTEL_MLPERF_DRAIN_TIMEOUT_S": str(LIMIT_S),
        "PYTHONPATH": str(wandb_package),
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "digits",
    }


def uploaded(folder, home):
    """What W&B's own command uploads of the folder, and how often it is asked to."""
    with WandbServer() as server:
        login = {
            "WANDB_BASE_URL": server.url,
            "WANDB_API_KEY": "0" * 40,
            "WANDB_ERROR_REPORTING": "false",
            "HOME": str(home),
        }
        command = [build.python_of(build.WANDB), "-m", "wandb", "sync", folder]
        done = warm_python.run(
            command, env=environment(home, **login), capture_output=True, text=True,
            timeout=LIMIT_S, check=False, cwd=home,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return server


@pytest.mark.fault("F27")
def test_agent_killed_in_between_leaves_every_point_once(tmp_path, chosen):
    """W&B's client uploads each step, value and reading of the tables, and nothing twice."""
    with Running(tmp_path / "runs", "--pause", "0.02", **chosen) as one:
        kill_two_agents(one.runs, written)
        ended = one.end().settled()

    assert ended.code == 0, ended.errors
    server = uploaded(ended.folder / "wandb", tmp_path)
    shown = points(server.lines)
    assert of_the_program(shown) == expected(ended.folder)
    steps = [point for point in shown.elements() if point[0] == "train/step_duration_s"]
    assert len(steps) == ended.counted[1]
    assert server.exit_codes == [0]
    account = ended.accounts()["scalars"]["wandb"]
    assert adds_up(account)
    assert account["delivered"] == account["created"] == shown.total()


def test_what_the_client_uploads_is_the_run_alone(tmp_path, chosen):
    """Name, project, parameters and tags; last values, how it ended, the page; no other file."""
    environ = environment(tmp_path / "runs", **chosen)
    warm_python.run([sys.executable, "-c", PROGRAM], env=environ, timeout=LIMIT_S, check=True)
    run = Ended(0, "", "", tmp_path / "runs", tmp_path).settled().folder
    server = uploaded(run / "wandb", tmp_path)

    first = server.upserts[0]
    about = json.loads((run / "run.json").read_text())
    assert (first["name"], first["displayName"]) == (about["id"], "digits")
    assert (first["project"], first["tags"]) == ("digits", ["baseline"])
    assert (first["host"], first["commit"], first["repo"]) == (None, None, None)
    config = json.loads(server.upserts[-1]["config"])
    axes = config.pop("_wandb")["value"]["m"]
    assert config == {"model": {"value": {"depth": 3}}}
    shown = points(server.lines)
    assert {axis["1"].replace("\\.", ".") for axis in axes} == {"step"} | {p[0] for p in shown}
    assert server.summary["result/accuracy"] == 0.93
    assert server.summary["run/outcome/text"] == "finished"
    names = {path.rpartition("/")[2] for path in server.files}
    assert names - {"config.yaml", "wandb-summary.json"} == {"report.html"}
    assert STEPS in server.files["/report.html"].decode()


@pytest.fixture
def server():
    with WandbServer() as listening:
        yield listening


@pytest.fixture
def online(chosen, server, tmp_path):
    """The variables that let it be uploaded."""
    login = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    return chosen | login | {"WANDB_MODE": "online"}


@pytest.mark.fault("F27")
def test_run_is_uploaded_while_it_trains(tmp_path, server, online):
    """The agent is killed meanwhile: what the next one uploads again are the same rows."""
    with Running(tmp_path / "runs", "--pause", "0.02", **online) as one:
        wait_until(lambda: server.lines, what="rows at the server")
        killed = agent_of(one.runs)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: agent_of(one.runs) not in (None, killed), what="another agent")
        ended = one.end().settled()
    # However often it was uploaded until then, the last one has everything.
    whole = expected(ended.folder)
    wait_until(lambda: of_the_program(points(rows_by_number(server))) == whole, what="all rows")
    wait_until(lambda: 0 in server.exit_codes, what="the end")

    page = ended.folder.glob("wandb/*/files/report.html")
    assert server.files["/report.html"] == next(page).read_bytes()
    account = ended.accounts()["scalars"]["wandb"]
    assert adds_up(account)
    assert account["delivered"] == account["created"]
    assert {operation for _, operation in server.other} <= OPERATIONS


def test_upload_that_is_refused_costs_nobody_anything(tmp_path, server, online):
    """The agent's log says it, the file is whole, and the agent leaves as always."""
    server.is_closed = True
    with Running(tmp_path / "runs", "--pause", "0.02", **online) as one:
        log = wait_until(lambda: [*one.runs.glob("*/agent/*/agent.log")], what="a log")
        wait_until(lambda: "wandb: the upload ended before" in log[0].read_text(), what="the word")
        ended = one.end().settled()

    assert ended.code == 0, ended.errors
    account = ended.accounts()["scalars"]["wandb"]
    assert account["delivered"] == account["created"] > 0
    assert of_the_program(points(rows(the_file(ended.folder)))) == expected(ended.folder)
    for path in ended.folder.rglob("*"):
        assert not path.is_file() or b"0" * 40 not in path.read_bytes(), path


def test_run_that_goes_on_is_uploaded_again(tmp_path, server, online):
    """Its client has read one end by then, and would read nothing behind it."""
    write_run_file(str(tmp_path), {"id": "0123", "name": "d", "host": "node", "started_ns": 1})
    (tmp_path / "agent" / "node").mkdir(parents=True)
    live, options = {0: False}, Options(policy=Policy(), environ=online, drain_timeout_s=LIMIT_S)
    destination = make(DestinationContext(tmp_path, "node", options, TableRows(), lambda: live))

    assert destination.accept(batch(1, value(1), ended("failed"))) == Delivered()
    wait_until(lambda: 1 in server.exit_codes, what="the first end")
    live[0] = True
    assert destination.accept(batch(2, value(2))) == Delivered()
    (file,) = tmp_path.glob("wandb/*/*.wandb")
    # As a client that was late with it would.
    file.with_name(f"{file.name}.synced").touch()
    live[0] = False
    assert destination.accept(batch(3, ended("finished", restart=1))) == Delivered()
    wait_until(lambda: 0 in server.exit_codes, what="the second end")

    assert [row["step"] for row in rows_by_number(server)] == [1, 9, 2, 9]
    wait_until(lambda: destination._upload._child.poll() is not None, what="the client to leave")
    destination.close("scalars")


def value(number, **more):
    known = {"kind": "value", "name": "loss", "phase": "train", "rank": 0, "time_ns": number}
    return ScalarItem(number=number, value=0.5, **known | more)


def ended(outcome, restart=0):
    about = {"kind": "outcome", "name": "outcome", "phase": "", "text": outcome}
    return value(9, restart=restart, **about)


def rows_by_number(server):
    """Rows as the server would keep them: by their number, which always means the same row."""
    known = {}
    for row in [*server.lines]:
        assert repr(sorted(known.setdefault(row["_step"], row).items())) == repr(
            sorted(row.items())
        )
    return [known[n] for n in sorted(known)]


def written(runs):
    """How large the file is by now."""
    return sum(path.stat().st_size for path in runs.glob("*/wandb/*/*.wandb"))
