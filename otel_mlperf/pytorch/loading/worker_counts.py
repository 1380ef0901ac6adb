"""Counters of DataLoader workers in shared memory, readable by the process that waits for them.

Workers are forked for each epoch and killed at its end. So they count in memory that they share
with the process that started them. This requires no journal for each worker and no messages, and
the counts of a killed worker are kept.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS: Final = 8


class Fetched(NamedTuple):
    """Counts of the batches that one worker has fetched."""

    worker: int
    batches: int
    items_ns: int
    """Time in ``__getitem__``, or in the iterator of an iterable dataset."""
    collate_ns: int
    cpu_ns: int
    """CPU time of the thread, during ``items_ns``."""
    delay_ns: int
    """Time ready to run without a CPU, during ``items_ns``."""
    sized: int
    """Number of batches whose samples were measured."""
    elements: int
    """Elements in the samples of these, before they were collated."""

    def for_all(self, batches: int) -> Fetched:
        """Return an estimate for this many batches, assuming that the others were the same."""
        share = batches / self.batches
        return self._replace(
            batches=batches,
            items_ns=int(self.items_ns * share),
            collate_ns=int(self.collate_ns * share),
            cpu_ns=int(self.cpu_ns * share),
            delay_ns=int(self.delay_ns * share),
        )


def sum_of(worker: int, parts: list[Fetched]) -> Fetched:
    """Return the sum of all that one worker has fetched."""
    counts = (sum(counts) for counts in zip(*(part[1:] for part in parts), strict=True))
    return Fetched(worker, *counts) if parts else nothing_of(worker)


def nothing_of(worker: int) -> Fetched:
    """Return zero counts, as before the first batch."""
    return Fetched(worker, *[0] * _COUNTS)


_COUNTS: Final = len(Fetched._fields) - 1


class WorkerCounts:
    """Words of shared memory; each worker writes only its own."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = memoryview(mmap.mmap(-1, workers * _WORDS * 8)).cast("Q")
        self._told = [nothing_of(worker) for worker in range(workers)]

    def add(self, fetched: Fetched) -> None:
        """Add newly fetched batches of a worker."""
        first = fetched.worker * _WORDS
        for at in reversed(range(_COUNTS)):  # The batch count is written after its times.
            if count := fetched[at + 1]:
                self._words[first + at] += count

    def grown(self) -> Iterator[Fetched]:
        """Yield the growth since the last call, for workers that fetched anything."""
        for worker in range(self._workers):
            before, now = self._told[worker], self._of(worker)
            if now != before:
                self._told[worker] = now
                _, *counts = (new - old for new, old in zip(now, before, strict=True))
                yield Fetched(worker, *counts)

    def forget(self) -> None:
        """Discard the growth so far."""
        self._told = [self._of(worker) for worker in range(self._workers)]

    def _of(self, worker: int) -> Fetched:
        at = worker * _WORDS
        return Fetched(worker, *self._words[at : at + _COUNTS].tolist())
