"""Profiler windows contain the steps that the schedule names, and take no time of theirs."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import otel_mlperf as om
from otel_mlperf import ids
from otel_mlperf.integrations.torch_loop import TorchLoop
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.profiler_windows import Answer, parse_answer


def by_steps(work, count):
    for _ in om.steps(range(count)):
        work()


def by_blocks(work, count):
    for _ in range(count):
        with om.step():
            work()


def by_marks(work, count):
    for _ in range(count):
        om.mark_step()
        work()


def numbers(window):
    return [step.n for step in window.steps]


def names_of(events, word):
    return sorted(e["name"] for e in events if e.get("name", "").startswith(word))


@pytest.mark.parametrize("loop", [by_steps, by_blocks, by_marks])
def test_windows_hold_the_steps_that_the_schedule_names(train, loop):
    """However the steps are opened: trace and description of each window, and nothing beside."""
    trained = train("wait=2,warmup=1,active=3,repeat=2")
    loop(trained.work, 20)

    first, second = trained.windows
    assert (numbers(first), numbers(second)) == ([3, 4, 5], [9, 10, 11])
    assert len(list(trained.folder.iterdir())) == 4
    for window in (first, second):
        events = trained.events(window)
        assert names_of(events, "ProfilerStep#") == sorted(
            f"ProfilerStep#{n}" for n in numbers(window)
        )
        assert len([e for e in events if e.get("name") == "aten::linear"]) == 3
        assert not window.is_cut


@pytest.mark.parametrize(
    ("before", "steps"), [("", [2, 3]), ("wait=5,warmup=1,active=1,repeat=1", [6])]
)
def test_a_schedule_of_a_program_whose_run_was_begun_for_it(train, said, before, steps):
    """It is followed, where the command line or a variable has none, and nothing is warned of."""
    trained = train(before)
    trained.run.lend(lambda: None)
    train("wait=1,warmup=1,active=2,repeat=1")
    by_steps(trained.work, 10)

    (window,) = trained.windows
    assert numbers(window) == steps
    assert said() == []


def test_past_runs_are_forgotten(tmp_path):
    """Nothing keeps a run that has ended once another one has begun: notebooks start many."""

    def record():
        settings = {"dir": tmp_path, "agent": "none", "console": False}
        with om.start("x", **settings, profile="wait=1000") as run, om.step():
            path = run._recorder.journal.path
            known = weakref.ref(run._recorder)
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
        return known

    first, _ = record(), record()
    gc.collect()

    assert first() is None


def test_description_says_where_the_window_belongs(train):
    """Run, process, spans and traces of the steps are those of the journal."""
    trained = train("wait=1,warmup=0,active=2")
    by_steps(trained.work, 5)
    (window,) = trained.windows
    meta = trained.recorder.meta

    assert (window.run_id, window.rank, window.restart) == (meta.run_id, meta.rank, meta.restart)
    assert window.pid == os.getpid()
    assert window.anchor == (meta.unix_ns, meta.monotonic_ns)
    steps = [s for s in trained.sections("train.step") if s.is_profiled]
    assert [step.span for step in window.steps] == [f"{s.span:016x}" for s in steps]
    assert [step.trace for step in window.steps] == [
        f"{ids.trace_id(meta.run_id, meta.restart, 'train', n):032x}" for n in (1, 2)
    ]
    (export,) = trained.sections("profiler.export")
    assert window.parent == f"{export.span:016x}"
    assert window.start[1] < steps[0].start < steps[-1].end < window.end[1]


def test_only_steps_of_a_window_are_marked(train):
    """The agent keeps those, and samples the others as ever."""
    trained = train("wait=2,warmup=1,active=3,repeat=2")
    by_steps(trained.work, 20)
    steps = trained.sections("train.step")

    marked = [i for i, step in enumerate(steps) if step.is_profiled]
    assert marked == [3, 4, 5, 9, 10, 11]
    assert trained.recorder.stepping.flags == 0


def test_profiling_takes_no_time_of_a_step(train):
    """Starting and exporting are sections of the run's trace that no step overlaps."""
    trained = train("wait=1,warmup=1,active=2,repeat=2")
    by_steps(trained.work, 12)
    steps = trained.sections("train.step")
    own = trained.sections("profiler.start", "profiler.export")

    assert [s.name for s in own] == ["profiler.start", "profiler.export"] * 2
    for section in own:
        assert section.root == trained.recorder.meta.run_span
        assert all(section.end <= step.start or section.start >= step.end for step in steps)


