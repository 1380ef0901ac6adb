"""The hooks observe what a training loop does, once each, and stay out of its way."""

from __future__ import annotations

import os
import sys

import pytest
import warm_python
from runs import LIMIT_S, settle
from section_rows import count_calls

from otel_mlperf.pytorch.loop.moments import LoopMoment
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.step_inference import Loop
from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

SCRIPT = """
import threading
import torch
from torch import nn
from torch.utils.data import DataLoader

class Fails(nn.Module):
    def forward(self, x):
        raise LookupError("no forward")

class FailingOptimizer(torch.optim.SGD):
    fails = True

    def step(self, closure=None):
        if FailingOptimizer.fails:
            FailingOptimizer.fails = False
            raise LookupError("no step")
        return super().step(closure)

def attempt(call):
    try:
        call()
    except LookupError as error:
        print(error)

model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1))
other = FailingOptimizer(model.parameters(), lr=0.1)

def batches(workers=0):
    return DataLoader(torch.ones(6, 2), batch_size=2, num_workers=workers)

def train(optimizer, loader):
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

attempt(lambda: nn.Sequential(Fails())(torch.ones(1)))
attempt(other.step)
thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
thread.start()
thread.join()
compiled = torch.compile(model, backend="eager", fullgraph=True)
print(torch.equal(compiled(torch.ones(3, 2)), model(torch.ones(3, 2))))
print(torch._dynamo.utils.counters["graph_break"])
train(other, batches())
train(torch.optim.Adam(model.parameters()), batches(workers=1))
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    """The script under plain Python and under our command, and the store of the latter."""
    folder = tmp_path_factory.mktemp("hooked")
    (folder / "train.py").write_text(SCRIPT)
    environ = {**os.environ, "OTEL_MLPERF_DIR": "runs", "OTEL_MLPERF_CONSOLE": "false"}

    def execute(*words):
        return warm_python.run(
            [sys.executable, *words],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    plain, run = execute("train.py"), execute("-m", "otel_mlperf", "run", "train.py")
    (stored,) = list_runs(folder / "runs")
    settle(stored.path)
    return plain, run, Store(stored.path)


def counts(store, *, in_steps):
    return count_calls(store, "(n IS NOT NULL) = $in_steps", in_steps=in_steps)


def test_program_does_not_notice(hooked):
    """Failing modules and optimizers, threads and full graphs go as under plain Python."""
    plain, run, _ = hooked

    assert (run.returncode, run.stdout, run.stderr) == (0, plain.stdout, plain.stderr)
    assert "no forward\nno step\nTrue\nCounter()" in run.stdout


def test_each_batch_is_a_step_of_its_samples(hooked):
    """Two passes of three batches are six steps of two samples."""
    _, _, store = hooked

    rows = store.rows("SELECT n, samples, error FROM steps ORDER BY n")
    assert rows == [(n, 2, False) for n in range(6)]


def test_outermost_calls_are_sections_of_the_steps(hooked):
    """A model of models is one forward; loader workers and other threads add nothing."""
    _, _, store = hooked

    expected = dict.fromkeys(("backward", "data.load", "forward", "optimizer"), 6)
    assert counts(store, in_steps=True) == expected


def test_calls_outside_steps_are_sections_of_the_run(hooked):
    """What fails or is compiled before the loop is seen too; a failed update blinds nothing."""
    _, _, store = hooked

    assert counts(store, in_steps=False) == {"forward": 3, "optimizer": 1, "compile": 1}


def test_torch_that_is_another(tmp_path):
    """Whatever is imported as torch, the import succeeds; what cannot be seen of it is said."""
    (tmp_path / "torch.py").write_text("answer = 42")
    (tmp_path / "train.py").write_text("import torch; print(torch.answer)")
    settings = {"OTEL_MLPERF_DIR": "runs", "OTEL_MLPERF_CONSOLE": "false"}
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert "the training loop cannot be observed with this version of torch" in done.stderr


@pytest.fixture
def moment():
    """A moment, while moments are seen."""
    before, LoopMoment.is_off = LoopMoment.is_off, False
    yield LoopMoment("forward", Loop(RecordedSteps()))
    LoopMoment.is_off = before


def test_moment_that_was_open_switches_nothing_on(moment):
    """A program that starts its own run inside a moment is not recorded beside it afterwards."""
    with moment.of():
        LoopMoment.is_off = True

    assert moment.busy


def test_failing_moment_is_not_the_last_one_seen(moment):
    """An exception that leaves it leaves the next one to be seen."""
    with pytest.raises(KeyboardInterrupt), moment.of():
        raise KeyboardInterrupt

    assert not moment.busy


def test_part_of_a_moment_passes_unseen(moment):
    """Inside it, and not any more afterwards."""
    part = LoopMoment("part", Loop(RecordedSteps()))
    moment.holds([part])
    with moment.of():
        assert part.busy

    assert not part.busy
