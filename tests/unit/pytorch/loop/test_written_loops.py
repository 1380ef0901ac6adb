"""Loops that request batches in other ways, or train by other recipes, are observed correctly."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om

STEP = {"data.load": 1, "forward": 1, "backward": 1, "optimizer": 1}
NO_WAIT = {"forward": 1, "backward": 1, "optimizer": 1}
TWO_BATCHES = {"data.load": 2, "forward": 2, "backward": 1, "optimizer": 1}


class Learner:
    """A model with its optimizer."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def learn(self, *batches):
        self.optimizer.zero_grad()
        sum(self.model(x).sum() for (x,) in batches).backward()
        self.optimizer.step()

    def learn_from(self, teacher, x):
        with torch.no_grad():
            said = teacher(x)
        self.optimizer.zero_grad()
        (self.model(x) - said).square().sum().backward()
        self.optimizer.step()


def batches(number):
    return DataLoader(TensorDataset(torch.randn(number * 4, 4)), batch_size=4)


def ask_until_it_ends(learner):
    for _ in range(2):
        iterator = iter(batches(3))
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            learner.learn(batch)


def ask_anew_when_it_ends(learner):
    loader = batches(3)
    iterator = iter(loader)
    for _ in range(5):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            batch = next(iterator)
        learner.learn(batch)


def take_some(learner):
    loader = batches(5)
    for _ in range(2):
        for batch in islice(loader, 2):
            learner.learn(batch)


def count_in_a_generator(learner):
    def shown(turns):
        yield from turns

    for _, batch in shown(enumerate(batches(3))):
        learner.learn(batch)


def go_round_for_ever(learner):
    def for_ever(loader):
        while True:
            yield from loader

    for batch in islice(for_ever(batches(2)), 5):
        learner.learn(batch)


def zip_two(learner):
    for _ in range(2):
        for pair in zip(batches(2), batches(3), strict=False):
            learner.learn(*pair)


def zip_with_kept_ones(learner):
    for pair in zip(batches(3), cycle(batches(2)), strict=False):
        learner.learn(*pair)


def ask_another_inside(learner):
    others = iter(batches(4))
    for _ in range(2):
        for batch in batches(2):
            learner.learn(batch, next(others))


def stop_early_and_go_on_with_another(learner):
    for number, batch in enumerate(batches(5)):
        learner.learn(batch)
        if number == 1:
            break
    for batch in batches(2):
        learner.learn(batch)


LOOPS = {
    ask_until_it_ends: [STEP] * 6,
    ask_anew_when_it_ends: [STEP] * 5,
    take_some: [STEP] * 4,
    count_in_a_generator: [STEP] * 3,
    go_round_for_ever: [STEP] * 5,
    zip_two: [TWO_BATCHES] * 4,
    zip_with_kept_ones: [TWO_BATCHES] * 2 + [{**TWO_BATCHES, "data.load": 1}],
    ask_another_inside: [TWO_BATCHES] * 4,
    stop_early_and_go_on_with_another: [STEP] * 4,
}


@pytest.fixture
def learner(watched):
    """A learner whose training is watched."""
    del watched
    return Learner()


def recorded(watched):
    """Calls of each part in each step, those outside, and validations; the run is over."""
    om.stop()
    sections = watched.sections()
    roots = [section.span for section in sections if section.name == "train.step"]
    names = {*STEP, "validate"}
    counts = [Counter(s.name for s in sections if s.root == root and s.name in names)
              for root in roots]  # fmt: skip
    outside = Counter(s.name for s in sections if s.root not in roots and s.name in names)
    return [dict(count) for count in counts], dict(outside)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_each_turn_is_a_step_with_its_batches(watched, learner, loop):
    """However the loop asks for them; nothing is outside."""
    loop(learner)

    assert recorded(watched) == (LOOPS[loop], {})


def test_average_of_the_model_is_validated_outside_steps(watched, learner):
    """Its update is no forward, and its validation no part of a step."""
    average = AveragedModel(learner.model)
    for _ in range(2):
        for batch in batches(3):
            learner.learn(batch)
            average.update_parameters(learner.model)
        average.eval()
        with torch.no_grad():
            for (x,) in batches(2):
                average(x)

    assert recorded(watched) == ([STEP] * 6, {"data.load": 4, "forward": 4, "validate": 2})


def test_teacher_beside_a_loader_is_in_each_step(watched, learner):
    """Between the batch and the forward that learns from it."""
    teacher = Learner().model.eval()
    for (x,) in batches(4):
        learner.learn_from(teacher, x)

    assert recorded(watched) == ([{**STEP, "forward": 2}] * 4, {})


def test_teacher_without_a_loader_is_no_validation(watched, learner):
    """It begins each step, from the third on: two turns have to show that it is one."""
    teacher = Learner().model.eval()
    for _ in range(5):
        learner.learn_from(teacher, torch.randn(4, 4))

    taught = {**NO_WAIT, "forward": 2}
    assert recorded(watched) == ([NO_WAIT] * 2 + [taught] * 3, {"forward": 2})
