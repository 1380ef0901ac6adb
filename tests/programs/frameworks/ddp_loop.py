"""DistributedDataParallel over a group of one: three batches without synchronisation, one with."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from marks import section
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUE = {
    "steps": 12,
    "epochs": [6, 6],
    "batches": 48,
    "forwards": 48,
    "backwards": 48,
    "updates": 12,
    "validations": 0,
    "checkpoints": 0,
}
UNMARKED = ["batches"]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    data = TensorDataset(torch.randn(768, 256), torch.randint(0, 10, (768,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader, start=1):
            with nullcontext() if i % 4 == 0 else model.no_sync():
                with section("forward"):
                    output = model(x)
                loss = nn.functional.cross_entropy(output, y)
                with section("backward"):
                    loss.backward()
            if i % 4 == 0:
                with section("optimizer"):
                    optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.6f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
