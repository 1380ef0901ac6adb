"""The collectives that an unmodified loop calls are sections of its steps."""

from __future__ import annotations

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(autouse=True)
def group(tmp_path):
    """A process group of this process alone."""
    meet = f"file://{tmp_path}/meet"
    distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def train(in_step, after_step=lambda: None):
    """An untouched loop of four steps that asks for something in each."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), 2):
        model(x).sum().backward()
        in_step(model)
        optimizer.step()
        after_step()


def of_steps(watched, name):
    """How many sections of that name each step has."""
    steps = watched.sections("train.step")
    sections = watched.sections(name)
    return [sum(one.root == step.span for one in sections) for step in steps]


def test_each_collective_of_a_step_is_a_section(watched):
    """One for each parameter, between the backward pass and the optimizer."""
    train(lambda model: [distributed.all_reduce(one.grad) for one in model.parameters()])

    assert of_steps(watched, "all_reduce") == [2, 2, 2, 2]


def test_what_ranks_agree_on_after_an_update_is_in_the_step(watched):
    """A loss for the log, and a barrier."""
    train(
        lambda model: None, lambda: (distributed.all_reduce(torch.ones(1)), distributed.barrier())
    )

    assert of_steps(watched, "all_reduce") == [1, 1, 1, 1]
    assert of_steps(watched, "barrier") == [1, 1, 1, 1]


def test_a_collective_before_and_after_the_loop_is_none(watched):
    """Ranks wait for each other to begin: that is no step's."""
    distributed.barrier()
    train(lambda model: None)

    assert watched.sections("barrier") == []
    assert len(watched.sections("train.step")) == 4


def test_a_collective_of_another_one_is_part_of_it(watched):
    """Objects are gathered by their lengths first."""
    train(lambda model: distributed.all_gather_object([None], {"loss": 1}))

    assert of_steps(watched, "all_gather") == [1, 1, 1, 1]
