"""Ranks are one run, if a launcher starts them, before or after us, or the program itself does."""

from __future__ import annotations

import os
import sys

import pytest
import warm_python
from runs import LIMIT_S, PROGRAMS, Ended, environment
from servers.running import free_ports

from otel_mlperf.store.run_folders import list_runs

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
BY_LIGHTNING = """
import lightning as L
import torch


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    L.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="{strategy}", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Model(), torch.utils.data.DataLoader(torch.ones(128, 4), batch_size=8))
    print("trained")
"""
BY_ITSELF = """
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, port):
    place = "tcp://127.0.0.1:" + str(port)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained")


if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    {start}
    print(sorted(name for name in os.environ if "OTEL" in name))
"""
PROCESSES = """process = mp.get_context("{method}").Process
    ranks = [process(target=train, args=(rank, {port})) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()"""
STARTED = {
    "Lightning's processes": (BY_LIGHTNING.replace("{strategy}", "ddp"), 2),
    "Lightning's spawned ones": (BY_LIGHTNING.replace("{strategy}", "ddp_spawn"), 1),
    "torch's spawn": (BY_ITSELF.replace("{start}", "mp.spawn(train, ({port},), nprocs=2)"), 2),
    "forked processes": (BY_ITSELF.replace("{start}", PROCESSES.replace("{method}", "fork")), 2),
    "those of a server": (
        BY_ITSELF.replace("{start}", PROCESSES.replace("{method}", "forkserver")), 2,
    ),
}  # fmt: skip
"""Programs, and how often each says at its end that it has trained."""
WORKERS = """
import multiprocessing
import sys


def is_told(_=None):
    return "otel_mlperf" in sys.modules


def say():
    print(is_told())


if __name__ == "__main__":
    import torch

    spawned = multiprocessing.get_context("spawn")
    with spawned.Pool(1) as pool:
        print(pool.map(is_told, [0]))
    process = spawned.Process(target=say)
    process.start()
    process.join()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")
RUN = ("-m", "otel_mlperf", "run")
STEPS = (
    "SELECT n, count(DISTINCT rank) AS ranks, count(DISTINCT trace_id) AS traces FROM steps "
    "GROUP BY n ORDER BY n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (*TORCHRUN, *RUN, "train.py"),
        (*RUN, "--", sys.executable, *TORCHRUN, "train.py"),
        (*RUN, *TORCHRUN, "train.py"),
    ],
    ids=["torchrun starts run", "run starts torchrun", "run becomes torchrun"],
)
def test_ranks_of_torchrun_are_one_run(tmp_path, words):
    """Both ranks store their steps in one run; a step has one trace id on both."""
    (tmp_path / "train.py").write_text(TRAIN)
    (port,) = free_ports(1)
    environ = {**os.environ, "OTEL_MLPERF_DIR": "runs", "OMP_NUM_THREADS": "1"}

    done = warm_python.run(
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
    assert ended.rows(STEPS) == [{"n": n, "ranks": 2, "traces": 1} for n in range(8)]
    (run,) = list_runs(ended.runs)
    assert run.facts.name == "train"
    assert "finished · 2 ranks, 1 node" in ended.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "times"),
    [
        pytest.param(*of, marks=[pytest.mark.frameworks] * name.startswith("Lightning"), id=name)
        for name, of in STARTED.items()
    ],
)
def test_ranks_that_a_program_starts_itself_are_its_run(tmp_path, text, times):
    """Each records its steps, a step has one trace id; the program's environment is its own."""
    (port,) = free_ports(1)
    (tmp_path / "train.py").write_text(text.replace("{port}", str(port)))
    done = warm_python.run(
        [sys.executable, "-W", "ignore", *RUN, "train.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "runs"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said.count("trained") == times
    assert set(said) <= {"trained", "['OTEL_MLPERF_CONSOLE', 'OTEL_MLPERF_DIR']"}
    ended = Ended(0, "", done.stderr, tmp_path / "runs", tmp_path).settled()
    assert ended.rows(STEPS) == [{"n": n, "ranks": 2, "traces": 1} for n in range(8)]
    assert {row["outcome"] for row in ended.rows("SELECT outcome FROM processes")} == {"finished"}
    assert ended.summary.count("finished · 2 ranks, 1 node") == 1


def test_a_rank_that_fails_is_said_to_have_failed(tmp_path):
    """With the exception that ended it, which its own process has seen."""
    (port,) = free_ports(1)
    text = STARTED["forked processes"][0].replace("{port}", str(port))
    (tmp_path / "train.py").write_text(text.replace("optimizer.step()", "raise ValueError"))
    warm_python.run(
        [sys.executable, *RUN, "train.py"], cwd=tmp_path, env=environment(tmp_path / "runs"),
        capture_output=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip

    ended = Ended(0, "", "", tmp_path / "runs", tmp_path).settled()
    rows = ended.rows(
        "SELECT DISTINCT rank, outcome, error_type FROM processes ORDER BY rank, outcome"
    )
    assert [tuple(row.values()) for row in rows] == [
        (0, "failed", "ValueError"), (0, "finished", ""), (1, "failed", "ValueError"),
    ]  # fmt: skip


def fit_by_workers(tmp_path, **variables):
    """A program whose library hands what it trains to its workers by value, as Ray does."""
    done = warm_python.run(
        [sys.executable, *RUN, PROGRAMS / "ray_fit.py"], cwd=tmp_path,
        env=environment(tmp_path / "runs", PYTHONPATH=str(PROGRAMS / "like_ray"), **variables),
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    ended = Ended(0, "", done.stderr, tmp_path / "runs", tmp_path)
    return done.stdout.splitlines(), ended.settled()


@pytest.mark.slow
def test_workers_of_ray_train_are_ranks(tmp_path):
    """Each records its steps, in the driver's run; trainer and environment stay as they were."""
    said, ended = fit_by_workers(tmp_path)

    trained = "trained ['OTEL_MLPERF_CONSOLE', 'OTEL_MLPERF_DIR']"
    assert sorted(said) == ["[0, 0] True", trained, trained]
    assert ended.rows(STEPS) == [{"n": n, "ranks": 2, "traces": 1} for n in range(8)]
    (run,) = list_runs(ended.runs)
    assert run.facts.name == "ray_fit"
    assert "finished · 2 ranks, 1 node" in ended.summary


def test_a_worker_of_ray_train_that_fails_is_said_to_have_failed(tmp_path):
    """With its exception; the others finish."""
    said, ended = fit_by_workers(tmp_path, FAILS="1")

    assert said[-1] == "[0, 1] True"
    rows = ended.rows("SELECT DISTINCT rank, outcome, error_type FROM processes ORDER BY rank")
    assert [tuple(row.values()) for row in rows] == [
        (0, "finished", ""), (1, "failed", "ValueError"),
    ]  # fmt: skip


def test_a_worker_of_ray_train_without_this_package_trains(tmp_path):
    """What it is handed needs nothing that only the driver has."""
    (tmp_path / "elsewhere" / "otel_mlperf").mkdir(parents=True)
    (tmp_path / "elsewhere" / "otel_mlperf" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path / "elsewhere"), str(PROGRAMS / "like_ray")])
    said, ended = fit_by_workers(tmp_path, WORKERS_PATH=path)

    assert said[-1] == "[0, 0] True"
    assert ended.rows(STEPS) == []


def test_workers_are_told_nothing(tmp_path):
    """Nothing of ours is in a pool's worker; a process that may join a group waits for that."""
    (tmp_path / "train.py").write_text(WORKERS)
    done = warm_python.run(
        [sys.executable, *RUN, "train.py"], cwd=tmp_path, env=environment(tmp_path / "runs"),
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip

    assert sorted(done.stdout.splitlines()) == ["True", "[False]"]
