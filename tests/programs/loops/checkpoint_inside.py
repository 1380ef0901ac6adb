"""Every fourth turn of the training loop saves model and optimizer."""

from __future__ import annotations

import torch
from marks import run, section, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUE = {
    "steps": 12,
    "batches": 12,
    "forwards": 12,
    "backwards": 12,
    "updates": 12,
    "validations": 0,
    "checkpoints": 3,
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1536, 256), torch.randint(0, 10, (1536,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    number = 0
    for _epoch in range(2):
        for x, y in steps(loader):
            with section("forward"):
                output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            with section("backward"):
                loss.backward()
            with section("optimizer"):
                optimizer.step()
            number += 1
            if number % 4 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                with section("checkpoint"):
                    torch.save(state, f"checkpoint-{number}.pt")
                print(f"step {number}: loss {loss.item():.6f}, saved")


if __name__ == "__main__":
    with run():
        main()
