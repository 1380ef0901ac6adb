"""Lightning's Fabric: a loop by hand, with the framework's backward, optimizer and save."""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning
import torch
from marks import section, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUE = {
    "steps": 24,
    "epochs": [12, 12],
    "batches": 24,
    "forwards": 24,
    "backwards": 24,
    "updates": 24,
    "validations": 0,
    "checkpoints": 1,
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    data = TensorDataset(torch.randn(6144, 256), torch.randint(0, 10, (6144,)))
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=512, shuffle=True))
    for epoch in range(2):
        for x, y in steps(loader):
            optimizer.zero_grad()
            with section("forward"):
                output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            with section("backward"):
                fabric.backward(loss)
            with section("optimizer"):
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.6f}")
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        fabric.save(Path(folder, "state.ckpt"), {"model": model, "optimizer": optimizer})


if __name__ == "__main__":
    main()
