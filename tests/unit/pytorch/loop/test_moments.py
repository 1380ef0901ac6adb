"""When does a moment of an untouched loop begin and end, and what of it is whose time?"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om
from otel_mlperf.integrations.torch_loop import TorchLoop


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
    """An untouched loop."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for (x,) in DataLoader(TensorDataset(torch.randn(steps * 4, 4)), batch_size=4):
        model(x).sum().backward()
        optimizer.step()


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
