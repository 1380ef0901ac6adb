"""The start and end of each moment of an unmodified loop are right, and so is their time."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om
from otel_mlperf.integrations.torch_loop import TorchLoop
from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loop.moments import LoopMoment
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.step_inference import Loop
from otel_mlperf.recorder.sections.section_context import CURRENT


@pytest.fixture
def watched(train):
    """Starts a run in which torch's loops are watched, until it is stopped."""
    integration = TorchLoop()

    def begin(**settings):
        trained = train(**settings)
        integration.switch_on(torch)
        return trained

    yield begin
    integration.switch_off()


def run_loop(steps):
    """An untouched loop, and its model."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for (x,) in DataLoader(TensorDataset(torch.randn(steps * 4, 4)), batch_size=4):
        model(x).sum().backward()
        optimizer.step()
    return model


def recorded(trained, *names):
    """Its sections of those names, in the order in which they began."""
    om.stop()
    return sorted(trained.sections(*names), key=lambda section: section.start)


def test_time_on_the_way_into_a_moment_is_its_own(watched):
    """A step begins where the one before ends, and its wait with it: what we do is inside both."""
    trained = watched()
    run_loop(4)
    steps, waits = [], []
    for section in recorded(trained, "train.step", "data.load"):
        (steps if section.name == "train.step" else waits).append(section)

    assert [step.start for step in steps] == [wait.start for wait in waits]
    assert [one.end for one in steps[:3]] == [after.start for after in waits[1:]]


def ahead(loader, noted, meanwhile=lambda: None):
    """One batch ahead; notes when it began, and when it had its loader's iterator."""
    noted.append(time.monotonic_ns())
    batches = iter(loader)
    meanwhile()
    noted.append(time.monotonic_ns())
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def train_on(batches):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for (x,) in batches:
        model(x).sum().backward()
        optimizer.step()


def batches_of_four():
    return DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)


def test_wait_for_a_generator_begins_where_it_makes_the_iterator(watched):
    """Its caller waits for that, too; the step begins with it."""
    trained, noted = watched(), []
    train_on(ahead(batches_of_four(), noted))
    step, wait = recorded(trained, "train.step", "data.load")[:2]

    assert noted[0] < wait.start < noted[1]
    assert step.start == wait.start


def test_wait_for_a_generator_begins_where_it_asks_once_it_has_done_something_else(watched):
    """What was recorded since the iterator was made is not inside the wait."""

    def prepare():
        with om.span("prepare"):
            pass

    trained, noted = watched(), []
    train_on(ahead(batches_of_four(), noted, prepare))
    wait = recorded(trained, "data.load")[0]

    assert wait.start > noted[1]


def test_iterator_that_a_loop_makes_itself_is_before_its_first_step(watched):
    """As it is with ``om.steps()``."""
    trained = watched()
    batches = iter(batches_of_four())
    made_ns = time.monotonic_ns()
    train_on(batches)
    step, wait = recorded(trained, "train.step", "data.load")[:2]

    assert made_ns < step.start == wait.start


def test_what_is_recorded_on_the_way_in_stays_beside_the_moment(watched):
    """Self times add up: sections in a step that are not in each other do not overlap."""

    @om.on_step_begin
    def note(_phase, _number):
        with om.span("note"):
            pass

    try:
        trained = watched()
        run_loop(3)
        parts = recorded(trained, "note", "data.load", "forward", "backward", "optimizer")
    finally:
        om.remove_callback(note)

    assert [part.name for part in parts[:3]] == ["note", "data.load", "forward"]
    assert all(one.end <= after.start for one, after in pairwise(parts))


def test_opening_a_window_of_the_profiler_is_in_no_step(watched):
    """Nor is closing it: the steps around do not follow one another at once."""
    trained = watched(profile="wait=1,warmup=0,active=1,repeat=1")
    run_loop(4)
    steps = recorded(trained, "train.step")

    assert steps[1].start > steps[0].end
    assert steps[2].start > steps[1].end


def evaluate(model, meanwhile=lambda: None):
    """As people write it; when it had switched the model, and when it had its loader's iterator."""
    model.eval()
    switched_ns = time.monotonic_ns()
    meanwhile()
    batches = iter(DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4))
    ready_ns = time.monotonic_ns()
    with torch.no_grad():
        for (x,) in batches:
            model(x)
    model.train()
    return switched_ns, ready_ns


def test_validation_begins_where_its_model_is_switched(watched):
    """What its loader takes to start is part of it, and of no step."""
    trained = watched()
    model = run_loop(2)
    began_ns = time.monotonic_ns()
    switched_ns, _ = evaluate(model)
    validation, *steps = recorded(trained, "validate", "train.step")[::-1]

    assert began_ns < validation.start < switched_ns
    assert all(step.end <= validation.start for step in steps)


def test_validation_begins_with_its_first_batch_where_something_else_comes_before(watched):
    """A section of the program's after the switch is no part of it."""
    trained = watched()
    model = run_loop(2)

    def prepare():
        with om.span("prepare"):
            pass

    _, ready_ns = evaluate(model, prepare)
    (validation,) = recorded(trained, "validate")

    assert validation.start > ready_ns


class Stopped(LoopMoment):
    """A moment that is interrupted once its section is open."""

    def _begins(self, subject):
        super()._begins(subject)
        raise KeyboardInterrupt


def test_moment_that_is_interrupted_as_it_begins_leaves_no_section_open(watched):
    """What comes after Ctrl-C is not inside it, and the next moment of its kind is seen."""
    trained = watched()
    around = CURRENT.get()
    moment = Stopped("forward", Loop(RecordedSteps()))
    with pytest.raises(KeyboardInterrupt), moment.of():
        pass

    assert CURRENT.get() is around
    assert not moment.busy
    assert [section.name for section in recorded(trained, "forward")] == ["forward"]


def test_time_that_watching_takes_is_counted(watched):
    """Beside what its sections cost anyway: more in each loop, less than that took."""
    trained, counted_ns = watched(), [0]
    for _ in range(3):
        began_ns = time.monotonic_ns()
        run_loop(20)
        lasted_ns = time.monotonic_ns() - began_ns
        counted_ns.append(trained.word(Word.WATCH_TIME))
        assert 0 < counted_ns[-1] - counted_ns[-2] < lasted_ns
