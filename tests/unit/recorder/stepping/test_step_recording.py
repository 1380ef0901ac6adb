"""An inferred step gives way if other code reports the steps."""

from __future__ import annotations

import otel_mlperf as om
from otel_mlperf.journal.layout import Kind


def infer(recording, *, is_whole):
    """A step that nobody has said; ``is_whole``: it may have ended by now."""
    step = recording.recorder.stepping.infer(0)
    if is_whole:
        step.whole_ns = step.section.t0 + 5
    return step


def test_whole_step_ends_when_it_was_whole(recording):
    """What encloses it, and the run's end, come later and change nothing."""
    with om.span("around"):
        infer(recording, is_whole=True)
    infer(recording, is_whole=True)
    om.stop()

    rows = recording.sections("train.step")
    assert [row.end - row.start for row in rows] == [5, 5]
    assert not any(row.is_error for row in rows)


def test_step_that_never_was_whole_is_taken_back(recording):
    """By what encloses it, and by the run's end."""
    with om.span("around"):
        infer(recording, is_whole=False)
    infer(recording, is_whole=False)
    om.stop()

    assert recording.sections("train.step") == []
    assert len(recording.rows(Kind.CANCEL)) == 2


def test_step_that_is_said_inside_takes_its_place(recording):
    """The program knows better: the inferred one is taken back, and no other is inferred."""
    infer(recording, is_whole=False)
    with om.step():
        pass

    assert recording.numbers() == [0]
    assert recording.recorder.stepping.infer(0) is None


def test_whole_step_stays_when_one_is_said(recording):
    """It was one; ``mark_step`` says so, too."""
    infer(recording, is_whole=True)
    om.mark_step()
    om.mark_step()

    assert recording.numbers() == [0, 1]


def test_nothing_is_inferred_inside_a_step_that_was_said(recording):
    """The step goes on as it was said."""
    with om.step():
        assert recording.recorder.stepping.infer(0) is None

    assert recording.numbers() == [0]


def test_step_that_is_open_when_the_run_ends_keeps_what_was_added_up(recording):
    """The run's end writes it with its samples."""
    step = om.step(samples=3)
    step.__enter__()
    om.stop()

    assert recording.one("train.step").payload == {"n": 3}
