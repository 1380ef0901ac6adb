"""Are the ranks that a launcher starts one run, whichever of the two is started first?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from runs import LIMIT_S, Ended
from servers.running import free_ports

from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")
RUN = ("-m", "otel_mlperf", "run")


@pytest.mark.parametrize(
    "words",
    [(*TORCHRUN, *RUN, "train.py"), (*RUN, "--", sys.executable, *TORCHRUN, "train.py")],
    ids=["torchrun starts run", "run starts torchrun"],
)
def test_ranks_of_torchrun_are_one_run(tmp_path, words):
    """Both ranks store their steps in one run; a step has one trace id on both."""
    (tmp_path / "train.py").write_text(TRAIN)
    (port,) = free_ports(1)
    environ = {**os.environ, "OTEL_MLPERF_DIR": "runs", "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [sys.executable, *(word.format(port=port) for word in words)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ended = Ended(0, "", done.stderr, tmp_path / "runs", tmp_path).settled()
    (run,) = list_runs(ended.runs)
    sql = (
        "SELECT n, count(DISTINCT rank), count(DISTINCT trace_id) FROM steps GROUP BY n ORDER BY n"
    )
    assert Store(run.path).rows(sql) == [(n, 2, 1) for n in range(8)]
    assert run.facts.name == "train"
    assert "finished · 2 ranks, 1 node" in ended.summary
