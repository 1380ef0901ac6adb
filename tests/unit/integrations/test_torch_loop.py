"""Are steps that a framework says itself the only ones while its loop runs?"""

from __future__ import annotations

import os
import subprocess
import sys

from runs import LIMIT_S

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


def test_steps_are_those_that_are_said(tmp_path):
    """Loops before and after are inferred; the moments of torch are sections of all of them."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "otel_mlperf", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OTEL_MLPERF_DIR": "runs", "OTEL_MLPERF_CONSOLE": "false"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    (run,) = list_runs(tmp_path / "runs")
    store = Store(run.path)
    steps = store.rows("SELECT samples FROM steps ORDER BY n")
    assert [samples for (samples,) in steps] == [2] * 3 + [7] * 3 + [2] * 3
    sql = "SELECT CAST(sum(count) AS BIGINT) FROM sections WHERE n IS NOT NULL AND name = $name"
    for name in ("forward", "backward", "optimizer"):
        assert store.rows(sql, name=name) == [(9,)]
