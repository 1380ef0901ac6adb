"""Every update is given a closure that runs forward and backward, as Lightning does by itself."""

from __future__ import annotations

from functools import partial

import torch
from marks import run, section, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUE = {
    "steps": 12,
    "epochs": [6, 6],
    "batches": 12,
    "forwards": 12,
    "backwards": 12,
    "updates": 12,
    "validations": 0,
    "checkpoints": 0,
}


def compute(model, optimizer, x, y):
    """Forward and backward of one batch."""
    with section("forward"):
        output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    optimizer.zero_grad()
    with section("backward"):
        loss.backward()
    return loss


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1536, 256), torch.randint(0, 10, (1536,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in steps(loader):
            with section("optimizer"):
                loss = optimizer.step(partial(compute, model, optimizer, x, y))
        print(f"epoch {epoch}: loss {loss.item():.6f}")


if __name__ == "__main__":
    with run():
        main()
