"""The program is called for each step and phase, in time and never in its way."""

from __future__ import annotations

import threading

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.core.program_callbacks import EVERY


@pytest.fixture
def heard(recording, monkeypatch):
    """What was called, in order; callbacks are gone after the test."""
    for callbacks in EVERY:
        monkeypatch.setattr(callbacks, "all", ())
    calls = []
    om.on_step_begin(lambda *step: calls.append(("begin", *step)))
    om.on_step_end(lambda *step: calls.append(("end", *step)))
    om.on_phase(lambda *phase: calls.append(("phase", *phase)))
    return calls


def test_steps_and_phases(heard):
    """Each step and phase is told as it begins and as it ends, with its name and number."""
    with om.step():
        heard.append("inside")
    with om.phase("eval"), om.step(7):
        pass

    assert heard == [
        ("begin", "train", 0), "inside", ("end", "train", 0),
        ("phase", "validate", True), ("begin", "validate", 7), ("end", "validate", 7),
        ("phase", "validate", False),
    ]  # fmt: skip


def test_loop(heard):
    """A loop over batches tells of every step; the one opened for no batch has no end."""
    list(om.steps([1, 2]))

    assert heard == [
        ("begin", "train", 0), ("end", "train", 0), ("begin", "train", 1), ("end", "train", 1),
        ("begin", "train", 2),
    ]  # fmt: skip
    with om.step():
        pass
    assert heard[5:] == [("begin", "train", 2), ("end", "train", 2)]


def test_marked_steps(heard, recording):
    """mark_step() tells of both: the step that it ends and the one that it opens."""
    om.mark_step()
    om.mark_step()
    recording.run.stop()

    assert heard == [("begin", "train", 0), ("end", "train", 0), ("begin", "train", 1)]


def test_steps_left_early(heard):
    """A step that is left by break, or by an exception, ends as well."""
    for _ in om.steps([1, 2]):
        break
    with pytest.raises(KeyError), om.step():
        raise KeyError

    assert heard == [
        ("begin", "train", 0), ("end", "train", 0), ("begin", "train", 1), ("end", "train", 1),
    ]  # fmt: skip


def test_inside_the_step(heard, recording):
    """The step is current and open in both, and what they record belongs to it."""

    @om.on_step_begin
    def begun(phase, number):
        with om.span("first"):
            pass

    @om.on_step_end
    def ending(phase, number):
        om.log(last=number)
        with om.span("last"):
            pass

    with om.step(5):
        pass

    step = recording.one("train.step")
    assert [recording.one(name).parent for name in ("first", "last")] == [step.span] * 2
    (value,) = recording.rows(Kind.VALUE)
    assert (value.span, value.parent) == (step.span, 5)
    assert recording.one("last").start >= step.end
    assert recording.open() == ["run"]


def test_thread(heard):
    """They are called in the thread that opens and closes the step."""
    threads = []
    om.on_step_begin(lambda *step: threads.append(threading.get_ident()))
    om.on_step_end(lambda *step: threads.append(threading.get_ident()))

    def work():
        with om.step():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    ident = thread.ident
    thread.join()

    assert threads == [ident, ident]


@pytest.mark.fault("F50")
def test_callback_that_fails(heard, recording, said):
    """A callback that raises is counted, said once, and others are called; the step is whole."""

    def fail(phase, number):
        raise ValueError(phase)

    def late(phase, is_open):
        raise KeyError(is_open)

    assert om.on_step_begin(fail) is fail
    om.on_step_end(om.on_step_begin(lambda *step: heard.append("after")))
    assert om.on_phase(late) is late
    for _ in range(2):
        with om.phase("test"), om.step():
            pass

    assert heard.count("after") == 4
    assert said() == [
        "on_phase(): test_callback_that_fails.<locals>.late failed: KeyError: True",
        "on_step_begin(): test_callback_that_fails.<locals>.fail failed: ValueError: test",
    ]
    assert recording.word(Word.CALLBACK_ERRORS) == 6
    assert recording.word(Word.INTERNAL_ERRORS) == 0
    assert not any(row.is_error for row in recording.sections())
    assert len(recording.sections("test.step")) == 2


@pytest.mark.fault("F96")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_as_a_step_begins(heard, recording, error):
    """Ctrl-C in a callback goes on to the program; the step is taken back, the next one counts."""

    @om.on_step_begin
    def interrupt(phase, number):
        om.remove_callback(interrupt)
        raise error

    for open_step in (om.step, lambda: next(iter(om.steps([1])))):
        om.on_step_begin(interrupt)
        with pytest.raises(error), open_step():
            pytest.fail("the block is not entered")
    with om.step():
        pass

    assert recording.numbers() == [0]
    assert recording.open() == ["run"]
    assert heard[-1] == ("end", "train", 0)


@pytest.mark.fault("F96")
def test_interrupt_as_a_step_ends(heard, recording):
    """Ctrl-C in a callback goes on to the program, and the step is over."""

    @om.on_step_end
    def interrupt(phase, number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), om.step():
        pass

    assert recording.numbers() == [0]
    assert recording.open() == ["run"]


@pytest.mark.fault("F96")
def test_interrupt_in_a_phase(heard, recording):
    """Ctrl-C in a callback goes on to the program; the phase is over, the one before is back."""
    calls = []

    @om.on_phase
    def interrupt(phase, is_open):
        calls.append(is_open)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), om.phase("test"):
        pytest.fail("the block is not entered")
    om.remove_callback(interrupt)
    with om.step():
        pass
    block = om.phase("test")
    block.__enter__()
    om.on_phase(interrupt)
    with pytest.raises(KeyboardInterrupt):
        block.__exit__(None, None, None)
    om.remove_callback(interrupt)
    with om.step():
        pass

    assert calls == [True, False]
    assert recording.numbers() == [0, 1]
    assert recording.open() == ["run"]


def test_removed_callback(heard):
    """A callback that is taken back is called no longer, also in the middle of a step."""
    calls = []

    @om.on_phase
    @om.on_step_end
    @om.on_step_begin
    def note(phase, number):
        calls.append(number)

    with om.step():
        om.remove_callback(note)
    with om.phase("test"):
        pass
    om.remove_callback(note)

    assert calls == [0]
    assert len(heard) == 4


def test_callback_that_comes_within_a_step(recording, monkeypatch):
    """It is told of the steps that begin from then on, as a whole."""
    for callbacks in EVERY:
        monkeypatch.setattr(callbacks, "all", ())
    calls = []
    with om.step():
        om.on_step_end(lambda *step: calls.append(step))
    with om.step():
        pass

    assert calls == [("train", 1)]


def test_callback_that_stops_the_run(heard, recording):
    """A callback may end the run: the step ends with it, once."""
    om.on_step_end(lambda *step: recording.run.stop())
    with om.step():
        pass

    assert heard == [("begin", "train", 0), ("end", "train", 0)]
    assert recording.numbers() == [0]
    assert recording.open() == []


def test_without_a_run():
    """While nothing is recorded nobody is called."""
    calls = []
    callback = om.on_step_begin(om.on_phase(lambda *given: calls.append(given)))
    with om.phase("test"), om.step():
        pass
    om.remove_callback(callback)

    assert calls == []


@pytest.mark.parametrize("name", ["on_step_begin", "on_step_end", "on_phase"])
def test_what_cannot_be_called_is_refused(name):
    """It is said at once, not when the first step begins."""
    with pytest.raises(om.ConfigError, match=rf"{name}\(3\): expected a function of two"):
        getattr(om, name)(3)
