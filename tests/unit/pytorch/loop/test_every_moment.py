"""The program may be interrupted wherever a moment starts or ends, and is observed afterwards."""

from __future__ import annotations

import pytest
from interrupted_calls import interruptions

import otel_mlperf as om
from otel_mlperf.pytorch import loop as package
from otel_mlperf.pytorch.loop.batch_wait import BatchWait, IteratorMade
from otel_mlperf.pytorch.loop.moments import LoopMoment
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.step_inference import Loop
from otel_mlperf.pytorch.loop.training_moments import Update
from otel_mlperf.recorder.sections.section_context import CURRENT


class Thing:
    """An iterator of a loader, or an optimizer."""


class Moments:
    """Some of a loop whose steps somebody else says."""

    def __init__(self):
        self.loop, self.thing = Loop(RecordedSteps()), Thing()
        self.loop.hold()
        made = IteratorMade("made", self.loop)
        self.forward, self.update = LoopMoment("forward", self.loop), Update(self.loop)
        self.wait = BatchWait(self.loop, lambda: True, made)
        self.wait.holds([self.forward])

    @property
    def are_shut(self):
        """Whether the next one of each kind is seen as an outermost one."""
        busy = [moment.busy for moment in (self.forward, self.update, self.wait)]
        return not any(busy) and not self.loop.depth and not self.update._optimizers


def forward(moments):
    with moments.forward.of(None):
        pass


def failing(moments):
    try:
        with moments.forward.of(None):
            raise ValueError("the program's")
    except ValueError:
        pass


def update(moments):
    with moments.update.of(moments.thing):
        pass


def update_in_an_update(moments):
    with moments.update.of(moments.thing), moments.update.of(moments.thing):
        pass


def wait(moments):
    with moments.wait.of(moments.thing):
        pass


def end(moments):
    try:
        with moments.wait.of(moments.thing):
            raise StopIteration
    except StopIteration:
        pass


@pytest.mark.parametrize("use", [forward, failing, update, update_in_an_update, wait, end])
def test_interrupted_moment_leaves_nothing_open(train, monkeypatch, use):
    """Ctrl-C arrives, and what is done afterwards is not inside the moment that it came in."""
    monkeypatch.setattr(LoopMoment, "is_off", False)  # whoever was watched before
    train()
    with om.span("around") as around:
        moments = Moments()

        def function():
            use(moments)

        for interruption, raised, arrived in interruptions(package, KeyboardInterrupt, function):
            assert arrived is raised, interruption.where
            assert CURRENT.get() is around, interruption.where
            assert moments.are_shut, interruption.where
            moments = Moments()
