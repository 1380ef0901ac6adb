"""Batches are cut out of one long tensor, as nanoGPT does; it evaluates and saves in between.

Two micro-batches make a step, and the next one is cut while the last one computes.
"""

from __future__ import annotations

import torch
from marks import run, section, step
from torch import nn

TRUE = {
    "steps": 11,
    "batches": 0,
    "forwards": 22,
    "backwards": 22,
    "updates": 11,
    "validations": 3,
    "checkpoints": 2,
}
BLOCK, BATCH, MICRO_STEPS = 32, 64, 2


class Model(nn.Module):
    """Guesses each next token from the one before, and says how wrong that was."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 512)
        self.layers = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))

    def forward(self, x, y):
        guesses = self.layers(self.embedding(x))
        return nn.functional.cross_entropy(guesses.flatten(0, 1), y.flatten())


def cut(tokens):
    """Some random stretches, and the same one token later."""
    at = torch.randint(len(tokens) - BLOCK - 1, (BATCH,))
    x = torch.stack([tokens[i : i + BLOCK] for i in at])
    y = torch.stack([tokens[i + 1 : i + 1 + BLOCK] for i in at])
    return x, y


@torch.no_grad()
def estimate_loss(model, splits):
    """The mean loss of each split."""
    losses = {}
    model.eval()
    for name, tokens in splits.items():
        losses[name] = torch.stack([model(*cut(tokens)) for _ in range(8)]).mean().item()
    model.train()
    return losses


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = torch.randint(0, 64, (4096,))
    splits = {"train": tokens[:3072], "val": tokens[3072:]}
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = cut(splits["train"])
    number = 0
    while True:
        if number % 5 == 0:
            with section("validate"):
                losses = estimate_loss(model, splits)
            print(f"step {number}: train {losses['train']:.6f}, val {losses['val']:.6f}")
            if number > 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                with section("checkpoint"):
                    torch.save({**states, "step": number}, "checkpoint.pt")
        with step():
            for _ in range(MICRO_STEPS):
                with section("forward"):
                    loss = model(x, y)
                x, y = cut(splits["train"])
                with section("backward"):
                    (loss / MICRO_STEPS).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with section("optimizer"):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        number += 1
        if number > 10:
            break


if __name__ == "__main__":
    with run():
        main()
