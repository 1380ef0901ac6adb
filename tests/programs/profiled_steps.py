"""A small training loop of which some steps are profiled."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import otel_mlperf as om


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--count")
    options = parser.parse_args()
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(options.layers)]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with om.start("profiled"), om.torch_profile(wait=3, warmup=1, active=2, repeat=1):
        for inputs in om.steps(torch.randn(options.steps, 32, 64)):
            with om.span("forward"):
                loss = model(inputs).square().mean()
            with om.span("backward"):
                loss.backward()
            with om.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
