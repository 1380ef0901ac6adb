"""Trains for some steps with whatever profiler windows the environment or a command asks for."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time

import torch

import otel_mlperf as om


def disturb(how: str) -> None:
    """What happens in the middle of the training, as a test asks for it."""
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    elif how == "fork":
        child = os.fork()
        if child == 0:
            with om.span("in the child"):
                torch.ones(3) + 1
            os._exit(0)
        os.waitpid(child, 0)
    elif how == "full":  # as on a full disk, a file ends in the middle
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--how", default="")
    parser.add_argument("--at", type=int, default=6)
    given = parser.parse_args()
    model = torch.nn.Linear(8, 8)
    data = torch.randn(4, 8)
    end = time.monotonic() + given.seconds
    with om.start("windows"):
        for i in om.steps(range(given.steps)):
            with om.span("forward"):
                loss = model(data).sum()
            with om.span("backward"):
                loss.backward()
            if i == given.at:
                disturb(given.how)
            if time.monotonic() > end or os.path.exists(f"{given.count}.stop"):
                break
            time.sleep(given.pause)


if __name__ == "__main__":
    main()
