"""Trains two steps under PyTorch's profiler: annotations, threads, a backward pass elsewhere.

Writes the trace, and beside it when and on which thread its own parts ran by the system's clock:
what a recorder of sections would have seen.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

parts = []


@contextmanager
def part(name):
    """A part of the program, noted as a section is: the clock is read last and first."""
    start = time.time_ns()
    try:
        yield
    finally:
        parts.append((name, start, time.time_ns(), threading.get_native_id()))


def in_thread(call, *args):
    """Runs a call on a thread of its own and waits for it."""
    thread = threading.Thread(target=call, args=args)
    thread.start()
    thread.join()


def beside():
    """What a loader's thread may do."""
    with record_function("beside"), part("fetch"):
        for _ in range(3):
            with record_function("inner"):
                torch.mm(torch.ones(32, 32), torch.ones(32, 32))


def step(model, optimizer, compiled):
    """One training step; the backward pass runs on another thread, as it does for a GPU."""
    with part("train.step"):
        with part("forward"), record_function("layers"):
            loss = model(torch.ones(16, 64)).sum()
        with part("backward"):
            in_thread(loss.backward)
        with part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with record_function("compiled"), part("compiled"):
            compiled(torch.ones(100))
        in_thread(beside)


def main():
    """Warms up, then profiles two steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--stacks", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = torch.compile(lambda x: torch.sin(x) + 2 * torch.cos(x), backend="aot_eager")
    step(model, optimizer, compiled)
    parts.clear()
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        with_stack=options.stacks,
        experimental_config=everywhere,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2),
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(options.trace)),
    ) as profiler:
        for _ in range(3):
            step(model, optimizer, compiled)
            profiler.step()
    options.trace.with_suffix(".parts").write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
