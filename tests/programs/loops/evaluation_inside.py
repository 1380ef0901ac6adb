"""Every fourth turn of the training loop evaluates, with a loader of its own."""

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
    "validations": 3,
    "checkpoints": 0,
}


@torch.no_grad()
def evaluate(model, loader):
    """The share of right guesses."""
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(2304, 256), torch.randint(0, 10, (2304,)))
    training, held_out = torch.utils.data.random_split(data, [1536, 768])
    loader = DataLoader(training, batch_size=256, shuffle=True)
    evaluation_loader = DataLoader(held_out, batch_size=256)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    number = 0
    for _epoch in range(2):
        for x, y in steps(loader):
            optimizer.zero_grad()
            with section("forward"):
                output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            with section("backward"):
                loss.backward()
            with section("optimizer"):
                optimizer.step()
            number += 1
            if number % 4 == 0:
                with section("validate"):
                    right = evaluate(model, evaluation_loader)
                print(f"step {number}: loss {loss.item():.6f}, right {right:.4f}")


if __name__ == "__main__":
    with run():
        main()
