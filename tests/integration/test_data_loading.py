"""The output shown in docs/data-loading.md is what programs get about their loaders."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import warm_python
from guides import blocks
from kineto_recorded import needs_torch
from pages import DOCS
from runs import LIMIT_S, environment, settle
from servers.running import wait_until

from otel_mlperf.store.run_folders import list_runs

LOADS = """
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Pix(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.rand(60, 60) @ torch.rand(60, 60)


class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, at):
        time.sleep(0.01)
        return torch.rand(3)


class Stuck(Slow):
    def __getitem__(self, at):
        open("stuck", "w").close()
        time.sleep(1000)


loader = DataLoader(Slow(), batch_size=4)
stuck = DataLoader(Stuck())
if __name__ == "__main__":
    model = torch.nn.Linear(60, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pixels = DataLoader(Pix(), batch_size=8, num_workers=2)
    for epoch in range(3):
        for batch in pixels:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
"""
PAGE = DOCS / "data-loading.md"
INSIDE, ALONE = blocks(PAGE.read_text(), "text")
HEADS = ("train.py:loader", "  setting", "  a batch", "  __getitem__", "  collate")
"""Of the lines that the command shows of every loader."""
pytestmark = needs_torch


@pytest.fixture
def folder(tmp_path):
    """A folder with the program."""
    (tmp_path / "train.py").write_text(LOADS)
    return tmp_path


def ours(folder, *words):
    """A command of ours, once it has ended, and the agent of its run too."""
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", *words],
        cwd=folder, env=environment(folder / "runs"), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    for run in list_runs(folder / "runs"):
        settle(run.path)
    return done


def wording(lines):
    """What stands in lines beside their numbers, units and bars."""
    return [[word for word in line.split() if word.isalpha() and len(word) > 3] for line in lines]


def _told(lines, head):
    return wording([line for line in lines if line.startswith(head)])


@pytest.mark.slow
def test_what_happens_inside(folder):
    """Of an untouched program: each batch, each worker, each start of workers."""
    done = ours(folder, "run", "train.py")
    assert done.returncode == 0, done.stderr
    (loader,) = json.loads(ours(folder, "summary", "--json").stdout)["loaders"]

    assert (loader["dataset"], loader["batches"]) == ("Pix", 24)
    assert [(use["worker"], use["batches"]) for use in loader["workers"]] == [("0", 12), ("1", 12)]
    assert [(first["workers"], first["passes"]) for first in loader["first_batches"]] == [
        ("started", 3)
    ]
    assert 0 <= loader["ready"] <= 4
    lines = ours(folder, "summary").stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("loader"))
    told = [line for line in lines[at : at + 5] if " is slow" not in line]
    assert wording(told[:4]) == wording(INSIDE.splitlines())


@pytest.mark.slow
def test_a_loader_alone(folder):
    """A dataset that only waits is fastest with most workers, and the page shows its answer."""
    done = ours(
        folder, "profile", "--loader", "train.py:loader", "--batches", "4", "--workers", "0,1,8"
    )

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    best = next(line for line in lines if line.startswith("best"))
    assert "num_workers=8, " in best
    told, shown = ([_told(lines, head) for head in HEADS] for lines in (lines, ALONE.splitlines()))
    assert told == shown


def test_ctrl_c_ends_it(folder):
    """With the code of an interrupt, and without a traceback."""
    command = [sys.executable, "-m", "otel_mlperf", "profile", "--loader", "train.py:stuck"]
    with warm_python.Popen(
        command, cwd=folder, env=environment(folder / "runs"), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until((folder / "stuck").exists, LIMIT_S)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, said) == (130, "")


def test_a_loader_that_is_not_there(folder):
    """One line, and the code of what is missing."""
    done = ours(folder, "profile", "--loader", "train.py:loder")

    assert done.returncode == 66
    assert done.stderr == "otel-mlperf: train.py contains no 'loder'; did you mean loader?\n"


RESTS = """
import sys
import threading

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, at):
        threading.Event().wait(float(sys.argv[1]))
        return torch.ones(at % 4 + 1, 8)


def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples)


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Samples(), batch_size=4, collate_fn=pad):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_untouched_program_is_told_why_it_waits(tmp_path):
    """Its samples wait without a CPU; and nothing of that where they do not."""
    (tmp_path / "train.py").write_text(RESTS)

    def findings(rest_s):
        assert ours(tmp_path, "run", "train.py", rest_s).returncode == 0
        found = json.loads(ours(tmp_path, "findings", "--json").stdout)["findings"]
        return {one["id"]: one for one in found}

    assert "storage" not in findings("0")
    found = findings("0.03")["storage"]
    assert found["evidence"]["idle_ns"] >= 0.95 * 4 * 0.03e9
    assert 0.5 < found["gain"]["low"] <= found["gain"]["high"] <= 1.0
