"""Seeded training that writes every loss and the random states that it ends with, bit for bit.

``--style`` says how much of it is recorded; nothing else differs.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om

EPOCHS = 2


def train(model: nn.Module, loader: DataLoader) -> list[bytes]:
    """The bytes of each loss; dropout, shuffling and noise use all three generators."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in om.epochs(EPOCHS):
        for x, y in om.steps(loader):
            noise = float(np.random.normal(scale=0.01)) + random.gauss(0, 0.01)
            with om.span("forward", noise=noise):
                loss = nn.functional.cross_entropy(model(x + noise), y)
            with om.span("backward"):
                loss.backward()
            with om.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            om.log(loss=loss, noise=noise)
            losses.append(loss.detach().numpy().tobytes())
    return losses


def recorded(style: str) -> contextlib.AbstractContextManager[object]:
    """The run, or nothing."""
    if style == "plain":
        return contextlib.nullcontext()
    if style == "windows":
        schedule = "wait=3,warmup=1,active=2,repeat=4,record_shapes=on,profile_memory=on"
        return om.start("seeded", profile=schedule)
    return om.start("seeded", agent=style)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--style", choices=("plain", "process", "thread", "windows"), required=True)
    given = parser.parse_args()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    with recorded(given.style):
        data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
        losses = train(model, DataLoader(data, 16, shuffle=True))
        weights = [value.numpy().tobytes() for value in model.state_dict().values()]
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())
    given.to.write_bytes(pickle.dumps((losses, weights, states)))


if __name__ == "__main__":
    main()
