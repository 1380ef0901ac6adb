"""An optimizer that computes the loss several times for each update; after each one it predicts."""

from __future__ import annotations

import torch
from marks import run, section, step
from torch import nn

TRUE = {
    "steps": 6,
    "batches": 0,
    "forwards": 24,
    "backwards": 24,
    "updates": 6,
    "validations": 6,
    "checkpoints": 0,
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.rand(1024, 128)
    y = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        with section("forward"):
            output = model(x)
        loss = criterion(output, y)
        with section("backward"):
            loss.backward()
        return loss

    for number in range(6):
        with step(), section("optimizer"):
            loss = optimizer.step(closure)
        with torch.no_grad(), section("validate"):
            error = criterion(model(x[:512]), y[:512])
        print(f"step {number}: loss {loss.item():.6f}, error {error.item():.6f}")


if __name__ == "__main__":
    with run():
        main()
