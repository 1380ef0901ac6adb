"""A run in trackio equals its own tables, imported by trackio itself."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import warm_python
from runs import LIMIT_S, Ended, Running, adds_up, environment, kill_two_agents
from trackio_shown import expected, shown
from wandb_shown import expected as by_tables
from wandb_shown import of_the_program

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("trackio_python")]

PROGRAM = """
import math
import otel_mlperf as om

params = {"model": {"depth": 3}}
with om.start("digits", params=params, tags=["baseline"], console=False) as run:
    for step in om.steps(range(4)):
        om.log(loss=[0.1 + 0.2, math.nan, math.inf, -math.inf][step])
    run.result(accuracy=0.93)
    raise ValueError("at the end")
"""


@pytest.fixture
def chosen(tmp_path):
    """The variables that ask for trackio, in a folder of the test's own."""
    return {
        "OTEL_MLPERF_DESTINATIONS": "trackio",
        "OTEL_MLPERF_DRAIN_TIMEOUT_S": str(LIMIT_S),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }


@pytest.mark.fault("F27")
def test_agent_killed_in_between_leaves_every_point_once(tmp_path, chosen):
    """Trackio has each step, value and reading of the tables, and nothing twice."""
    inbox = tmp_path / "trackio" / "inbox"
    with Running(tmp_path / "runs", "--pause", "0.02", **chosen) as one:
        kill_two_agents(one.runs, lambda _: len([*inbox.glob("*/*.jsonl")]))
        ended = one.end().settled()

    assert ended.code == 0, ended.errors
    found = shown(tmp_path / "trackio", tmp_path)
    assert of_the_program(found.points) == expected(by_tables(ended.folder))
    steps = [point for point in found.points.elements() if point[0] == "train/step_duration_s"]
    assert len(steps) == ended.counted[1]
    account = ended.accounts()["scalars"]["trackio"]
    assert adds_up(account)
    assert account["delivered"] == account["created"] == found.points.total()
    assert [*inbox.iterdir()] == []


def test_what_trackio_has_is_the_run(tmp_path, chosen):
    """Name, id, parameters and tags, values of any kind, and that it failed."""
    environ = environment(tmp_path / "runs", **chosen)
    done = warm_python.run(
        [sys.executable, "-c", PROGRAM], env=environ, timeout=LIMIT_S, check=False
    )
    run = Ended(done.returncode, "", "", tmp_path / "runs", tmp_path).settled().folder
    found = shown(tmp_path / "trackio", tmp_path)

    assert (found.project, found.name) == ("digits", "digits")
    assert run.name.endswith(found.id[:4])
    config = dict(found.config)
    assert config.pop("_Created").endswith("+00:00")
    assert config == {"tags": ["baseline"], "model": {"depth": 3}}
    values = [row["train/loss"] for row in found.logs if "train/loss" in row]
    assert list(map(repr, values)) == list(map(repr, [0.1 + 0.2, math.nan, math.inf, -math.inf]))
    assert [(alert["title"], alert["level"]) for alert in found.alerts] == [
        ("rank0 failed", "error")
    ]


def test_page_of_the_run_is_a_file_of_the_project(tmp_path, chosen):
    """Trackio lists it; it is the page as ``otel-mlperf report`` makes it, once."""
    environ = environment(tmp_path / "runs", **chosen)
    warm_python.run([sys.executable, "-c", PROGRAM], env=environ, timeout=LIMIT_S, check=False)
    ended = Ended(0, "", "", tmp_path / "runs", tmp_path).settled()
    ((name, place),) = shown(tmp_path / "trackio", tmp_path).files.items()

    assert name == f"{ended.folder.name}/report.html"
    assert '<span class="label">steps</span><span class="value">4</span>' in Path(place).read_text()
    account = ended.accounts()["reports"]["trackio"]
    assert account["delivered"] == account["created"] == 1
