"""Is a run in Weights & Biases what it is in its own tables, uploaded by W&B's own client?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from runs import LIMIT_S, Ended, Running, adds_up, agent_of, environment
from servers import build
from servers.running import wait_until
from wandb_server import WandbServer
from wandb_shown import expected, of_the_program, points

pytestmark = pytest.mark.servers

PROGRAM = """
import otel_mlperf as om

params = {"model": {"depth": 3}}
with om.start("digits", params=params, tags=["baseline"], console=False) as run:
    for step in om.steps(range(20)):
        om.log(loss=1 / (step + 1))
    run.result(accuracy=0.93)
"""


@pytest.fixture
def chosen(wandb_package):
    """The variables that ask for a file of W&B's, and where its library is."""
    return {
        "OTEL_MLPERF_DESTINATIONS": "wandb",
        "OTEL_MLPERF_DRAIN_S": str(LIMIT_S),
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
        done = subprocess.run(
            command, env=environment(home, **login), capture_output=True, text=True,
            timeout=LIMIT_S, check=False, cwd=home,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return server


@pytest.mark.fault("F27")
def test_agent_killed_in_between_leaves_every_point_once(tmp_path, chosen):
    """W&B's client uploads each step, value and reading of the tables, and nothing twice."""
    with Running(tmp_path / "runs", "--pause", "0.02", **chosen) as one:
        known = 0
        for _ in range(2):
            wait_until(lambda more=known: written(one.runs) > more, what="points")
            killed = wait_until(lambda: agent_of(one.runs), what="the agent")
            known = written(one.runs)
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda old=killed: agent_of(one.runs) not in (None, old), what="another")
        wait_until(lambda: written(one.runs) > known, what="points after it")
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
    """Name, project, parameters and tags; the last values, and how it ended; no file but those."""
    environ = environment(tmp_path / "runs", **chosen)
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, timeout=LIMIT_S, check=True)
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
    assert names <= {"config.yaml", "wandb-summary.json"}


def written(runs):
    """How large the file is by now."""
    return sum(path.stat().st_size for path in runs.glob("*/wandb/*/*.wandb"))
