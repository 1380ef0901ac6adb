"""Gradients of four batches make an update; what is left at the end of an epoch makes one too."""

from __future__ import annotations

import torch
from marks import run, section, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUE = {
    "steps": 6,
    "epochs": [3, 3],
    "batches": [4, 4, 2, 4, 4, 2],
    "forwards": [4, 4, 2, 4, 4, 2],
    "backwards": [4, 4, 2, 4, 4, 2],
    "updates": 6,
    "validations": 0,
    "checkpoints": 0,
}
ACCUMULATE = 4


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(2560, 256), torch.randint(0, 10, (2560,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        for i, (x, y) in enumerate(steps(loader, accumulate=ACCUMULATE)):
            with section("forward"):
                output = model(x)
            loss = criterion(output, y) / ACCUMULATE
            with section("backward"):
                loss.backward()
            if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
                with section("optimizer"):
                    optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.6f}")


if __name__ == "__main__":
    with run():
        main()
