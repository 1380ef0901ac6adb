"""What does a profiler window add to the steps outside it?

    python tests/bench/profile_window.py

Blocks of recorded steps stand before and after a window of three steps, or before and after four
plain steps (A/A), in shuffled order, with the garbage collected before each block; the row that
profiles nothing shows how much two equal blocks differ on this machine. The first window, in which
torch loads its profiler, is shown by itself, and so is what the steps inside a window cost.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tempfile
import time

import torch

import otel_mlperf as om

ROUNDS = 25
STEPS = 200
WINDOW = {"wait": 0, "warmup": 1, "active": 3}


def make_step(width=128, batch=64):
    """One training step of about half a millisecond."""
    layers = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(3)]
    model = torch.nn.Sequential(*(module for pair in layers for module in pair))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(batch, width), torch.randn(batch, width)

    def step():
        with om.span("forward"):
            loss = ((model(x) - y) ** 2).mean()
        with om.span("backward"):
            loss.backward()
        with om.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def block(step, count=STEPS):
    """Seconds of each of so many recorded steps."""
    found = []
    for _ in om.steps(range(count)):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found


def window(step):
    """Seconds of the steps of one window."""
    with om.torch_profile(**WINDOW) as profile:
        inside = block(step, 4)
    assert len(profile.paths) == 1
    return inside[1:]


def nothing(step):
    """As many steps without a window."""
    return block(step, 4)[1:]


def measure(step, between):
    """The median step after something, and inside it, as ratios to the one before it."""
    gc.collect()
    before = block(step)
    gc.collect()
    inside = between(step)
    after = block(step)
    middle = statistics.median(before)
    return statistics.median(after) / middle, statistics.median(inside) / middle


def print_row(name, values):
    low, middle, high = (100 * (q - 1) for q in statistics.quantiles(values, n=4))
    print(f"| {name} | {middle:+.2f} % | {low:+.2f} … {high:+.2f} % |")


def main():
    torch.set_num_threads(1)
    variants = {"nothing (A/A)": nothing, "a window of 3 steps": window}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        om.start("window", dir=folder, console=False),
    ):
        step = make_step()
        block(step)
        start = time.perf_counter()
        window(step)
        print(
            f"first window: {time.perf_counter() - start:.2f} s, with the loading of the profiler"
        )
        found = {name: [] for name in variants}
        for _ in range(ROUNDS):
            for name in random.sample(list(variants), len(variants)):
                found[name].append(measure(step, variants[name]))
        print(f"\n| {STEPS} steps after | against those before | middle half |\n|---|---:|---:|")
        for name, rows in found.items():
            print_row(name, [after for after, _ in rows])
        print("\n| steps inside | against those before | middle half |\n|---|---:|---:|")
        for name, rows in found.items():
            print_row(name, [inside for _, inside in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
