"""Trains two epochs more each time that it is started, from the checkpoint that it left."""

from __future__ import annotations

import os

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
    "checkpoints": 2,
}
AGAIN = {"first": 12}
CHECKPOINT = "checkpoint.pt"


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1536, 256), torch.randint(0, 10, (1536,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    with run(step=first * len(loader)):
        for epoch in range(first, first + 2):
            for x, y in steps(loader):
                optimizer.zero_grad()
                with section("forward"):
                    output = model(x)
                loss = nn.functional.cross_entropy(output, y)
                with section("backward"):
                    loss.backward()
                with section("optimizer"):
                    optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.6f}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with section("checkpoint"):
                torch.save({**state, "epoch": epoch}, CHECKPOINT)


if __name__ == "__main__":
    main()
