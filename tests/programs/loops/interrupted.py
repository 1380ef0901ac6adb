"""Is stopped by Ctrl-C in the middle of its eighth step; started again, goes on after its fifth."""

from __future__ import annotations

import os

import torch
from marks import run, section, steps
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

TRUE = {
    "steps": 7,
    "batches": 8,
    "forwards": 8,
    "backwards": 8,
    "updates": 7,
    "validations": 0,
    "checkpoints": 1,
    "unfinished": {"batches": 1, "forwards": 1, "backwards": 1},
}
AGAIN = {"batches": 7, "forwards": 7, "backwards": 7, "unfinished": {}, "first": 5}
CHECKPOINT = "checkpoint.pt"


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(3072, 256), torch.randint(0, 10, (3072,)))
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    loader = DataLoader(Subset(data, range(first * 256, len(data))), batch_size=256)
    with run(step=first):
        for number, (x, y) in enumerate(steps(loader), start=first + 1):
            optimizer.zero_grad()
            with section("forward"):
                output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            with section("backward"):
                loss.backward()
            if number == 8 and not first:
                raise KeyboardInterrupt  # as Ctrl-C does
            with section("optimizer"):
                optimizer.step()
            print(f"step {number}: loss {loss.item():.6f}", flush=True)
            if number % 5 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                with section("checkpoint"):
                    torch.save({**state, "step": number}, CHECKPOINT)


if __name__ == "__main__":
    main()
