"""Learning modules and updating optimizers are known, for as long as they exist."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from interrupted_calls import interruptions
from torch import nn

from otel_mlperf.pytorch import loop
from otel_mlperf.pytorch.loop.inferred_step import LoopSource, UpdateRound
from otel_mlperf.pytorch.loop.participants import DataSets, Learners

if TYPE_CHECKING:
    from collections.abc import Callable


class Wrapper(nn.Module):
    """A module around another, as DistributedDataParallel is."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def make_model():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


def model_count(learners):
    return len(learners._known)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_evaluation_of_what_a_wrapper_holds():
    """Who trains the wrapper and evaluates the model inside evaluates it."""
    learners, model = Learners(), make_model()
    wrapper = Wrapper(model)
    learners.add(wrapper)

    assert not learners.are_evaluated
    model.eval()
    assert learners.are_evaluated
    assert model in learners


def test_frozen_part_does_not_make_an_evaluation():
    """A layer in evaluation mode is part of many trainings."""
    learners, model = Learners(), make_model()
    model[1].eval()
    learners.add(model)

    assert not learners.are_evaluated


def test_model_that_learns_in_evaluation_mode_is_never_evaluated():
    """Once it has, its mode says nothing."""
    learners, model = Learners(), make_model().eval()

    assert not learners.learns(model)
    learners.add_evaluating(model)
    assert learners.learns(model)
    assert not learners.are_evaluated


def test_only_what_has_parameters_is_a_model():
    """A metric or a transformation is no model, and what is frozen does not learn."""
    learners, frozen = Learners(), make_model().requires_grad_(False)

    assert not learners.tries(nn.Softmax(dim=0))
    assert learners.tries(frozen)
    assert not learners.learns(frozen)
    assert learners.learns(make_model())


def test_nothing_is_kept_alive():
    """Models and optimizers go when the program lets go of them."""
    learners, updates, model = Learners(), UpdateRound(), make_model()
    learners.add(model)
    updates.made(optimizer_of(model))
    del model

    assert model_count(learners) == 0
    updates.begin()
    updates.add(object())
    assert updates.is_whole


def test_data_set_that_is_gone_says_nothing_of_another():
    """One that takes its place in memory has not been trained on."""
    data, first = DataSets(), make_model()
    number = data.number_of(first)
    data.train(number)
    assert data
    assert number in data.trained
    del first

    assert not data
    assert len(data) == 0
    data.train(number)
    assert number not in data.trained


def test_round_waits_for_an_optimizer_that_was_made():
    """Two optimizers take turns; each round has one update of each."""
    updates, model = UpdateRound(), make_model()
    one, two = optimizer_of(model), optimizer_of(model)
    updates.made(one)
    updates.made(two)
    for _ in range(2):
        updates.begin()
        updates.add(one)
        assert not updates.is_whole
        updates.add(two)
        assert updates.is_whole


def test_round_of_another_loop_does_not_wait_for_this_one():
    """Optimizers of a loop that is over are not waited for."""
    updates, model = UpdateRound(), make_model()
    one, two = optimizer_of(model), optimizer_of(model)
    updates.begin()
    updates.add(one)
    updates.begin()
    updates.add(two)

    assert updates.is_whole


class Data:
    """What a loader iterates over."""


def forget_module() -> None:
    learners = Learners()
    learners.add(make_model())


def forget_data() -> None:
    data = DataSets()
    data.number_of(Data())
    assert not len(data)


def forget_optimizer() -> None:
    updates = UpdateRound()
    updates.made(Data())


def leave_loop() -> None:
    left: list[None] = []
    source = LoopSource(lambda: left.append(None))
    source.follow(Data())
    assert left


@pytest.fixture
def _no_callback_of_dynamo(monkeypatch):
    """It has one for each module that goes, after ours: what is raised there is dropped."""
    if guard := sys.modules.get("torch._dynamo.mutation_guard"):
        monkeypatch.setattr(guard, "GenerationTracker", SimpleNamespace(tag=lambda _: None))


@pytest.mark.fault("F95")
@pytest.mark.usefixtures("_no_callback_of_dynamo")
@pytest.mark.parametrize("use", [forget_module, forget_data, forget_optimizer, leave_loop])
def test_interrupt_as_something_is_forgotten(use: Callable[[], None]) -> None:
    """What a weak reference's callback is interrupted by arrives, and all is forgotten."""
    use()
    for moment, raised, arrived in interruptions(loop, KeyboardInterrupt, use):
        assert arrived is raised, moment.where
