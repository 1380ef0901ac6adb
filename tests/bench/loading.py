"""What does it cost a batch that the inside of its DataLoader is watched?

A loader of tensors that are there already, so that nothing is hidden by work: one row for batches
that are made in the process itself, one for two workers. ``A/A`` is the loader that nobody watches,
measured a second time. Shuffled blocks, a collection of garbage before each.

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
from otel_mlperf.pytorch.loading import hooks
from otel_mlperf.recorder.core import recording

BLOCKS = 15
BATCH, BATCHES = 8, 400
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


def loader_of(workers):
    data = TensorDataset(torch.zeros(BATCH * BATCHES, 4))
    return DataLoader(data, batch_size=BATCH, num_workers=workers)


def measure(blocks):
    """Median nanoseconds of a batch by number of workers and row."""
    found = {(workers, row): [] for workers in WORKERS for row in ROWS}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = om.start("bench", dir=folder, agent="none", console=False)
        recorder = recording.active()
        hooks.install()
        for _ in range(blocks):
            for workers, row in order.sample(list(found), len(found)):
                # Nobody reads the journal here: what a block wrote is given free.
                recorder.journal.words[Word.TAIL] = recorder.journal.lease.end
                hooks.install() if ROWS[row] else hooks.switch_off()
                gc.collect()
                found[workers, row].append(batch_ns(loader_of(workers)))
        lost = recorder.journal.words[Word.LOST_RING_FULL]
        os.unlink(recorder.journal.path)
        del run
    if lost:
        sys.exit(f"{lost} rows found no room: the figures would be too good")
    return {place: statistics.median(values) for place, values in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    found = measure(parser.parse_args().blocks)
    print(f"\n| a batch of {BATCH} | " + " | ".join(f"{n} workers" for n in WORKERS) + " |")
    print("|---|" + "---:|" * len(WORKERS))
    for row in ROWS:
        cells = (f"{found[workers, row] / 1000:.1f} µs" for workers in WORKERS)
        print(f"| {row} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