def test_each_epoch_has_its_windows(train):
    """``every=epoch`` counts anew; what an epoch is too short for is cut at its end."""
    trained = train("wait=3,warmup=1,active=3,every=epoch")
    for _ in om.epochs(3):
        by_steps(trained.work, 6)
    trained.run.stop()

    assert [numbers(window) for window in trained.windows] == [[4, 5], [10, 11], [16, 17]]
    assert all(window.is_cut for window in trained.windows)


def test_whole_epochs_are_windows(train):
    """``unit=epoch`` records each in a window that ends with it, and is not cut by that."""
    trained = train("unit=epoch,wait=1,warmup=1,active=1,repeat=2")
    for _ in om.epochs(5):
        by_steps(trained.work, 4)
        with om.phase("validate"):
            by_steps(trained.work, 1)
    trained.run.stop()

    assert [numbers(window) for window in trained.windows] == [[5, 6, 7], [13, 14, 15]]
    assert not any(window.is_cut for window in trained.windows)


def test_epochs_of_an_untouched_loop_are_windows(train):
    """They are known by the passes over its loader."""
    trained, integration = train("unit=epoch,wait=1,warmup=1,active=1"), TorchLoop()
    integration.switch_on(torch)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(8, 2), batch_size=2)
    for _ in range(3):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
    trained.run.stop()
    integration.switch_off()

    assert [numbers(window) for window in trained.windows] == [[5, 6, 7]]
    assert not any(window.is_cut for window in trained.windows)


def test_validation_ends_a_window(train):
    """Steps of another phase do not fill it."""
    trained = train("wait=3,warmup=1,active=9")
    for _ in om.epochs(2):
        by_steps(trained.work, 6)
        with om.phase("validate"):
            by_steps(trained.work, 3)
    (window,) = trained.windows

    assert [(step.phase, step.n) for step in window.steps] == [("train", 4), ("train", 5)]
    assert window.is_cut


def test_validation_inside_a_step_belongs_to_its_window(train):
    """A phase inside a training step does not end the window, and its steps are listed."""
    trained = train("wait=0,warmup=0,active=2")
    for _ in om.steps(range(3)):
        trained.work()
        with om.phase("validate"):
            by_steps(trained.work, 1)
    (window,) = trained.windows

    assert [(step.phase, step.n) for step in window.steps] == [
        ("validate", 0), ("train", 0), ("validate", 1), ("train", 1)
    ]  # fmt: skip


def test_schedule_may_follow_another_phase(train):
    """``phase=validate`` counts its steps and leaves those of training alone."""
    trained = train("wait=1,warmup=0,active=2,phase=validate")
    by_steps(trained.work, 5)
    with om.phase("validate"):
        by_steps(trained.work, 5)
    (window,) = trained.windows

    assert [(step.phase, step.n) for step in window.steps] == [("validate", 1), ("validate", 2)]


@pytest.mark.fault("F83")
def test_window_is_cut_where_it_holds_enough_events(train):
    """It ends with the step in which the cap was reached, and is marked as cut."""
    trained = train("wait=1,warmup=1,active=50,events=20000")
    for _ in om.steps(range(12)):
        for _ in range(300):  # about 5,000 events
            trained.work()
    (window,) = trained.windows

    assert window.is_cut
    assert 2 <= len(window.steps) <= 8
    recorded = sum(event["ph"] == "X" for event in trained.events(window))
    assert 10_000 <= recorded < 40_000


def test_run_that_ends_in_a_window_keeps_it(train):
    """What was recorded until then is written, and marked as cut."""
    trained = train("wait=2,warmup=0,active=50")
    by_steps(trained.work, 5)
    trained.run.stop()
    (window,) = trained.windows

    assert (numbers(window), window.is_cut) == ([2, 3, 4], True)


def test_run_that_ends_in_the_warm_up_leaves_nothing(train, said):
    """No trace, no complaint, and the profiler is free again."""
    trained = train("wait=2,warmup=50,active=1")
    by_steps(trained.work, 5)
    trained.run.stop()

    assert trained.windows == []
    assert said() == []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trained.work()
    assert profile.events()


