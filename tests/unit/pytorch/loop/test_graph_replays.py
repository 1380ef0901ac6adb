"""Steps that a CUDA graph replays are detected, without any call of torch's inside."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import otel_mlperf as om
from otel_mlperf.pytorch.loop import loop_hooks


class _OnDevice:
    """Stands for what CUDA does: a graph computes again what was called while it was captured."""

    def capture_begin(self):
        self.replays = 0

    def capture_end(self):
        pass

    def replay(self):
        self.replays += 1


class Graph(_OnDevice):
    """Its methods call those of C++, as torch's do."""

    def capture_begin(self):
        super().capture_begin()

    def capture_end(self):
        super().capture_end()

    def replay(self):
        super().replay()


@pytest.fixture
def seen(watched):
    """A run in which graphs of that class are seen."""
    loop_hooks.weave_graphs(Graph)
    return watched


class Learner:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def learn(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 4)).sum().backward()
        self.optimizer.step()


def captured(work):
    graph = Graph()
    graph.capture_begin()
    work()
    graph.capture_end()
    return graph


NAMES = {"forward", "backward", "optimizer", "graph.replay"}


def steps(run):
    """The sections of each step."""
    om.stop()
    rows = run.sections()
    roots = [row.span for row in rows if row.name == "train.step"]
    return [
        dict(Counter(row.name for row in rows if row.root == root and row.name in NAMES))
        for root in sorted(roots)
    ]


def test_each_replay_of_a_whole_step_is_a_step(seen):
    """Two were computed before, to warm up; that it was captured is none."""
    learner = Learner()
    for _ in range(2):
        learner.learn()
    graph = captured(learner.learn)
    for _ in range(5):
        graph.replay()

    eager = {"forward": 1, "backward": 1, "optimizer": 1}
    assert steps(seen) == [eager] * 2 + [{"graph.replay": 1}] * 5
    assert graph.replays == 5


def test_a_graph_without_an_update_makes_no_step(seen):
    """One that only computes forward, to evaluate."""
    learner = Learner()
    learner.learn()
    graph = captured(lambda: learner.model(torch.ones(8, 4)))
    for _ in range(5):
        graph.replay()

    assert [of.get("graph.replay") for of in steps(seen)] == [None]


def test_a_replay_inside_a_forward_is_part_of_that(seen):
    """As graphed callables have it, and what torch.compile captures."""
    learner, graph = Learner(), None

    class Replaying(nn.Module):
        def forward(self, x):
            graph.replay()
            return x.sum()

    learner.learn()
    graph = captured(learner.learn)
    learner.model = nn.Sequential(learner.model, Replaying())
    learner.learn()

    assert [of.get("graph.replay") for of in steps(seen)] == [None, None]
    assert graph.replays == 1
