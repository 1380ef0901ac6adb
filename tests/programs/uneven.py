"""One of several ranks that wait for each other in every step, with a data loader of given speed.

Each loading, forward pass and wait is a sleep; the program measures them itself, and gives its own
means as the run's result.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from pathlib import Path

import otel_mlperf as om

RANK = int(os.environ["RANK"])
RANKS = int(os.environ["WORLD_SIZE"])
WORK_S = 0.03


class Meeting:
    """A place in shared memory where every rank says how far it is."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * RANKS)
        self._reached = memoryview(self._map).cast("Q")

    def wait(self) -> None:
        """Returns when every rank has come as often as this one."""
        self._reached[RANK] += 1
        while min(self._reached) < self._reached[RANK]:
            time.sleep(0.0005)


def batches(steps: int, seconds: float, spent: list[float]):
    for _ in range(steps):
        began = time.perf_counter()
        time.sleep(seconds)
        spent.append(time.perf_counter() - began)
        yield range(8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--name", default="uneven")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--load", type=float, default=0.02)
    given = parser.parse_args()
    meeting = Meeting(given.meet)
    loading: list[float] = []
    loader = batches(given.steps, given.load, loading)
    with om.start(given.name) as run:
        meeting.wait()
        for batch in om.steps(loader, samples=len, tokens=64, total=2 * given.steps):
            with om.span("forward"):
                time.sleep(WORK_S)
            with om.span("all_reduce"):
                meeting.wait()
            om.log(loss=float("nan") if RANK else 1.0, lr=0.1, grad_norm=float(len(batch)))
        run.result(loading=sum(loading) / given.steps)


if __name__ == "__main__":
    main()
