"""The loop is a generator over an endless stream, which its caller leaves when it has enough."""

from __future__ import annotations

import torch
from marks import run, section, steps
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

TRUE = {
    "steps": 10,
    "batches": 10,
    "forwards": 10,
    "backwards": 10,
    "updates": 10,
    "validations": 0,
    "checkpoints": 0,
}


class Stream(IterableDataset):
    """Samples without an end."""

    def __iter__(self):
        while True:
            yield torch.randn(256), torch.randint(0, 10, ())


def train(model, loader):
    """The loss of each step, for as long as somebody asks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in steps(loader):
        optimizer.zero_grad()
        with section("forward"):
            output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        with section("backward"):
            loss.backward()
        with section("optimizer"):
            optimizer.step()
        yield loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    for number, loss in enumerate(train(model, DataLoader(Stream(), batch_size=256))):
        print(f"step {number}: loss {loss:.6f}")
        if number == 9:
            break


if __name__ == "__main__":
    with run():
        main()
