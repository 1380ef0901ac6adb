"""Two networks train against each other, each with an optimizer of its own, as in DCGAN.

The criterion is a module too, which is called beside the networks.
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
    "forwards": 48,
    "backwards": 36,
    "updates": 24,
    "validations": 0,
    "checkpoints": 0,
}
BATCH = 256


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1536, 256))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    maker = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 256))
    judge = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    true, false = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    for epoch in range(2):
        for (real,) in steps(loader):
            judge.zero_grad()
            with section("forward"):
                guess = judge(real)
            judge_loss = criterion(guess, true)
            with section("backward"):
                judge_loss.backward()
            with section("forward"):
                made = maker(torch.randn(BATCH, 32))
            with section("forward"):
                guess = judge(made.detach())
            made_loss = criterion(guess, false)
            with section("backward"):
                made_loss.backward()
            with section("optimizer"):
                judge_optimizer.step()

            maker.zero_grad()
            with section("forward"):
                guess = judge(made)
            maker_loss = criterion(guess, true)
            with section("backward"):
                maker_loss.backward()
            with section("optimizer"):
                maker_optimizer.step()
        print(f"epoch {epoch}: judge {judge_loss.item():.6f}, maker {maker_loss.item():.6f}")


if __name__ == "__main__":
    with run():
        main()
