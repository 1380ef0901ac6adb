"""Epochs and phases are placed where they belong: in the run's trace."""

from __future__ import annotations

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Kind
from otel_mlperf.recorder.api.epochs import Phase


def test_epochs(recording):
    """Each turn is an epoch in the run's trace, with its number, ended by the next."""
    numbers = []
    for epoch in om.epochs(3):
        numbers.append(epoch)
        with om.span("inside"):
            pass

    rows = recording.sections(names.SPAN_EPOCH)
    assert numbers == [0, 1, 2]
    assert [row.attributes[names.TRAINING_EPOCH] for row in rows] == [0, 1, 2]
    assert [row.category for row in rows] == [names.EPOCH] * 3
    assert [(row.parent, row.root) for row in rows] == [(recording.span, recording.span)] * 3
    assert [row.parent for row in recording.sections("inside")] == [row.span for row in rows]


def test_epochs_of_an_iterable(recording):
    """An iterable's items come through, numbered from ``start``."""
    assert list(om.epochs("abc", start=4)) == ["a", "b", "c"]
    assert len(om.epochs([1, 2])) == 2

    rows = recording.sections(names.SPAN_EPOCH)
    assert [row.attributes[names.TRAINING_EPOCH] for row in rows] == [4, 5, 6]


def test_resumed_epochs():
    """``epochs(10, start=7)`` gives the three that are left."""
    assert list(om.epochs(10, start=7)) == [7, 8, 9]


def test_break_out_of_epochs(recording):
    """Leaving the loop ends the epoch."""
    for _ in om.epochs(3):
        break
    with om.span("after"):
        pass

    assert len(recording.sections(names.SPAN_EPOCH)) == 1
    assert recording.one("after").parent == recording.span


def test_an_epoch_has_the_peaks_of_its_end(recording):
    """Each as it is when the epoch ends, be it by the next one, by ``break`` or as a block."""
    used = 0
    recording.recorder.stepping.peaks.append(lambda: {names.EPOCH_CUDA_PEAK: used})
    for epoch in om.epochs(4):
        used += 100
        if epoch == 1:
            break
    used = 700
    with om.epoch(7):
        used = 800

    rows = recording.sections(names.SPAN_EPOCH)
    assert [row.attributes[names.EPOCH_CUDA_PEAK] for row in rows] == [100, 200, 800]


def test_exception_in_an_epoch(recording):
    """An exception that leaves the loop of epochs and steps marks the step."""

    @om.span("training")
    def train():
        for _ in om.epochs(3):
            for _ in om.steps([1]):
                raise KeyError("x")

    with pytest.raises(KeyError):
        train()

    assert recording.one("train.step").error[0] == "KeyError"
    assert recording.one(names.SPAN_EPOCH).error[0] == "KeyError"
    assert recording.open() == ["run"]


def test_epoch_block(recording):
    """``epoch(n)`` is the same as a block."""
    with om.epoch(7), om.step():
        pass

    assert recording.one(names.SPAN_EPOCH).attributes[names.TRAINING_EPOCH] == 7
    assert recording.one("train.step").attributes[names.TRAINING_EPOCH] == 7


def test_phase(recording):
    """Inside a phase names and steps carry it; afterwards the phase before is back."""
    with om.phase("validate"), om.span("forward"):
        pass
    with om.span("forward"):
        pass

    first, second = recording.sections("forward")
    assert (first.phase, second.phase) == ("validate", "train")
    row = recording.one("validate")
    assert (row.category, row.parent) == (names.PHASE, recording.span)
    assert first.parent == row.span


def test_phases_count_for_themselves(recording):
    """Steps of each phase have numbers and n of their own, going on from pass to pass."""
    for _ in range(2):
        list(om.steps([1, 2, 3]))
        with om.phase("validate"):
            list(om.steps([1, 2]))

    assert recording.numbers() == [0, 1, 2, 3, 4, 5]
    assert recording.numbers("validate.step") == [0, 1, 2, 3]
    assert {row.phase for row in recording.sections("validate.step")} == {"validate"}


