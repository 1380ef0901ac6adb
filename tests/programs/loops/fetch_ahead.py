"""The loader is one batch ahead of the training, as in accelerate and what is built on it.

It is exhausted before the last batch trains.
"""

from __future__ import annotations

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


class FetchAhead:
    """Knows of each batch whether it is the last, because it has asked for the next one."""

    def __init__(self, loader):
        self.loader = loader
        self.is_last = False

    def __iter__(self):
        self.is_last = False
        batches = iter(self.loader)
        current = next(batches)
        while not self.is_last:
            try:
                following = next(batches)
            except StopIteration:
                self.is_last = True
            yield current
            current = following


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1536, 256), torch.randint(0, 10, (1536,)))
    loader = FetchAhead(DataLoader(data, batch_size=256, shuffle=True))
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=12)
    for epoch in range(2):
        for x, y in steps(loader):
            with section("forward"):
                output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            with section("backward"):
                loss.backward()
            with section("optimizer"):
                optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if loader.is_last:
                print(f"epoch {epoch}: loss {loss.item():.6f}")


if __name__ == "__main__":
    with run():
        main()
