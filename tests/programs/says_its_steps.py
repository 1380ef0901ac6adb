"""A program that says its steps itself; what is wrong with its DataLoader its argument says."""

import sys
import threading

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

import otel_mlperf as om

FAULT = sys.argv[1]
BATCH, BATCHES, EPOCHS = 4, 8, 4


def rest(seconds):
    """Waits, without a CPU."""
    threading.Event().wait(seconds)


class Samples(Dataset):
    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, at):
        worker = get_worker_info()
        if FAULT == "storage":
            rest(0.01)
        if FAULT == "slow_worker" and worker is not None and worker.id == 1:
            rest(0.05)
        return torch.ones(8)


def collate(samples):
    if FAULT == "collate":
        rest(0.04)
    return default_collate(samples)


workers = {} if FAULT == "storage" else {"num_workers": 2}
if workers:
    workers["persistent_workers"] = FAULT != "worker_startup"
loader = DataLoader(Samples(), batch_size=BATCH, collate_fn=collate, **workers)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with om.start(FAULT):
    for asked in sys.argv[2:]:
        om.integrate(asked)
    for _ in om.epochs(EPOCHS):
        for batch in om.steps(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if FAULT == "none":
                rest(0.02)
