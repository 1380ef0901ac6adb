"""The DataLoader of a program that reports its own steps is observed, unless that is off."""

from __future__ import annotations

import json
import sys

import pytest
import warm_python
from kineto_recorded import needs_torch
from runs import LIMIT_S, PROGRAMS, environment, settle

from otel_mlperf.store.run_folders import list_runs

pytestmark = needs_torch
CAUSES = ("worker_startup", "slow_worker", "collate", "storage")
PROGRAM = PROGRAMS / "says_its_steps.py"


@pytest.fixture
def told(tmp_path):
    """What the summary says of a run of the program, once its agent has left."""

    def execute(*words, **variables):
        done = warm_python.run(
            [sys.executable, *words],
            cwd=tmp_path, env=environment(tmp_path / "runs", **variables), capture_output=True,
            text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for run in list_runs(tmp_path / "runs"):
            settle(run.path)
        return done

    def tell(*words, **variables):
        execute(*words, OTEL_MLPERF_CONSOLE="false", **variables)
        return json.loads(execute("-m", "otel_mlperf", "summary", "--json").stdout)

    return tell


def causes(summary):
    """What is wrong with the loader, by id."""
    return {one["id"]: one for one in summary["findings"] if one["id"] in CAUSES}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", CAUSES)
def test_what_is_wrong_with_a_loader_is_said(told, fault):
    """By its name alone, with what would be won; nothing in the program asks for it."""
    found = causes(told(str(PROGRAM), fault))

    assert set(found) == {fault}
    assert 0 < found[fault]["gain"]["high"] <= 1


@pytest.mark.slow
def test_nothing_is_said_of_a_healthy_loader(told):
    """Its workers stay, and keep up with the steps: counted they are, by each worker."""
    summary = told(str(PROGRAM), "none")

    assert causes(summary) == {}
    (loader,) = summary["loaders"]
    assert (loader["dataset"], loader["batches"]) == ("Samples", 32)
    assert [(use["worker"], use["batches"]) for use in loader["workers"]] == [("0", 16), ("1", 16)]


OFF = {"OTEL_MLPERF_DISABLED_INTEGRATIONS": "dataloader"}


@pytest.mark.slow
def test_a_loader_that_is_not_to_be_looked_into(told):
    """By the setting; what the program asks for itself goes before."""
    summary = told(str(PROGRAM), "storage", **OFF)
    assert (summary["loaders"], summary["integrations"]) == ([], [])
    assert "storage" in causes(told(str(PROGRAM), "storage", "dataloader", **OFF))


@pytest.mark.slow
def test_a_program_that_asks_is_seen_once(told):
    """Each batch is counted one time, and each pass."""
    (loader,) = told(str(PROGRAM), "worker_startup", "dataloader")["loaders"]

    assert loader["batches"] == 32
    assert [(first["workers"], first["passes"]) for first in loader["first_batches"]] == [
        ("started", 4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, OFF], ids=["on", "off"])
def test_under_run_too(told, variables):
    """The program says its steps, and is believed; its loader is looked into all the same."""
    summary = told("-m", "otel_mlperf", "run", str(PROGRAM), "storage", **variables)

    assert summary["steps"]["count"] == 32
    rows = {row["name"] for row in summary["steps"]["rows"]}
    assert rows - {"garbage collection"} == {"data wait", "untracked"}
    assert set(causes(summary)) == (set() if variables else {"storage"})
    assert summary["integrations"] == ([] if variables else ["dataloader"])


FORKS = """
import os

import otel_mlperf as om

with om.start("parent"):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.ones(8)), num_workers=1)
    list(om.steps(loader))
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    with om.start("child"):
        list(om.steps(loader))
"""


@pytest.mark.slow
def test_a_fork_that_begins_a_run_of_its_own(told, tmp_path):
    """It sees its loader and that one's worker; torch was imported after the parent's begin."""
    (tmp_path / "train.py").write_text(FORKS)

    summary = told("train.py")

    assert summary["name"] == "child"
    assert [(one["batches"], len(one["workers"])) for one in summary["loaders"]] == [(8, 1)]
