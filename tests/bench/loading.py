"""What does it cost a batch that the inside of its DataLoader is watched?

A loader of tensors that are there already, so that nothing is hidden by work: one row for batches
that are made in the process itself, one for two workers. ``A/A`` is the loader that nobody watches,
measured a second time. Shuffled blocks, a collection of garbage before each.

A second table has the CPU time in which the loop's own thread asks for a batch in ``om.steps``,
where each step computes: the model has filled the caches meanwhile, so that the code for a batch is
cold. Which steps are watched is drawn for each.

python tests/bench/loading.py [--blocks 15]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loading import loader_hooks
from otel_mlperf.recorder.core import recording

BLOCKS = 15
BATCH, BATCHES = 8, 400
STEPS, WIDTH = 200, 1024
WORKERS = (0, 2)
ROWS = {"not watched": False, "not watched, A/A": False, "watched": True}
clock = time.perf_counter_ns


def batch_ns(loader):
    """What one batch of a whole turn through the loader takes, without the start of its workers."""
    batches = iter(loader)
    next(batches)
    began = clock()
    given = sum(1 for _ in batches)
    return (clock() - began) / given


def loader_of(workers, batches=BATCHES, width=4):
    data = TensorDataset(torch.zeros(BATCH * batches, width))
    return DataLoader(data, batch_size=BATCH, num_workers=workers)


class Training:
    """Steps of a model that is larger than caches are."""

    def __init__(self):
        wide = torch.nn.Linear(WIDTH, WIDTH)
        self._model = torch.nn.Sequential(wide, torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def steps_ns(self, loader, order):
        """What the loop's thread computes to get each batch, by row."""
        found = {row: [] for row in ROWS}
        loader_hooks.install()
        row, asked_ns = "", 0
        for (batch,) in om.steps(loader):
            got_ns = time.thread_time_ns()
            if row:
                found[row].append(got_ns - asked_ns)
            self._optimizer.zero_grad()
            self._model(batch).square().mean().backward()
            self._optimizer.step()
            row = order.choice(list(ROWS))
            loader_hooks.install() if ROWS[row] else loader_hooks.switch_off()
            asked_ns = time.thread_time_ns()
        return found


def measure(blocks):
    """Median nanoseconds of a batch, and of a step, by number of workers and row."""
    found = {(workers, row): [] for workers in WORKERS for row in ROWS}
    steps = {place: [] for place in found}
    torch.set_num_threads(1)
    training = Training()
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = om.start("bench", dir=folder, agent="none", console=False)
        recorder = recording.active()
        loader_hooks.install()
        for _ in range(blocks):
            for workers, row in order.sample(list(found), len(found)):
                # Nobody reads the journal here: what a block wrote is given free.
                recorder.journal.words[Word.TAIL] = recorder.journal.lease.end
                loader_hooks.install() if ROWS[row] else loader_hooks.switch_off()
                gc.collect()
                found[workers, row].append(batch_ns(loader_of(workers)))
            for workers in WORKERS:
                recorder.journal.words[Word.TAIL] = recorder.journal.lease.end
                gc.collect()
                loader = loader_of(workers, STEPS, WIDTH)
                for row, all_ns in training.steps_ns(loader, order).items():
                    steps[workers, row] += all_ns
        lost = recorder.journal.words[Word.LOST_RING_FULL]
        os.unlink(recorder.journal.path)
        del run
    if lost:
        sys.exit(f"{lost} rows found no room: the figures would be too good")
    return [
        {place: statistics.median(values) for place, values in table.items()}
        for table in (found, steps)
    ]


def print_table(head, found):
    print(f"\n| {head} | " + " | ".join(f"{n} workers" for n in WORKERS) + " |")
    print("|---|" + "---:|" * len(WORKERS))
    for row in ROWS:
        cells = (f"{found[workers, row] / 1000:.1f} µs" for workers in WORKERS)
        print(f"| {row} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    batches, steps = measure(parser.parse_args().blocks)
    print_table(f"a batch of {BATCH}", batches)
    print_table("a batch in a step, CPU time", steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
