"""A loop that is left ends its step immediately, and the step knows why."""

from __future__ import annotations

import sys

import pytest

import otel_mlperf as om


def failing_loop():
    """A loop that is left by an exception of its body."""
    for _ in om.steps([1, 2]):
        raise KeyError("x")


def test_break(recording):
    """Leaving the loop ends the step there and then."""
    for _ in om.steps([1, 2]):
        break

    assert recording.numbers() == [0]
    assert recording.open() == ["run"]
    with om.span("after"):
        pass
    assert recording.one("after").parent == recording.span


def test_return(recording):
    """Returning out of the loop ends the step without an error."""

    def train():
        for batch in om.steps([1, 2]):
            return batch
        return None

    train()

    assert not recording.one("train.step").is_error
    assert recording.open() == ["run"]


def test_close(recording):
    """``close()`` ends the open step."""
    iterator = iter(om.steps([1, 2]))
    next(iterator)
    iterator.close()

    assert recording.numbers() == [0]
    assert recording.open() == ["run"]


def test_end_of_what_encloses(recording):
    """A step still open when the section around it ends, ends with it."""
    with om.span("around"):
        iterator = iter(om.steps([1, 2]))
        next(iterator)

    around, step = recording.one("around"), recording.one("train.step")
    assert step.end == around.end
    assert recording.open() == ["run"]
    assert list(iterator) == [2]


def test_exception_in_the_body(recording):
    """An exception in the loop's body marks the step through the enclosing block."""
    with pytest.raises(KeyError), om.span("around"):
        failing_loop()

    step, around = recording.one("train.step"), recording.one("around")
    assert step.error[:2] == ["KeyError", "'x'"]
    assert step.end <= around.end


def test_exception_through_a_section_of_the_body(recording):
    """Caught outside the loop, an exception that crossed a section inside still marks the step."""

    def fail():
        for _ in om.steps([1, 2]):
            with om.span("forward"):
                raise KeyError("x")

    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    om.stop()

    assert [row.error[0] for row in recording.sections("train.step")] == ["KeyError"] * 2


def test_exception_caught_in_the_body(recording):
    """An exception that the body itself handles leaves the step alone."""
    for _ in om.steps([1, 2]):
        with pytest.raises(KeyError), om.span("forward"):
            raise KeyError("x")

    assert [row.is_error for row in recording.sections("train.step")] == [False, False]
    assert [row.is_error for row in recording.sections("forward")] == [True, True]


def test_exception_that_ends_the_run(start):
    """With nothing around the loop but the run, the run's end marks the step."""
    recording = start()
    with pytest.raises(KeyError), recording.run:
        failing_loop()

    assert recording.one("train.step").error[:2] == ["KeyError", "'x'"]
    assert recording.one("run").error[0] == "KeyError"


@pytest.mark.parametrize("turn", range(1, 8))
def test_settled_by_another_meanwhile(recording, turn):
    """Wherever another thread comes in between and settles too, each loop ends once."""
    recorder = recording.recorder
    abandoned, ended = recorder.stepping.abandoned, []
    for name in ("first", "second"):
        section = recorder.sections.enter(name)
        abandoned.add(section, lambda *_, name=name: ended.append(name), is_suspicious=True)
    lines = iter(range(1, 100))

    def settle_between(frame, event, _):
        if event == "line" and next(lines) == turn:
            abandoned.settle(None)
        return settle_between

    code, before = abandoned.settle.__code__, sys.gettrace()
    sys.settrace(lambda frame, *_: settle_between if frame.f_code is code else None)
    try:
        abandoned.settle(None)
    finally:
        sys.settrace(before)

    assert sorted(ended) == ["first", "second"]
    assert not abandoned
