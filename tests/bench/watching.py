"""What does it cost an untouched loop that it is watched?

    python tests/bench/watching.py [ROUNDS]

What torch's functions are woven into stays there, so each row has a process of its own: one that
records nothing, another of that kind (A/A), which shows how much two equal ones differ on this
machine, one that records and watches nothing, and one that is watched. They take turns in shuffled
order, a block of steps each, and each block stands beside one of the first row in the same round.
A step here is a batch of a DataLoader, forward, loss, backward and update of a tiny model: six
sections with the step itself, and little else. Time is that of the main thread on a processor, so
that what others compute meanwhile is seen in its cache alone.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context

import torch

import otel_mlperf as om

ROUNDS = 40
STEPS = 400
PLAIN = "nothing"
ROWS = {
    PLAIN: (),
    "nothing (A/A)": (),
    "records, not watched": ("record",),
    "watched": ("record", "watch"),
}


def make_epoch():
    """A function that trains for ``STEPS`` steps; seconds of its thread that one took."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    criterion = torch.nn.MSELoss()
    data = torch.utils.data.TensorDataset(torch.randn(STEPS, 8), torch.randn(STEPS, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=None)

    def epoch():
        start = time.thread_time()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        return (time.thread_time() - start) / STEPS

    return epoch


def work(does, folder, pipe):
    """Trains an epoch each time that it is asked for one."""
    torch.set_num_threads(1)
    os.environ["OTEL_MLPERF_CONSOLE"] = "false"
    if "watch" in does:
        om.integrate("torch")
    run = (
        om.start("watching", dir=folder, disabled_integrations="dataloader")
        if "record" in does
        else None
    )
    epoch = make_epoch()
    while pipe.recv():
        gc.collect()
        pipe.send(epoch())
    if run is not None:
        om.stop()


def start_all(folder):
    """The pipe to each row's process, and the processes."""
    spawn, pipes, processes = get_context("spawn"), {}, []
    for name, does in ROWS.items():
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=work, args=(does, folder, theirs)))
        processes[-1].start()
    return pipes, processes


def measure(pipes, rounds):
    """Microseconds of a step, by row, of each round."""
    found = {name: [] for name in pipes}
    for number in range(rounds + 1):
        for name in random.sample(list(pipes), len(pipes)):
            pipes[name].send(True)
            took_s = pipes[name].recv()
            if number:  # the first is for warming up
                found[name].append(took_s * 1e6)
    return found


def print_table(found):
    print("| a step of an untouched loop | median | more than nothing | middle half |")
    print("|---|---:|---:|---:|")
    for name, all_us in found.items():
        more = [took - plain for took, plain in zip(all_us, found[PLAIN], strict=True)]
        low, middle, high = statistics.quantiles(more, n=4)
        print(f"| {name} | {statistics.median(all_us):.1f} µs | {middle:+.1f} µs "
              f"| {low:+.1f} … {high:+.1f} µs |")  # fmt: skip


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pipes, processes = start_all(folder)
        found = measure(pipes, rounds)
        for name, process in zip(pipes, processes, strict=True):
            pipes[name].send(False)
            process.join()
    print_table(found)


if __name__ == "__main__":
    main()
