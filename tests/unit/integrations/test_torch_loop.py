"""Steps that a framework reports itself are the only ones while its loop runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import warm_python
from runs import LIMIT_S, settle

from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

SCRIPT = """
import torch
from torch.utils.data import DataLoader

import otel_mlperf as om
from otel_mlperf.integrations import own_steps

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.ones(6, 2), batch_size=2)

def work(x):
    model(x).sum().backward()
    optimizer.step()

for x in loader:
    work(x)
with own_steps():
    for x in loader:
        with om.step(samples=7):
            work(x)
for x in loader:
    work(x)
"""


def recorded(folder, script, run=warm_python.run):
    """What ``otel-mlperf run`` stored of a script, which ended well and said nothing."""
    (folder / "train.py").write_text(script)
    done = run(
        [sys.executable, "-m", "otel_mlperf", "run", "train.py"],
        cwd=folder,
        env={**os.environ, "OTEL_MLPERF_DIR": "runs", "OTEL_MLPERF_CONSOLE": "false"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    (run,) = list_runs(folder / "runs")
    settle(run.path)
    return Store(run.path)


def test_steps_are_those_that_are_said(tmp_path):
    """Loops before and after are inferred; the moments of torch are sections of all of them."""
    store = recorded(tmp_path, SCRIPT)
    steps = store.rows("SELECT samples FROM steps ORDER BY n")
    assert [samples for (samples,) in steps] == [2] * 3 + [7] * 3 + [2] * 3
    sql = "SELECT CAST(sum(count) AS BIGINT) FROM sections WHERE n IS NOT NULL AND name = $name"
    for name in ("forward", "backward", "optimizer"):
        assert store.rows(sql, name=name) == [(9,)]


LOOKED_AT_FIRST = """
import torch

import otel_mlperf as om

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    model(torch.ones(3, 2))
for x in om.steps([torch.ones(3, 2)] * 4):
    model(x).sum().backward()
    optimizer.step()
"""


def test_a_validation_that_was_inferred_holds_no_step_that_is_said(tmp_path):
    """It ends where the program says its first step, which is one of the training."""
    assert recorded(tmp_path, LOOKED_AT_FIRST).rows(
        "SELECT phase, count(*) FROM steps GROUP BY phase"
    ) == [("train", 4)]


LIBRARY = """
import torch

class Accelerator:
    def save_state(self, output_dir):
        torch.save({}, output_dir + "/model.bin")
        torch.save({}, output_dir + "/optimizer.bin")
"""
SAVES = """
from accelerate.accelerator import Accelerator

Accelerator().save_state(".")
"""


@pytest.mark.slow
def test_library_that_imports_torch_first_is_seen(tmp_path):
    """Its save of two files is one checkpoint, although it was half imported when torch was."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "accelerator.py").write_text(LIBRARY)
    # In a process that has not imported torch yet.
    store = recorded(tmp_path, SAVES, subprocess.run)
    sql = "SELECT CAST(sum(count) AS BIGINT) FROM sections WHERE name = 'checkpoint'"

    assert store.rows(sql) == [(1,)]
