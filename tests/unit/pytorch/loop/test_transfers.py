"""A batch that a framework moves to the device is a section, and one that stays is not."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tiers import import_framework
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om

DataLoaderShard = import_framework("accelerate.data_loader").DataLoaderShard
send_to_device = import_framework("accelerate.utils").send_to_device
move_data_to_device = import_framework("lightning.fabric.utilities").move_data_to_device
BatchEncoding = import_framework("transformers").BatchEncoding

pytestmark = pytest.mark.frameworks

# The device of shapes without numbers: what moves there has left the host, on any machine.
DEVICES = ["meta", torch.device("meta")]
MOVES = [send_to_device, move_data_to_device]

each_move = pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)


def batch():
    return {"x": torch.ones(2), "more": [torch.ones(3), (torch.ones(4),)], "name": "one"}


@each_move
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_batch_that_moves_is_one_section(watched, move, device):
    """However many tensors it has, and however they are held."""
    moved = move(batch(), device)

    assert moved["more"][1][0].device.type == "meta"
    assert len(watched.sections("transfer")) == 1


@each_move
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=str)
def test_batch_that_stays_is_none(watched, move, device):
    """On the host, or on the device where it is already; or nothing in it can move."""
    move(batch(), device)
    move({"x": torch.ones(2, device="meta")}, "meta")
    move({"name": "one", "none": []}, "meta")

    assert watched.sections("transfer") == []


def test_batches_of_libraries_are_looked_into(watched):
    """What is a mapping with a method of its own, and what only has the method."""
    send_to_device(BatchEncoding({"ids": torch.ones(2)}), "meta")
    send_to_device(BatchEncoding({"ids": torch.ones(2)}), "cpu")

    class Graph:
        def to(self, device, **_):
            return device

    assert move_data_to_device(Graph(), "meta") == torch.device("meta")
    assert len(watched.sections("transfer")) == 2


def test_transfer_is_part_of_its_step(watched):
    """Of a loader that is asked one batch ahead, too: steps and waits stay what they are."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inner = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4)
    loader = DataLoaderShard(inner.dataset, device=torch.device("meta"), batch_size=4)
    for _ in range(2):
        for (x,) in loader:
            assert x.device.type == "meta"
            model(torch.ones(4, 4)).sum().backward()
            optimizer.step()
    om.stop()
    sections = watched.sections()
    steps = [section for section in sections if section.name == "train.step"]
    parts = Counter(s.name for s in sections if s.root in {step.span for step in steps})

    assert len(steps) == 6
    assert [step.payload.get("n") for step in steps] == [4] * 6
    del parts["train.step"], parts["gc.collect"]
    # The first batch of a pass is moved before the second is asked for: those are two waits.
    assert parts == {"transfer": 6, "data.load": 8, "forward": 6, "backward": 6, "optimizer": 6}


def test_move_inside_a_forward_is_part_of_it(watched):
    """As of a model that is larger than its device."""

    class Moves(nn.Module):
        def forward(self, x):
            return send_to_device(x, "meta")

    Moves()(torch.ones(2))

    assert watched.sections("transfer") == []
    assert len(watched.sections("forward")) == 1
