"""FSDP2 (``fully_shard``) over a group of one, with a checkpoint by torch's own way."""

from __future__ import annotations

import tempfile

import torch
from marks import section
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard

TRUE = {
    "steps": 12,
    "batches": 0,
    "forwards": 12,
    "backwards": 12,
    "updates": 12,
    "validations": 0,
    "checkpoints": 1,
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for n in range(12):
        x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
        with section("forward"):
            output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        with section("backward"):
            loss.backward()
        with section("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        if n % 6 == 5:
            print(f"step {n}: loss {loss.item():.6f}")
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
