"""There is never a second profiler, and the program's own sees the same as without us."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from interrupted_calls import interruptions
from torch.profiler import ProfilerActivity, profile, schedule

import otel_mlperf as om
from otel_mlperf.pytorch import windows
from otel_mlperf.pytorch.windows import profiler_lock

CPU = [ProfilerActivity.CPU]
BUSY = "otel_mlperf.profile.skipped.busy"


@pytest.fixture(autouse=True)
def _free():
    """No test leaves a profiler behind."""
    yield
    assert not torch.autograd.profiler._is_profiler_enabled
    assert not profiler_lock._owners


def loop(work, count, each=lambda _: None):
    for i in om.steps(range(count)):
        work()
        each(i)


@pytest.mark.fault("F80")
def test_window_is_left_out_while_the_program_profiles(train, said):
    """It is said once and counted, and the program's profiler sees every event."""
    trained = train("wait=2,warmup=1,active=2,repeat=2")
    with profile(activities=CPU) as theirs:
        loop(trained.work, 10)

    assert trained.windows == []
    assert trained.counted(BUSY) == 2
    assert said() == ["another profiler is running in this process: a profiler window is skipped"]
    assert len([e for e in theirs.events() if e.name == "aten::linear"]) == 10


@pytest.mark.fault("F80")
def test_profiler_that_waits_counts_as_running(train):
    """Its schedule has not begun, but may at any step."""
    trained = train("wait=1,warmup=1,active=6")
    theirs = profile(activities=CPU, schedule=schedule(wait=5, warmup=1, active=2, repeat=1))
    with theirs:
        loop(trained.work, 10, lambda _: theirs.step())

    assert trained.windows == []
    assert len([e for e in theirs.events() if e.name == "aten::linear"]) == 2


def test_profiler_that_ended_leaves_room(train):
    """The windows after it are recorded."""
    trained = train("wait=2,warmup=1,active=2,repeat=2")
    with profile(activities=CPU):
        loop(trained.work, 5)
    loop(trained.work, 5)

    (window,) = trained.windows
    assert [step.n for step in window.steps] == [8, 9]


@pytest.mark.fault("F80")
def test_window_gives_way_to_a_profiler_of_the_same_thread(train):
    """Ours is cut before theirs begins, and both traces are whole."""
    trained = train("wait=1,warmup=1,active=6")
    found = []

    def each(i):
        if i == 4:
            with profile(activities=CPU) as theirs:
                trained.work()
            found.append(len([e for e in theirs.events() if e.name == "aten::linear"]))

    loop(trained.work, 10, each)
    (window,) = trained.windows

    assert found == [1]
    assert window.is_cut
    assert [step.n for step in window.steps] == [2, 3, 4]
    assert len([e for e in trained.events(window) if e.get("name") == "aten::linear"]) == 3


def test_block_that_gives_way_says_why_it_is_short(train, said):
    """Once in the log, and in the window's description."""
    trained = train()
    with om.torch_profile():
        trained.work()
        for _ in range(2):
            with profile(activities=CPU):
                trained.work()
    (window,) = trained.windows

    assert window.is_cut
    (once,) = said()
    assert once == "the program has started a profiler of its own: the window ends at that time"
    assert window.problem.endswith(once)
    assert len([e for e in trained.events(window) if e.get("name") == "aten::linear"]) == 1


@pytest.mark.fault("F80")
def test_profiler_of_another_thread_waits_for_the_end_of_our_step(train):
    """Theirs begins when ours has stopped, and sees all its own events."""
    trained = train("wait=1,warmup=1,active=60")
    found = []
    started = threading.Event()

    def other():
        with profile(activities=CPU) as theirs:
            started.set()
            for _ in range(10):
                trained.work()
        found.append(len([e for e in theirs.events() if e.name == "aten::linear"]))

    thread = threading.Thread(target=other)

    def each(i):
        if i == 4:
            thread.start()
        elif i > 4:
            started.wait(0.1)

    loop(trained.work, 40, each)
    thread.join()
    (window,) = trained.windows

    assert found == [10]
    assert window.is_cut
    assert trained.events(window)


@pytest.mark.fault("F80")
def test_block_inside_a_window_is_left_out(train):
    """Ours are no exception: the window is recorded, the block is counted as busy."""
    trained = train("wait=1,warmup=0,active=2")
    blocks = []

    def each(i):
        if i == 1:
            with om.torch_profile() as block:
                trained.work()
            blocks.append(block.paths)

    loop(trained.work, 5, each)

    assert blocks == [[]]
    assert len(trained.windows) == 1
    assert trained.counted(BUSY) == 1


@pytest.mark.fault("F80")
def test_two_schedules_share_the_profiler(train):
    """Where they meet, one of them is left out."""
    trained = train("wait=2,warmup=0,active=3")
    with om.torch_profile(wait=3, warmup=0, active=1, repeat=2) as second:
        loop(trained.work, 12)

    assert [[step.n for step in window.steps] for window in trained.windows] == [[2, 3, 4], [7]]
    assert len(second.paths) == 1
    assert trained.counted(BUSY) == 1


@pytest.mark.fault("F80")
def test_program_is_not_hindered_by_a_failing_guard(train, monkeypatch):
    """Whatever goes wrong in ours when theirs starts, theirs starts."""
    trained = train("wait=1,warmup=0,active=9")
    seen = []

    def each(i):
        if i == 3:
            with profile(activities=CPU) as theirs:
                trained.work()
            seen.append(len(theirs.events()))

    monkeypatch.setattr(trained.folder.__class__, "mkdir", _refuse)
    loop(trained.work, 6, each)

    assert seen
    assert seen[0] > 0


def _refuse(*_args, **_kwargs):
    raise OSError(30, "Read-only file system")


class Theirs:
    """A profiler of the program."""


def forget_profiler() -> None:
    """A profiler starts and is gone without a stop."""
    profiler_lock._arrives(Theirs())
    assert profiler_lock.is_alone()


@pytest.mark.fault("F95")
@pytest.mark.parametrize("package", [windows, weakref])
def test_interrupt_as_a_profiler_is_forgotten(package):
    """What comes as its weak reference calls back arrives, and no window waits for it."""
    forget_profiler()
    for moment, raised, arrived in interruptions(package, KeyboardInterrupt, forget_profiler):
        assert arrived is raised, moment.where
        assert profiler_lock.is_alone()
