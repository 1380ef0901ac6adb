"""A profiled block leaves its trace, in a run and without one."""

from __future__ import annotations

import gc
import json
import os
import sys

import pytest
import torch

import otel_mlperf as om
from otel_mlperf.errors import ConfigError


def test_block_in_a_run_is_a_window(train):
    """Everything in it is in the trace; it belongs to no step."""
    trained = train()
    with om.torch_profile() as profile, om.span("evaluate"):
        trained.work()
    (window,) = trained.windows

    assert profile.paths == [trained.folder / window.trace]
    assert (window.steps, window.is_cut) == ([], False)
    assert "aten::linear" in {e.get("name") for e in trained.events(window)}


def test_block_in_a_step_takes_no_time_of_it(train):
    """Starting and exporting are left out of the step's duration; the step counts as profiled."""
    trained = train()
    for i in om.steps(range(3)):
        if i == 1:
            with om.torch_profile():
                trained.work()
    (window,) = trained.windows
    steps = trained.sections("train.step")
    own = trained.sections("profiler.start", "profiler.export")

    assert [step.is_profiled for step in steps] == [False, True, False]
    assert [step.span for step in window.steps] == [f"{steps[1].span:016x}"]
    assert steps[1].payload["x"] == sum(section.end - section.start for section in own)
    assert trained.recorder.stepping.flags == 0


def test_block_around_steps_lists_them(train):
    """All that ended in it are marked and listed."""
    trained = train()
    with om.torch_profile():
        for _ in om.steps(range(3)):
            trained.work()
    (window,) = trained.windows

    assert [step.n for step in window.steps] == [0, 1, 2]


def test_block_without_a_run(tmp_path, monkeypatch):
    """The trace goes to the folder of runs, or to the one that is given."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    with om.torch_profile() as here:
        torch.ones(3) + 1
    with om.torch_profile(folder=tmp_path / "else") as there:
        torch.ones(3) + 1

    assert [path.parent for path in here.paths] == [tmp_path / "runs" / "profiles"]
    assert [path.parent for path in there.paths] == [tmp_path / "else"]
    for path in (*here.paths, *there.paths):
        assert path.name.endswith(".pt.trace.json")
        assert json.loads(path.read_text())["traceEvents"]


def test_trace_that_no_run_tells_of_is_told(tmp_path, train, monkeypatch, capfd):
    """Where it is, once for each folder; a window in a run's folder is in the run's summary."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "bare"))
    paths = []
    for folder in (None, tmp_path / "else", tmp_path / "else"):
        with om.torch_profile(folder=folder) as block:
            torch.ones(3) + 1
        paths += block.paths
    train(console=True)
    for folder in (None, tmp_path / "third"):
        with om.torch_profile(folder=folder) as block:
            torch.ones(3) + 1
    told = [line for line in capfd.readouterr().err.splitlines() if "profiler trace" in line]

    expected = [paths[0], paths[1], *block.paths]
    assert told == [f"otel_mlperf: profiler trace: {path}" for path in expected]


def test_start_and_stop_in_place_of_a_block(train):
    """Stopping twice, or starting twice, does no harm."""
    trained = train()
    profile = om.torch_profile()
    profile.stop()
    profile.start()
    profile.start()
    trained.work()
    profile.stop()
    profile.stop()

    assert len(profile.paths) == 1


def test_schedule_counts_from_where_it_is_entered(train):
    """``with torch_profile(wait=…)`` around a loop follows the steps inside it."""
    trained = train()
    for _ in om.steps(range(5)):
        trained.work()
    with om.torch_profile(wait=1, warmup=1, active=2) as profile:
        for _ in om.steps(range(9)):
            trained.work()
    (window,) = trained.windows

    assert [step.n for step in window.steps] == [7, 8]
    assert profile.paths == [trained.folder / window.trace]