@pytest.mark.parametrize("words", ["wait=100", "wait=2,warmup=50", "wait=1,phase=validate"])
def test_schedule_that_never_recorded_is_counted(train, words):
    """The run was too short for it; it is no fault of another profiler."""
    trained = train(words)
    by_steps(trained.work, 5)
    with om.torch_profile(wait=50):
        by_steps(trained.work, 2)
    trained.run.stop()

    assert trained.windows == []
    assert trained.counted("otel_mlperf.profile.skipped.not_reached") == 2
    assert trained.counted("otel_mlperf.profile.skipped.busy") == 0


def test_window_that_was_asked_for_ends_when_told_to(train):
    """With the step that is open, and the asker has its answer; another can be asked for then."""
    trained = train()
    words = trained.recorder.journal.words
    for request in ((1 << 16) | 9000, (3 << 16) | 2):
        words[Word.CONTROL] = request
        for i in om.steps(range(6)):
            trained.work()
            if i % 6 == 3:
                words[Word.CONTROL] = 2 << 16
        assert words[Word.CONTROL] == words[Word.TAKEN] == words[Word.ANSWERED] == request
    first, second = trained.windows

    assert (numbers(first), first.is_cut) == ([1, 2, 3], True)
    assert (numbers(second), second.is_cut) == ([7, 8], False)


def test_window_that_is_ended_before_it_began_is_answered(train):
    """Nobody waits for what never comes."""
    trained = train()
    words = trained.recorder.journal.words
    words[Word.CONTROL] = (1 << 16) | 3
    for i in om.steps(range(4)):
        trained.work()
        if i == 0:
            words[Word.CONTROL] = 2 << 16

    assert words[Word.ANSWERED] == words[Word.TAKEN] == (1 << 16) | 3
    assert parse_answer(words[Word.ANSWER])[0] is Answer.NOT_REACHED
    assert trained.windows == []


def test_exception_in_a_window_is_the_programs(train):
    """It arrives as it was raised; the failed step is in the window."""
    trained = train("wait=2,warmup=0,active=50")

    def interrupted():
        for i in om.steps(range(9)):
            trained.work()
            if i == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trained.run:
        interrupted()
    (window,) = trained.windows

    assert numbers(window) == [2, 3, 4]
    assert [s.is_profiled for s in trained.sections("train.step")] == [False, False, *[True] * 3]


@pytest.mark.fault("F84")
@pytest.mark.parametrize("what", ["a file", "no room"])
def test_trace_that_cannot_be_written_is_lost_alone(train, said, what, monkeypatch):
    """Training goes on, it is said once and counted, and no half file stays."""
    trained = train("wait=1,warmup=0,active=1,repeat=2")
    if what == "a file":
        trained.folder.write_text("")
    else:
        monkeypatch.setattr(
            torch.profiler._KinetoProfile,
            "export_chrome_trace",
            lambda _self, path: Path(path).write_text('{"traceEvents": [ {'),
        )
    by_steps(trained.work, 6)

    assert trained.counted("otel_mlperf.profile.skipped.failed") == 2
    assert len(said()) == 1
    assert "a profiler window is lost: StoreError: writing a profiler trace to" in said()[0]
    assert not trained.folder.is_dir() or list(trained.folder.iterdir()) == []
    assert len(trained.sections("train.step")) == 6


def test_torch_that_refuses_costs_the_window_only(train, said, monkeypatch):
    """An exception of torch's own is said once and counted."""
    trained = train("wait=1,warmup=0,active=1")

    def refuse(_self):
        raise RuntimeError("CUPTI says no")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "prepare_trace", refuse)
    by_steps(trained.work, 4)

    assert said() == ["a profiler window is lost: RuntimeError: CUPTI says no"]
    assert trained.counted("otel_mlperf.profile.skipped.failed") == 1
    assert len(trained.sections("train.step")) == 4


def test_windows_are_counted(train):
    """Written ones too, so that the counts add up to the schedule."""
    trained = train("wait=1,warmup=0,active=1,repeat=3")
    by_steps(trained.work, 9)

    assert trained.counted("otel_mlperf.profile.windows") == 3


def test_run_says_that_it_listens(train):
    """A command may ask a run that has no schedule at all."""
    assert train().word(Word.LISTENS) == 1
