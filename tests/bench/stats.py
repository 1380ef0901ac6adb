"""What does ``run.stats()`` take in a loop of 5,000 sections a second, 101 different ones?

What the agent has not looked at yet, a program's own process reads from its ring: at most half a
second of sections, 2,500 here. Questions with so many are asked in shuffled turns, each after the
agent's part was done here and a collection of garbage; ``A/A`` is one of them a second time. With
``--live`` the loop is a real one beside a real agent. Where others use the machine, the time of the
processor says more than the clock.
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

import numpy as np

import otel_mlperf as om
from otel_mlperf.agent.derivation.running_sums import add_rows
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.section_sums import RunningSums, write_sums
from otel_mlperf.recorder.core import recording

TURNS = 60
NAMES = [f"layer{i}" for i in range(100)]
TOLD = 20_000
ROWS = {
    "nothing new": 0,
    "1,250 sections": 1_250,
    "2,500 sections": 2_500,
    "2,500 sections, A/A": 2_500,
    "2,500 sections, without NumPy": 2_500,
}
Took = tuple[float, float]
"""Milliseconds by the clock, and of the processor."""


class _Agent:
    """Its part: adds up what is in the journal, and tells."""

    def __init__(self, recorder) -> None:
        self._journal, self._meta, self._sums = recorder.journal, recorder.meta, RunningSums()
        self._reader = JournalReader(self._journal.path, self._journal.buffer)

    def look(self) -> None:
        add_rows(self._sums, np.array(self._reader.take()), self._meta.latest_ns)
        write_sums(self._journal.path, self._reader.ring.next, [], self._sums)
        self._journal.words[Word.TAIL] = self._reader.ring.next


def _step() -> None:
    for name in NAMES:
        with om.span(name):
            pass


def _work(sections: int) -> None:
    for _ in om.steps(range(sections // (len(NAMES) + 1))):
        _step()


def _took(run) -> Took:
    began, used = time.perf_counter_ns(), time.thread_time_ns()
    stats = run.stats(since="epoch")
    used, ended = time.thread_time_ns() - used, time.perf_counter_ns()
    assert stats.complete, stats.missing
    return (ended - began) / 1e6, used / 1e6


def _took_without_numpy(run) -> Took:
    numpy = sys.modules.pop("numpy")
    try:
        return _took(run)
    finally:
        sys.modules["numpy"] = numpy


def measure(turns: int = TURNS) -> dict[str, list[Took]]:
    """What each question took, by row."""
    found: dict[str, list[Took]] = {name: [] for name in ROWS}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = om.start("bench", dir=folder, agent="none", console=False)
        agent = _Agent(recording.active())
        for _ in range(TOLD // 1_000):
            _work(1_000)
            agent.look()
        for _ in range(turns):
            for name in order.sample(list(ROWS), len(ROWS)):
                _work(1_010)
                agent.look()
                _work(ROWS[name])
                gc.collect()
                ask = _took_without_numpy if "without" in name else _took
                found[name].append(ask(run))
        path = recording.active().journal.path
        run.stop()
        os.unlink(path)
    return found


def measure_live(seconds: int, every_s: float = 0.37) -> dict[str, list[Took]]:
    """The same in a loop of 50 steps a second, asked now and then."""
    found: dict[str, list[Took]] = {"live": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        om.start("bench", dir=folder, console=False) as run,
    ):
        began = time.monotonic()
        due = began + 3 * every_s
        for i in om.steps(range(seconds * 50)):
            _step()
            time.sleep(max(0.0, began + i / 50 - time.monotonic()))
            if time.monotonic() > due:
                due += every_s
                found["live"].append(_took(run))
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--live", type=int, metavar="SECONDS", help="a real loop and agent")
    options = parser.parse_args()
    found = measure_live(options.live) if options.live else measure(options.turns)
    for name, took in found.items():
        columns = [
            f"median {statistics.median(of):5.2f} ms, p95 {statistics.quantiles(of, n=20)[-1]:5.2f}"
            for of in zip(*took, strict=True)
        ]
        print(f"{name:<30} {columns[0]}; processor {columns[1]}")


if __name__ == "__main__":
    main()
