"""Parameters are updated by hand, without an optimizer, as in a first tutorial.

Nothing that torch shows says that a step is over.
"""

from __future__ import annotations

import torch
from marks import run, section, step
from torch import nn

TRUE = {
    "steps": 12,
    "batches": 0,
    "forwards": 12,
    "backwards": 12,
    "updates": 12,
    "validations": 2,
    "checkpoints": 0,
}
UNSEEN = ["steps", "updates"]
BATCH, RATE = 256, 0.1


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(1536, 256), torch.randint(0, 10, (1536,))
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    for epoch in range(2):
        for at in range(0, len(x), BATCH):
            with step():
                with section("forward"):
                    output = model(x[at : at + BATCH])
                loss = nn.functional.cross_entropy(output, y[at : at + BATCH])
                with section("backward"):
                    loss.backward()
                with torch.no_grad(), section("optimizer"):
                    for parameter in model.parameters():
                        parameter -= RATE * parameter.grad  # noqa: PLW2901 - in place
                    model.zero_grad()
        with torch.no_grad(), section("validate"):
            right = (model(x).argmax(1) == y).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.6f}, right {right.item():.4f}")


if __name__ == "__main__":
    with run():
        main()
