"""``trace_handler()`` stores the trace of a program's own profiler, and leaves it usable."""

from __future__ import annotations

import gzip
import json
import signal

import pytest
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

import otel_mlperf as om

CPU = [ProfilerActivity.CPU]
# torch says once that each of its cycles forgets the one before.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")


def run_loop(work, count, **handler):
    theirs = profile(
        activities=CPU,
        schedule=schedule(wait=2, warmup=1, active=2, repeat=2),
        on_trace_ready=om.trace_handler(**handler),
    )
    with theirs:
        for _ in om.steps(range(count)):
            work()
            theirs.step()
    return theirs


def test_their_windows_are_described(train):
    """Each trace lies in the run's folder with the steps that it saw, which are marked."""
    trained = train()
    run_loop(trained.work, 14)
    first, second = trained.windows

    assert (first.activities, first.problem) == (["cpu"], "")
    assert len([e for e in trained.events(first) if e.get("name") == "aten::linear"]) == 2
    marked = [i for i, s in enumerate(trained.sections("train.step")) if s.is_profiled]
    listed = [step.n for window in (first, second) for step in window.steps]
    assert listed == marked
    assert {3, 4, 8, 9} <= set(marked) <= {2, 3, 4, 5, 7, 8, 9, 10}
    assert trained.recorder.stepping.flags == 0


def test_exporting_takes_no_time_of_the_step(train):
    """The handler is called inside one; its duration leaves that out."""
    trained = train()
    run_loop(trained.work, 14)
    exports = trained.sections("profiler.export")
    left_out = sum(step.payload.get("x", 0) for step in trained.sections("train.step"))

    assert len(exports) == 2
    assert left_out == sum(section.end - section.start for section in exports)


@pytest.mark.parametrize("use_gzip", [False, True])
def test_their_own_handler_gets_a_copy(train, tmp_path, use_gzip):
    """TensorBoard's handler exports the same trace again, which torch alone would refuse."""
    trained = train()
    theirs = run_loop(
        trained.work, 7, also=tensorboard_trace_handler(str(tmp_path / "log"), use_gzip=use_gzip)
    )
    (window,) = trained.windows
    (copy,) = (tmp_path / "log").iterdir()

    text = gzip.decompress(copy.read_bytes()) if use_gzip else copy.read_bytes()
    assert json.loads(text)["traceEvents"] == trained.events(window)
    assert "export_chrome_trace" not in vars(theirs)


@pytest.mark.fault("F84")
def test_nothing_that_goes_wrong_reaches_the_training(train, said):
    """Neither an unwritable folder nor their own handler's exception."""
    trained = train()
    trained.folder.write_text("")

    def fail(_profile):
        raise ValueError("theirs")

    run_loop(trained.work, 7, also=fail)

    assert len(trained.sections("train.step")) == 7
    assert [line.split(":")[0] for line in said()] == [
        "the trace of the program's own profiler is lost",
        "trace_handler(also=…) failed",
    ]


@pytest.mark.fault("F95")
def test_time_limit_reaches_the_training(train):
    """What a signal handler of the program raises while a trace is written is the program's."""
    trained = train()

    def end(number, frame):
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(TimeoutError, match="enough"):
            run_loop(trained.work, 7, also=lambda _: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_a_run_the_trace_is_kept_all_the_same(tmp_path, monkeypatch):
    """It goes to the folder of runs."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    with profile(activities=CPU, on_trace_ready=om.trace_handler()) as theirs:
        pass
    (path,) = (tmp_path / "profiles").iterdir()

    assert json.loads(path.read_text())["traceEvents"]
    assert theirs.events() is not None
