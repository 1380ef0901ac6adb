"""accelerate: a loop by hand over a loader that is one batch ahead, two batches an update."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext

import accelerate
import torch
from marks import each_call, section, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUE = {
    "steps": 12,
    "epochs": [6, 6],
    "batches": 24,
    "forwards": 24,
    "backwards": 24,
    "updates": 12,
    "validations": 0,
    "checkpoints": 1,  # of three files
}


def main():
    each_call(accelerate.Accelerator, "save_state", "checkpoint")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = TensorDataset(torch.randn(3072, 256), torch.randint(0, 10, (3072,)))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        DataLoader(data, batch_size=256, shuffle=True),
    )
    for epoch in range(2):
        for x, y in steps(loader, accumulate=2):
            with accelerator.accumulate(model):
                with section("forward"):
                    output = model(x)
                loss = nn.functional.cross_entropy(output, y)
                with section("backward"):
                    accelerator.backward(loss)
                with section("optimizer") if accelerator.sync_gradients else nullcontext():
                    optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.6f}")
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)


if __name__ == "__main__":
    main()
