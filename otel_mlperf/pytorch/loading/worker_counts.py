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
    """What one worker has fetched."""

    worker: int
    batches: int
    items_ns: int
    """In ``__getitem__``, or in the iterator of an iterable dataset."""
    collate_ns: int
    cpu_ns: int
    """CPU time of the thread, of what is in ``items_ns``."""
    delay_ns: int
    """The same in which it was ready to run and had no CPU."""
    sized: int
    """Batches of which the samples were looked at."""
    elements: int
    """Of the samples of these, before they were collated."""

    def for_all(self, batches: int) -> Fetched:
        """What so many batches took, if the others were as these."""
        share = batches / self.batches
        return self._replace(
            batches=batches,
            items_ns=int(self.items_ns * share),
            collate_ns=int(self.collate_ns * share),
            cpu_ns=int(self.cpu_ns * share),
            delay_ns=int(self.delay_ns * share),
        )


def sum_of(worker: int, parts: list[Fetched]) -> Fetched:
    """All that one worker has fetched."""
    counts = (sum(counts) for counts in zip(*(part[1:] for part in parts), strict=True))
    return Fetched(worker, *counts) if parts else nothing_of(worker)


def nothing_of(worker: int) -> Fetched:
    """Before its first batch."""
    return Fetched(worker, *[0] * _COUNTS)


_COUNTS: Final = len(Fetched._fields) - 1


class WorkerCounts:
    """Words of shared memory; each worker writes its own alone."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = memoryview(mmap.mmap(-1, workers * _WORDS * 8)).cast("Q")
        self._told = [nothing_of(worker) for worker in range(workers)]

    def add(self, fetched: Fetched) -> None:
        """What a worker has fetched since."""
        first = fetched.worker * _WORDS
        for at in reversed(range(_COUNTS)):  # the batch comes after its times
            if count := fetched[at + 1]:
                self._words[first + at] += count

    def grown(self) -> Iterator[Fetched]:
        """What has come since the last call, of the workers that fetched anything."""
        for worker in range(self._workers):
            before, now = self._told[worker], self._of(worker)
            if now != before:
                self._told[worker] = now
                _, *counts = (new - old for new, old in zip(now, before, strict=True))
                yield Fetched(worker, *counts)

    def forget(self) -> None:
        """What has come so far has not grown."""
        self._told = [self._of(worker) for worker in range(self._workers)]

    def _of(self, worker: int) -> Fetched:
        at = worker * _WORDS
        return Fetched(worker, *self._words[at : at + _COUNTS].tolist())
