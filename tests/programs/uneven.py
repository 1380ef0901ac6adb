"""One of several ranks that wait for each other in every step, with a data loader of given speed.

Loading and the forward pass are sleeps. The program measures them, and its waits, itself, and gives
its own means as the run's result. After its first step it waits for a file, if one is named: what
is told of that step is then known before the others are made.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import time
from pathlib import Path

import otel_mlperf as om

RANK = int(os.environ["RANK"])
RANKS = int(os.environ["WORLD_SIZE"])
STARTED_BY = os.getppid()
WORK_S = 0.03


class Meeting:
    """A place in shared memory where every rank says how far it is."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * RANKS)
        self._reached = memoryview(self._map).cast("Q")

    def wait(self) -> None:
        """Returns when every rank has come as often as this one; ends if nobody is left to see."""
        self._reached[RANK] += 1
        while min(self._reached) < self._reached[RANK]:
            if os.getppid() != STARTED_BY:
                os._exit(1)
            time.sleep(0.0005)


class Spent:
    """Seconds of one kind of work in every step."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds.append(time.perf_counter() - self._began)

    @property
    def mean_s(self) -> float:
        return sum(self._seconds) / len(self._seconds)


def wait_for(path: Path) -> None:
    """Returns when the file is there; ends if nobody is left to make it."""
    while not path.exists():
        if os.getppid() != STARTED_BY:
            os._exit(1)
        time.sleep(0.005)


def batches(given: argparse.Namespace, loading: Spent):
    for _ in range(given.steps):
        if given.until and given.until.exists():
            return
        with loading:
            time.sleep(given.load)
        yield range(8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--name", default="uneven")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--load", type=float, default=0.02)
    parser.add_argument("--until", type=Path, help="for a rank that is alone")
    parser.add_argument("--pause", type=Path, help="after the first step, until this file is there")
    given = parser.parse_args()
    meeting = Meeting(given.meet)
    loading, forward, waiting = Spent(), Spent(), Spent()
    loader = batches(given, loading)

    def train(loader) -> None:
        for batch in om.steps(loader, samples=len, tokens=64, total=2 * given.steps):
            with om.span("forward"), forward:
                time.sleep(WORK_S)
            with om.span("all_reduce"), waiting:
                meeting.wait()
            om.log(loss=float("nan") if RANK else 1.0, lr=0.1, grad_norm=float(len(batch)))

    with om.start(given.name) as run:
        meeting.wait()
        if given.pause:
            train(itertools.islice(loader, 1))
            wait_for(given.pause)
        train(loader)
        run.result(loading=loading.mean_s, forward=forward.mean_s, waiting=waiting.mean_s)


if __name__ == "__main__":
    main()