def test_schedule_that_is_left_early_keeps_what_it_has(train):
    """Leaving the block ends its window."""
    trained = train()
    with om.torch_profile(wait=0, warmup=0, active=9):
        for _ in om.steps(range(2)):
            trained.work()
    (window,) = trained.windows

    assert (len(window.steps), window.is_cut) == (2, True)


def test_schedule_without_a_run_is_said(tmp_path, monkeypatch, said):
    """There are no steps to follow."""
    monkeypatch.chdir(tmp_path)
    with om.torch_profile(active=2) as profile:
        torch.ones(3) + 1

    assert profile.paths == []
    assert "requires an active run" in said()[-1]


def test_exception_in_a_block_is_the_programs(train):
    """It leaves as it was raised, and the trace is written."""
    trained = train()
    with pytest.raises(ZeroDivisionError), om.torch_profile() as profile:
        trained.work() or 1 / 0

    assert len(profile.paths) == 1


def test_options_reach_torch(train):
    """Shapes, stacks and allocations are in the trace when they are asked for."""
    trained = train()
    with om.torch_profile(record_shapes=True, profile_memory=True, with_stack=True):
        trained.work()
    (window,) = trained.windows
    events = trained.events(window)

    assert any("Input Dims" in e.get("args", {}) for e in events)
    assert any(e.get("name") == "[memory]" for e in events)
    assert any(e.get("cat") == "python_function" for e in events)


@pytest.mark.fault("F81")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_device_is_described(train, said):
    """What was asked for and is not there leaves the CPU, and a reason in the description."""
    trained = train()
    with om.torch_profile(activities=["cpu", "cuda"]):
        trained.work()
    (window,) = trained.windows

    assert window.activities == ["cpu"]
    assert window.problem == "torch cannot record cuda here"


def test_program_without_torch_profiles_nothing(train, said, monkeypatch):
    """The block runs; it is said once and counted."""
    trained = train()
    monkeypatch.setitem(sys.modules, "torch.profiler", None)
    with om.torch_profile() as profile:
        pass

    assert profile.paths == []
    assert said()[0].startswith("torch cannot be imported")
    assert trained.counted("otel_mlperf.profile.skipped.no_torch") == 1


def test_forked_child_leaves_its_parents_window_alone(train):
    """The child leaves the block without a trace; the parent's is whole."""
    trained = train()
    with om.torch_profile() as profile:
        trained.work()
        child = os.fork()
        if child == 0:
            profile.stop()
            os._exit(len(profile.paths))
        assert os.waitpid(child, 0)[1] == 0

    assert len(trained.windows) == 1


@pytest.mark.parametrize("wrong", [{"active": 0}, {"every": "week"}, {"activities": ["tpu"]}])
def test_wrong_arguments_raise_at_once(wrong):
    """Before anything is profiled."""
    with pytest.raises(ConfigError, match="reading a profiler schedule"):
        om.torch_profile(**wrong)


@pytest.mark.fault("F85")
def test_profiler_memory_is_given_back(train):
    """Nothing keeps a window's events: the next ones take the same memory again.

    Also in a program that collects no garbage. Once malloc may need more beside what lies in its
    way; what is kept is kept each time.
    """
    trained = train()
    from otel_mlperf.pytorch.windows.capture import Heap

    def window():
        with om.torch_profile():
            for _ in range(200):
                trained.work()

    def grown():
        heap = Heap()
        for _ in range(5):
            window()
        return heap.growth_bytes()

    window()
    gc.disable()
    try:
        assert min(grown(), grown()) < 2 << 20
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_are_in_the_trace(train):
    """On a GPU the window holds what ran there, and has no problem to report."""
    trained = train()
    data = torch.randn(256, 256, device="cuda")
    with om.torch_profile():
        data @ data
    (window,) = trained.windows

    assert (window.activities, window.problem) == (["cpu", "cuda"], "")
    assert any(event.get("cat") == "kernel" for event in trained.events(window))
