"""The steps of a resumed program continue where it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import otel_mlperf as om
from otel_mlperf.pytorch.loop.non_training_moments import count_updates
from otel_mlperf.recorder.api.span import active


def train_on(model, optimizer, steps):
    optimizer.state.clear()  # what was loaded in a test is no state that could be trained on
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def next_number():
    """Of the step behind those that are recorded, once the last has ended."""
    number = active().stepping.next_number()
    om.stop()
    return number


def test_steps_go_on_behind_those_of_the_checkpoint(watched):
    """As many as the optimizer has made updates; a smaller count changes nothing."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in (120, 40):
        state = optimizer.state_dict()
        state["state"] = {0: {"step": torch.tensor(float(step))}, 1: {"step": torch.tensor(3.0)}}
        optimizer.load_state_dict(state)
    train_on(model, optimizer, steps=2)

    assert next_number() == 122


def test_optimizer_without_a_count_leaves_the_numbers(watched):
    """They go on from where they are, as with an empty state."""
    for kind in (torch.optim.SGD, torch.optim.Adam):
        model = nn.Linear(2, 1)
        optimizer = kind(model.parameters())
        optimizer.load_state_dict(optimizer.state_dict())
        train_on(model, optimizer, steps=2)

    assert next_number() == 4


def test_program_that_says_its_steps_is_believed(watched):
    """Whatever its optimizer says."""
    optimizer = torch.optim.Adam(nn.Linear(2, 1).parameters())
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"step": 99}}})
    with om.step(7):
        pass

    assert next_number() == 8


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_updates_are_counted_by_the_optimizer(kind):
    """Of each that counts them."""
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters())
    train_on(model, optimizer, steps=5)

    assert count_updates(optimizer.state_dict()) == 5


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"state": []},
        {"state": {0: None}},
        {"state": {0: {"step": "many"}}},
        {"state": {0: {"step": torch.ones(2)}}},
        {"state": {0: {"step": torch.ones((), device="meta")}}},
    ],
    ids=str,
)
def test_state_that_does_not_say_it(state):
    """Of an optimizer of another kind, or with its count on a device."""
    assert count_updates(state) == 0


@pytest.mark.filterwarnings("ignore")
def test_optimizer_that_is_prepared_for_a_state_makes_no_step(watched):
    """Distributed checkpoints update nothing once, so that there is a state to be filled."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    state = get_optimizer_state_dict(model, optimizer)
    train_on(model, optimizer, steps=2)
    om.stop()

    assert len(watched.sections("train.step")) == 2
    assert len(watched.sections("optimizer")) == 2
    assert state["state"]
