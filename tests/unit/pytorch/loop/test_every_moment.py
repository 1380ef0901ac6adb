"""The program may be interrupted wherever a moment starts or ends, and is observed afterwards."""

from __future__ import annotations

from contextlib import suppress

import pytest
from interrupted_calls import interruptions

import otel_mlperf as om
from otel_mlperf.pytorch import loop as package
from otel_mlperf.pytorch.loop.batch_wait import BatchWait, IteratorMade
from otel_mlperf.pytorch.loop.loop_finder import Loop
from otel_mlperf.pytorch.loop.moments import LoopMoment
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.training_moments import Update
from otel_mlperf.pytorch.loop.weave import leave_interrupted
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


def run(gate, subject, body=lambda: None):
    """Run a body as that of a function that is woven into the gate."""
    try:
        with gate.of(subject):
            body()
    except BaseException:
        leave_interrupted()
        raise


def fail():
    raise ValueError("the program's")


def forward(moments):
    run(moments.forward, None)


def failing(moments):
    with suppress(ValueError):
        run(moments.forward, None, fail)


def update(moments):
    run(moments.update, moments.thing)


def update_in_an_update(moments):
    run(moments.update, moments.thing, lambda: run(moments.update, moments.thing))


def wait(moments):
    run(moments.wait, moments.thing)


def end(moments):
    with suppress(StopIteration):
        run(moments.wait, moments.thing, iter(()).__next__)


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
