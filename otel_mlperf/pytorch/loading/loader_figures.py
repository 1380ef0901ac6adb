"""Counters of a DataLoader and its workers: waits, ready batches, CPU time, first batch.

Workers are forked for each epoch and killed at the epoch's end. Workers therefore count in memory
that they share with their parent process. This requires neither a journal per worker nor messages,
and the counts outlive the worker. Time that is neither CPU time nor a wait for a CPU is a wait for
a file, the network or a lock.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.own_descriptor import OwnDescriptor
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.interrupts import raises_afterwards
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.series_methods import HistogramSeries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.instruments.cells import Labels

_PATH: Final = "/proc/thread-self/schedstat"
"""CPU time, run queue time and time slices of a thread; missing on some kernels."""
_LONGEST: Final = 128


class Used(NamedTuple):
    """CPU use of a thread, up to a reading or between two readings, in nanoseconds."""

    cpu_ns: int
    delay_ns: int
    """Time ready to run, but on no CPU; 0 if the kernel does not report it."""

    def since(self, before: Used) -> Used:
        """Return the CPU use between the reading ``before`` and this one."""
        return Used(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


class ThreadUse:
    """Reader of the CPU use of the thread that created it; a reading costs 2 µs."""

    _file: OwnDescriptor | None = None

    def __init__(self, path: str = _PATH) -> None:
        with suppress(OSError):
            self._file = OwnDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self) -> Used:
        """Return the thread's CPU use so far."""
        return Used(time.thread_time_ns(), self._delay_ns())

    def _delay_ns(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file.fd, _LONGEST, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Close the kernel's file, if it is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # Closes the descriptor when the thread ends and its reader is deleted.
    __del__ = raises_afterwards(close)


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
    """Number of elements in the samples of the measured batches, before they were collated."""

    def for_all(self, batches: int) -> Fetched:
        """Return the counts of ``batches`` batches, extrapolated from the counted ones."""
        share = batches / self.batches
        return self._replace(
            batches=batches,
            items_ns=int(self.items_ns * share),
            collate_ns=int(self.collate_ns * share),
            cpu_ns=int(self.cpu_ns * share),
            delay_ns=int(self.delay_ns * share),
        )


def sum_of(worker: int, parts: list[Fetched]) -> Fetched:
    """Return the sum of ``parts``, counts of one worker; zero counts if ``parts`` is empty."""
    counts = (sum(counts) for counts in zip(*(part[1:] for part in parts), strict=True))
    return Fetched(worker, *counts) if parts else nothing_of(worker)


def nothing_of(worker: int) -> Fetched:
    """Return zero counts for a worker, as before its first batch."""
    return Fetched(worker, *[0] * _COUNTS)


_COUNTS: Final = len(Fetched._fields) - 1


class WorkerCounts:
    """Counters of all workers in shared memory; each worker writes only its own counters."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = memoryview(mmap.mmap(-1, workers * _WORDS * 8)).cast("Q")
        self._reported = [nothing_of(worker) for worker in range(workers)]

    def add(self, fetched: Fetched) -> None:
        """Add the counts of newly fetched batches of a worker."""
        first = fetched.worker * _WORDS
        for at in reversed(range(_COUNTS)):  # The batch count is written after its times.
            if count := fetched[at + 1]:
                self._words[first + at] += count

    def grown(self) -> Iterator[Fetched]:
        """Yield each worker's counts since the last call, if it has fetched anything."""
        for worker in range(self._workers):
            before, now = self._reported[worker], self._of(worker)
            if now != before:
                self._reported[worker] = now
                _, *counts = (new - old for new, old in zip(now, before, strict=True))
                yield Fetched(worker, *counts)

    def forget(self) -> None:
        """Discard the counts since the last call of ``grown``."""
        self._reported = [self._of(worker) for worker in range(self._workers)]

    def _of(self, worker: int) -> Fetched:
        at = worker * _WORDS
        return Fetched(worker, *self._words[at : at + _COUNTS].tolist())


clock: Final = time.monotonic_ns
"""Clock of all times here and in the gates, in monotonic nanoseconds."""
_EVERY_NS: Final = 500_000_000
"""Interval at which the counts are reported."""
_MAX_WORKERS: Final = 64
"""Maximum number of workers with a label of their own."""
_ALL_LOOKED_AT: Final = 64
"""Number of first batches that are all measured, in a loader without workers."""
_LOOKED_AT: Final = 8
"""Of later batches, one in this many is measured: the loop waits during each measurement."""
MAIN: Final = "main"
"""Worker label of a loader without workers: the process itself."""
STARTED, KEPT, NONE = "started", "kept", "none"


class LoaderFigures:
    """Figures of one iterator of a DataLoader, over its successive passes."""

    def __init__(self, label: str, workers: int, now_ns: int) -> None:
        self._labels: Labels = ((names.DATASET, label),)
        self.counts = WorkerCounts(workers) if workers else None
        self._batches = self._wait_ns = self._none_ready = 0
        """Sums since the last report: writing each batch to cells would double the cost."""
        self._own: list[Fetched] = []
        """Batches fetched by the process itself since the last report; a later sum is cheaper."""
        self._like: Fetched | None = None
        """Last reported sum of batches that the process itself fetched."""
        self._fetches = self._passed_over = 0
        """Fetches by the process itself: all, and those not measured since the last report."""
        self._how = STARTED if workers else NONE
        self._began_ns: int | None = now_ns
        self._ready = _series(names.LOADER_READY, self._labels)

    def goes_on(self, now_ns: int) -> None:
        """Note that the iterator starts another pass, with the same workers."""
        self._began_ns = now_ns
        self._how = KEPT if self.counts is not None else NONE

    def given(self, asked_ns: int, now_ns: int, ready: int | None) -> None:
        """Count a batch that was requested at ``asked_ns`` and received at ``now_ns``.

        ``ready``: number of batches that were ready at the request; None if the loader has no
        workers.
        """
        began_ns, self._began_ns = self._began_ns, None
        self._wait_ns += now_ns - asked_ns
        self._batches += 1
        if ready is not None:
            self._ready.record(ready)
            self._none_ready += not ready
        if began_ns is not None:
            labels: Labels = (*self._labels, (names.LOADER_WORKERS, self._how))
            _series(names.LOADER_FIRST_BATCH, labels).record((now_ns - began_ns) / 1e9)

    def ended(self, asked_ns: int, now_ns: int) -> None:
        """Record the duration of the request after the last batch, at which workers may end."""
        if self._how != NONE:
            labels: Labels = (*self._labels, (names.LOADER_WORKERS, self._how))
            _series(names.LOADER_END, labels).record((now_ns - asked_ns) / 1e9)

    def fetched(self, fetched: Fetched) -> None:
        """Add a batch that the process itself has fetched."""
        self._own.append(fetched)

    def pass_over(self) -> bool:
        """Count a fetch by the process itself; return True if sampling leaves it unmeasured."""
        self._fetches += 1
        if self._fetches <= _ALL_LOOKED_AT or self._fetches % _LOOKED_AT == 0:
            return False
        self._passed_over += 1
        return True

    def tell(self) -> None:
        """Add the counts of this loader and its workers since the last report to the active run."""
        batches, wait_ns, none_ready = self._batches, self._wait_ns, self._none_ready
        self._batches = self._wait_ns = self._none_ready = 0
        _add(names.LOADER_BATCHES, batches, self._labels)
        _add(names.LOADER_WAIT, wait_ns / 1e9, self._labels)
        _add(names.LOADER_NONE_READY, none_ready, self._labels)
        own, self._own, passed_over, self._passed_over = self._own, [], self._passed_over, 0
        if own:
            self._like = sum_of(0, own)
            self._report_fetched(MAIN, self._like.for_all(len(own) + passed_over))
        elif passed_over and self._like is not None:  # since then, none was measured
            like = self._like._replace(sized=0, elements=0)
            self._report_fetched(MAIN, like.for_all(passed_over))
        for fetched in self.counts.grown() if self.counts is not None else ():
            is_known = fetched.worker < _MAX_WORKERS
            self._report_fetched(str(fetched.worker) if is_known else names.OTHER, fetched)

    def forget(self) -> None:
        """Discard the counts since the last report, because they precede the next run."""
        self._batches = self._wait_ns = self._none_ready = 0
        self._own, self._passed_over = [], 0
        if self.counts is not None:
            self.counts.forget()

    def _report_fetched(self, worker: str, fetched: Fetched) -> None:
        labels: Labels = (*self._labels, (names.LOADER_WORKER, worker))
        _add(names.LOADER_FETCHED, fetched.batches, labels)
        parts = ((names.LOADER_ITEMS, fetched.items_ns), (names.LOADER_COLLATE, fetched.collate_ns))
        for part, spent_ns in parts:
            _add(names.LOADER_FETCH_TIME, spent_ns / 1e9, (*labels, (names.LOADER_PART, part)))
        _add(names.LOADER_CPU, fetched.cpu_ns / 1e9, labels)
        _add(names.LOADER_DELAY, fetched.delay_ns / 1e9, labels)
        _add(names.LOADER_SIZED, fetched.sized, labels)
        _add(names.LOADER_ELEMENTS, fetched.elements, labels)


class Loaders:
    """DataLoader iterators of this process, with their figures."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], LoaderFigures]] = {}
        self._pending: list[tuple[weakref.ref[Any], LoaderFigures]] = []
        self.due_ns = 0
        """Monotonic time from which new counts are reported again."""
        self.own_ns = 0
        """Time that the observation itself has cost since the last report, in ns."""

    def add(self, iterator: Any, figures: LoaderFigures) -> None:
        """Add a new iterator with its figures."""
        number = id(iterator)
        # Removed by a C function: the interpreter would drop an exception that a signal handler
        # raises in a Python callback, such as that of a WeakKeyDictionary.
        self._known[number] = weakref.ref(iterator, partial(self._known.pop, number)), figures
        self._pending.append((weakref.ref(iterator), figures))

    def of(self, iterator: Any) -> LoaderFigures | None:
        """Return an iterator's figures; None if it was created before the observation started."""
        known = self._known.get(id(iterator))
        return known[1] if known is not None else None

    def look(self, now_ns: int) -> None:
        """Report new counts at ``now_ns``; do not report again in the next half second."""
        self.due_ns = now_ns + _EVERY_NS
        self.tell()

    def tell(self) -> None:
        """Report new counts now. Iterators that were deleted are reported a last time."""
        for figures in list(self._figures_to_report()):
            figures.tell()
        own_ns, self.own_ns = self.own_ns, 0
        recorder = active()
        if recorder is not None:
            recorder.journal.count(Word.WATCH_TIME, own_ns)

    def forget(self) -> None:
        """Discard the counts of batches fetched before the run that is starting."""
        self.own_ns = 0
        for _, figures in self._pending:
            figures.forget()

    def _figures_to_report(self) -> Iterator[LoaderFigures]:
        resolved = [(iterator, iterator()) for iterator, _ in self._pending]
        yield from (figures for _, figures in self._pending)
        deleted = {id(iterator) for iterator, known in resolved if known is None}
        self._pending = [pair for pair in self._pending if id(pair[0]) not in deleted]


def record_pinned(taken_ns: int) -> None:
    """Record the duration of copying a batch into pinned memory."""
    _series(names.LOADER_PIN, ()).record(taken_ns / 1e9)


def _add(metric: Metric, value: float, labels: Labels) -> None:
    recorder = active()
    if recorder is not None and value:
        recorder.cells.add(metric.name, metric.unit, value, labels)


@cache
def _series(metric: Metric, labels: Labels) -> HistogramSeries:
    return HistogramSeries(metric.name, content_of("histogram", metric.name, metric.unit, labels))


_MAX_CLASSES: Final = 16
_MAX_OF_CLASS: Final = 4
"""Data sets beyond either limit share a label."""


class LoaderLabels:
    """Labels of the data sets of this process."""

    def __init__(self) -> None:
        self._known: dict[str, list[Any]] = {}

    def of(self, dataset: object) -> str:
        """Return a data set's label: ``CIFAR10``, or ``CIFAR10 2`` for the second of its class."""
        text = safe_name_text(type(dataset).__name__)
        if text not in self._known and len(self._known) >= _MAX_CLASSES:
            return names.OTHER
        places = self._known.setdefault(text, [])
        number = _number(places, dataset)
        return text if number == 1 else f"{text} {number}"


def _number(places: list[Any], dataset: object) -> int:
    """Return a data set's number within its class, from 1.

    ``places``: weak references to the known data sets of the class.
    """
    resolved = [place() for place in places]
    for at, known in enumerate(resolved):
        if known is dataset:
            return at + 1
    free = next((at for at, known in enumerate(resolved) if known is None), len(places))
    if free >= _MAX_OF_CLASS:
        return _MAX_OF_CLASS
    try:
        places[free : free + 1] = [weakref.ref(dataset)]
    except TypeError:  # e.g. a list, whose deletion cannot be detected
        return 1
    return free + 1