def test_phase_inside_a_step(recording):
    """A validation inside a step is in the run's trace and not in the step's duration."""
    with om.epoch(0):
        for _ in om.steps([1]):
            with om.phase("validate"):
                list(om.steps([1, 2]))
            with om.span("after"):
                pass

    step, phase = recording.one("train.step"), recording.one("validate")
    epoch = recording.one(names.SPAN_EPOCH)
    assert (phase.parent, phase.root) == (epoch.span, recording.span)
    assert step.start <= phase.start
    assert phase.end <= step.end
    assert step.payload["x"] == phase.end - phase.start
    assert [row.parent for row in recording.begins("validate.step")][:2] == [phase.span] * 2
    assert recording.one("after").root == step.span


@pytest.mark.parametrize("how", [{}, {"path": "a"}])
def test_checkpoint_inside_a_step(recording, how):
    """A checkpoint, by its category, is taken out of the step that it is in."""
    for _ in om.steps([1]):
        with om.span("forward"), om.span("checkpoint", **how), om.span("write"):
            pass

    step, saved = recording.one("train.step"), recording.one("checkpoint")
    assert (saved.parent, saved.root) == (recording.span, recording.span)
    assert (recording.one("write").parent, recording.one("write").root) == (
        saved.span,
        recording.span,
    )
    assert step.payload["x"] == saved.end - saved.start


def test_decorated_checkpoint_inside_a_step(recording):
    """The same for a decorated function, and for a category that is given."""

    @om.span("save", category=names.CHECKPOINT)
    def save():
        return 7

    for _ in om.steps([1, 2]):
        assert save() == 7

    saved, steps = recording.sections("save"), recording.sections("train.step")
    assert {row.root for row in saved} == {recording.span}
    assert [s.payload["x"] for s in steps] == [c.end - c.start for c in saved]


def test_checkpoint_outside_steps(recording):
    """Outside steps a checkpoint is a section like others."""
    with om.span("around"), om.span("checkpoint"):
        pass

    assert recording.one("checkpoint").parent == recording.one("around").span


def test_step_inside_a_step_of_another_phase(recording):
    """Steps of a phase inside a training step are steps, linked to the phase."""
    with om.step(), om.phase("test"), om.step():
        pass

    assert recording.numbers("test.step") == [0]
    assert recording.begins("test.step")[0].parent == recording.one("test").span


def test_unknown_phase(recording, said):
    """A phase that does not exist is said once, with the nearest one, and changes nothing."""
    with om.phase("validte"), om.step():
        pass
    with om.phase("warmup"), om.step():
        pass

    assert recording.one("validte").phase == "train"
    assert recording.numbers() == [0, 1]
    first, second = said()
    assert "did you mean 'validate'?" in first
    assert "its steps count as train" in second


@pytest.mark.parametrize(
    ("word", "phase"), [("eval", "validate"), ("val", "validate"), ("inference", "predict")]
)
def test_other_word_for_a_phase(recording, said, word, phase):
    """What people call a phase in other frameworks is that phase."""
    with om.phase(word), om.step():
        pass

    assert recording.one(phase).phase == phase
    assert recording.numbers(f"{phase}.step") == [0]
    assert said() == []


def test_phase_left_by_an_exception(recording):
    """An exception marks the phase and brings the phase before back."""
    with pytest.raises(KeyError), om.phase("test"):
        raise KeyError("x")
    with om.span("after"):
        pass

    assert recording.one("test").is_error
    assert recording.one("after").phase == "train"


def test_phase_that_ended_before_it_is_said(recording):
    """One that was only inferred ends at a time that has passed; a step does without its time."""
    with om.step():
        validation = Phase(names.VALIDATE)
        with om.span("before"):
            pass
        section = validation.__enter__()
        with om.span("inside"):
            pass
        validation.end(section.t0 + 7)

    row, step = recording.one("validate"), recording.one("train.step")
    assert (row.end - row.start, row.root) == (7, recording.span)
    assert step.payload["x"] == 7
    assert recording.one("inside").phase == "validate"
    assert recording.recorder.registry.phase == names.TRAIN


def test_phase_that_was_none(recording):
    """One that is taken back gives what was in it to what is around it, and the phase ends."""
    validation = Phase(names.VALIDATE)
    validation.__enter__()
    validation.cancel()
    with om.span("after"):
        pass

    (row,) = recording.rows(Kind.CANCEL)
    assert (row.name, row.parent) == ("validate", recording.span)
    assert recording.one("after").parent == recording.span
    assert recording.recorder.registry.phase == names.TRAIN
