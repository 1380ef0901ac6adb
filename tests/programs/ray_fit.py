"""Trains by two workers that a library starts, which hands them the function below by value."""

from __future__ import annotations

import os

import torch
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train(settings):
    fails = os.environ["LIKE_RAY_RANK"] == os.environ.get("FAILS")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), settings["lr"])
    for x in torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if fails:
            raise ValueError("no luck")
    print("trained", sorted(name for name in os.environ if name.startswith("OTEL")))


if __name__ == "__main__":
    path = os.environ.get("WORKERS_PATH")
    trainer = DataParallelTrainer(train, 2, {"PYTHONPATH": path} if path else {})
    print(trainer.fit(), trainer.train_loop_per_worker is train)
